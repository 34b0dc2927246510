"""Tokenizers: convert text to ids and back, without loss unless settings such as `lowercase` change the text."""

from translume.text.imported import SentencePieces
from translume.text.labels import Labels
from translume.text.learning import extend_tokenizer, train_tokenizer
from translume.text.specials import SpecialIds
from translume.text.tokenizer import Tokenizer
from translume.text.vocabulary import Vocabulary

__all__ = ["Labels", "SentencePieces", "SpecialIds", "Tokenizer", "Vocabulary", "extend_tokenizer", "train_tokenizer"]
