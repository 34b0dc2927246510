"""Text in, text out: what users call."""

from typing import TYPE_CHECKING

from translume.exports import export_late

if TYPE_CHECKING:
    from translume.translator.classifier import Classification as Classification
    from translume.translator.classifier import Classifier as Classifier
    from translume.translator.generator import Generation as Generation
    from translume.translator.generator import Generator as Generator
    from translume.translator.loading import ComputeOptions as ComputeOptions
    from translume.translator.results import Segment as Segment
    from translume.translator.results import TargetScore as TargetScore
    from translume.translator.results import TextHypothesis as TextHypothesis
    from translume.translator.results import Translation as Translation
    from translume.translator.scoring import Perplexity as Perplexity
    from translume.translator.translator import Translator as Translator
    from translume.translator.translator import load as load

export_late(__name__)
