"""Text in, text out: what users call."""

from translume.translator.classifier import Classification, Classifier
from translume.translator.entering import Entry, Joining, translate_entering
from translume.translator.translator import Translator, load, load_classifier, load_translator
from translume.translator.values import TargetScore, TextHypothesis, Translation
from translume.translator.workers import Workers, translate_shared

__all__ = [
    "Classification",
    "Classifier",
    "Entry",
    "Joining",
    "TargetScore",
    "TextHypothesis",
    "Translation",
    "Translator",
    "Workers",
    "load",
    "load_classifier",
    "load_translator",
    "translate_entering",
    "translate_shared",
]
