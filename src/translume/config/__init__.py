"""Settings: an immutable tree read from TOML and validated strictly. Does not import torch."""

from typing import TYPE_CHECKING

from translume.exports import export_late

if TYPE_CHECKING:
    from translume.config.base import Settings as Settings
    from translume.config.data import CleaningSettings as CleaningSettings
    from translume.config.data import CorpusSettings as CorpusSettings
    from translume.config.data import DataSettings as DataSettings
    from translume.config.decoding import DecodingOptions as DecodingOptions
    from translume.config.decoding import DecodingSettings as DecodingSettings
    from translume.config.evaluation import EvaluationSettings as EvaluationSettings
    from translume.config.heads import AdaptiveSettings as AdaptiveSettings
    from translume.config.heads import CappedSettings as CappedSettings
    from translume.config.heads import ClassifySettings as ClassifySettings
    from translume.config.heads import CopySettings as CopySettings
    from translume.config.heads import EntmaxSettings as EntmaxSettings
    from translume.config.heads import HeadKind as HeadKind
    from translume.config.heads import HierarchicalSettings as HierarchicalSettings
    from translume.config.heads import MixtureSettings as MixtureSettings
    from translume.config.heads import ProjectedSettings as ProjectedSettings
    from translume.config.heads import SampledSettings as SampledSettings
    from translume.config.heads import ShortlistSettings as ShortlistSettings
    from translume.config.heads import SigmoidSettings as SigmoidSettings
    from translume.config.heads import SoftmaxSettings as SoftmaxSettings
    from translume.config.languages import Direction as Direction
    from translume.config.languages import Directions as Directions
    from translume.config.model import ModelSettings as ModelSettings
    from translume.config.sources import FrameSettings as FrameSettings
    from translume.config.sources import SourceKind as SourceKind
    from translume.config.sources import TextSettings as TextSettings
    from translume.config.tokenizer import TokenizerSettings as TokenizerSettings
    from translume.config.training import TrainingSettings as TrainingSettings
    from translume.config.tree import Config as Config

export_late(__name__)
