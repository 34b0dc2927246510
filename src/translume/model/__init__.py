"""The network: ids in, hidden states out. Knows neither text nor files."""

from translume.model.head import Head, HeadLoss, LossOptions
from translume.model.state import DecoderState, StaleStateError
from translume.model.transformer import Transformer

__all__ = ["DecoderState", "Head", "HeadLoss", "LossOptions", "StaleStateError", "Transformer"]
