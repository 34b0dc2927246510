"""The network: from token ids to hidden states. Independent of text and files."""

from translume.model.head import Head, HeadData, HeadLoss, HeadSizes, LossOptions, TrainingPairs
from translume.model.state import DecoderState, StaleStateError
from translume.model.transformer import Transformer

__all__ = [
    "DecoderState",
    "Head",
    "HeadData",
    "HeadLoss",
    "HeadSizes",
    "LossOptions",
    "StaleStateError",
    "TrainingPairs",
    "Transformer",
]
