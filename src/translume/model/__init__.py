"""The network: from token ids to hidden states. Independent of text and files."""

from translume.model.head import Head as Head
from translume.model.head import HeadData as HeadData
from translume.model.head import HeadLoss as HeadLoss
from translume.model.head import HeadSizes as HeadSizes
from translume.model.head import LossOptions as LossOptions
from translume.model.head import TrainingPairs as TrainingPairs
from translume.model.transformer import Transformer as Transformer
