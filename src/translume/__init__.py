"""Translume: the encoder-decoder Transformer with the light on.

Names are imported when they are first used, so that `import translume` is instant and needs no torch.
"""

from typing import TYPE_CHECKING

from translume.exports import export_late as _export_late
from translume.processors import configure_openmp as _configure_openmp

if TYPE_CHECKING:
    from translume.config import Config as Config
    from translume.config import DecodingSettings as DecodingSettings
    from translume.config import EvaluationSettings as EvaluationSettings
    from translume.errors import DataError as DataError
    from translume.errors import ModelFolderError as ModelFolderError
    from translume.errors import SettingsError as SettingsError
    from translume.errors import TrainingError as TrainingError
    from translume.errors import TranslationError as TranslationError
    from translume.errors import TranslumeError as TranslumeError
    from translume.evaluation import Comparison as Comparison
    from translume.evaluation import Score as Score
    from translume.evaluation import Scores as Scores
    from translume.evaluation import compare as compare
    from translume.evaluation import evaluate as evaluate
    from translume.inspection import BeamRecord as BeamRecord
    from translume.inspection import ClassTrace as ClassTrace
    from translume.inspection import CorpusLens as CorpusLens
    from translume.inspection import Edited as Edited
    from translume.inspection import Forced as Forced
    from translume.inspection import Trace as Trace
    from translume.inspection import WhyNot as WhyNot
    from translume.inspection import compare_on_corpus as compare_on_corpus
    from translume.inspection import edit_source as edit_source
    from translume.inspection import force_token as force_token
    from translume.inspection import force_tokens as force_tokens
    from translume.inspection import inspect_corpus as inspect_corpus
    from translume.inspection import record_beam as record_beam
    from translume.inspection import trace as trace
    from translume.inspection import trace_classification as trace_classification
    from translume.inspection import why_not as why_not
    from translume.interchange.export import export as export
    from translume.interchange.importing import import_model as import_model
    from translume.interchange.push import Pushed as Pushed
    from translume.interchange.push import push as push
    from translume.training.train import train as train
    from translume.translator import Classification as Classification
    from translume.translator import Classifier as Classifier
    from translume.translator import ComputeOptions as ComputeOptions
    from translume.translator import Generation as Generation
    from translume.translator import Generator as Generator
    from translume.translator import Perplexity as Perplexity
    from translume.translator import TargetScore as TargetScore
    from translume.translator import TextHypothesis as TextHypothesis
    from translume.translator import Translation as Translation
    from translume.translator import Translator as Translator
    from translume.translator import load as load
    from translume.version import __version__ as __version__

_configure_openmp()
_get = _export_late(__name__)


def __getattr__(name: str) -> object:
    from translume.errors import needed_by

    with needed_by(f"translume.{name}"):
        return _get(name)
