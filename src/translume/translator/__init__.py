"""Text in, text out: what users call."""

from translume.translator.translator import Translator, load
from translume.translator.values import TargetScore, TextHypothesis, Translation

__all__ = ["TargetScore", "TextHypothesis", "Translation", "Translator", "load"]
