"""Text in, text out: what users call."""

from translume.translator.classifier import Classification, Classifier
from translume.translator.generator import Generation, Generator
from translume.translator.perplexity import Perplexity
from translume.translator.results import Segment, TargetScore, TextHypothesis, Translation
from translume.translator.translator import Translator, load, load_classifier, load_generator, load_translator
from translume.translator.workers import Workers, translate_with_workers

__all__ = [
    "Classification",
    "Classifier",
    "Generation",
    "Generator",
    "Perplexity",
    "Segment",
    "TargetScore",
    "TextHypothesis",
    "Translation",
    "Translator",
    "Workers",
    "load",
    "load_classifier",
    "load_generator",
    "load_translator",
    "translate_with_workers",
]
