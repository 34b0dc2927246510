"""Settings: an immutable tree read from TOML and validated strictly. Does not import torch."""

from translume.config.base import Settings, to_toml
from translume.config.data import CleaningSettings, CorpusSettings, DataSettings
from translume.config.decoding import DecodingOptions, DecodingSettings
from translume.config.evaluation import EvaluationSettings
from translume.config.heads import (
    AdaptiveSettings,
    ClassifySettings,
    CopySettings,
    EntmaxSettings,
    HeadKind,
    HeadSettings,
    HierarchicalSettings,
    MixtureSettings,
    ProjectedSettings,
    SampledSettings,
    ShortlistSettings,
    SigmoidSettings,
    SoftmaxSettings,
)
from translume.config.languages import Direction, Directions
from translume.config.model import ModelSettings
from translume.config.sources import FrameSettings, SourceKind, SourceSettings, TextSettings
from translume.config.tokenizer import TokenizerSettings
from translume.config.training import TrainingSettings
from translume.config.tree import Config

__all__ = [
    "AdaptiveSettings",
    "ClassifySettings",
    "CleaningSettings",
    "Config",
    "CopySettings",
    "CorpusSettings",
    "DataSettings",
    "DecodingOptions",
    "DecodingSettings",
    "Direction",
    "Directions",
    "EntmaxSettings",
    "EvaluationSettings",
    "FrameSettings",
    "HeadKind",
    "HeadSettings",
    "HierarchicalSettings",
    "MixtureSettings",
    "ModelSettings",
    "ProjectedSettings",
    "SampledSettings",
    "Settings",
    "ShortlistSettings",
    "SigmoidSettings",
    "SoftmaxSettings",
    "SourceKind",
    "SourceSettings",
    "TextSettings",
    "TokenizerSettings",
    "TrainingSettings",
    "to_toml",
]
