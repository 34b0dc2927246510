"""Text to ids and back: tokenizers that lose nothing unless told to."""

from translume.text.tokenizer import Tokenizer
from translume.text.training import train_tokenizer
from translume.text.vocabulary import SpecialIds

__all__ = ["SpecialIds", "Tokenizer", "train_tokenizer"]
