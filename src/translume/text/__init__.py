"""Text to ids and back: tokenizers that lose nothing unless told to."""

from translume.text.labels import Labels
from translume.text.sentencepiece import SentencePieces
from translume.text.specials import SpecialIds
from translume.text.tokenizer import Tokenizer
from translume.text.training import train_tokenizer
from translume.text.vocabulary import Vocabulary

__all__ = ["Labels", "SentencePieces", "SpecialIds", "Tokenizer", "Vocabulary", "train_tokenizer"]
