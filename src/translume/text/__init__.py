"""Tokenizers: convert text to ids and back, without loss unless settings such as `lowercase` change the text."""

from typing import TYPE_CHECKING

from translume.exports import export_late

if TYPE_CHECKING:
    from translume.text.imported import SentencePieces as SentencePieces
    from translume.text.labels import Labels as Labels
    from translume.text.learning import extend_tokenizer as extend_tokenizer
    from translume.text.learning import train_tokenizer as train_tokenizer
    from translume.text.specials import SpecialIds as SpecialIds
    from translume.text.tokenizer import Tokenizer as Tokenizer
    from translume.text.vocabulary import Vocabulary as Vocabulary

export_late(__name__)
