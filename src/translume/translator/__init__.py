"""Text in, text out: what users call."""

from translume.translator.classifier import Classification, Classifier
from translume.translator.generator import Generation, Generator
from translume.translator.loading import ComputeOptions
from translume.translator.results import Segment, TargetScore, TextHypothesis, Translation
from translume.translator.scoring import Perplexity
from translume.translator.translator import Translator, load

__all__ = [
    "Classification",
    "Classifier",
    "ComputeOptions",
    "Generation",
    "Generator",
    "Perplexity",
    "Segment",
    "TargetScore",
    "TextHypothesis",
    "Translation",
    "Translator",
    "load",
]
