"""[evaluation]: how translations are measured."""

from typing import Literal

from translume.config.base import Names, Settings


class EvaluationSettings(Settings):
    """[evaluation]: as sacreBLEU names things."""

    metrics: Names = ("bleu", "chrf")
    """Any of "bleu", "chrf", "ter", "exact_match", "wer", "per"."""
    tokenize: Literal["none", "13a", "intl", "zh", "char", "ja-mecab", "ko-mecab"] = "13a"
    """sacreBLEU's tokenizer for BLEU; "none" for text that is tokenized already."""
    lowercase: bool = False
    """Compare without case."""
