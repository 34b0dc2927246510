"""Text to ids and back: tokenizers that lose nothing unless told to."""

from translume.text.labels import Labels
from translume.text.tokenizer import Tokenizer
from translume.text.training import train_tokenizer
from translume.text.vocabulary import SpecialIds

__all__ = ["Labels", "SpecialIds", "Tokenizer", "train_tokenizer"]
