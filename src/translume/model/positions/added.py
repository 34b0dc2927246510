"""Vectors added to the embeddings: sinusoidal (Vaswani et al. 2017), as Marian computes them, or learned."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.positions import PositionEncoding


def sinusoids(count: int, width: int, *, longest_last: bool = False) -> Tensor:
    """Return [count, width]: sines, then cosines, of positions 0 … count−1 at width/2 wavelengths, 2π to 10000·2π.

    Vaswani et al. 2017, section 3.5, with sines and cosines in two halves instead of interleaved, as in Marian and
    fairseq (a permutation of the columns). The paper's last wavelength is one step below 10000·2π; with `longest_last`
    it is 10000·2π, as in Marian.
    """
    steps = max(width - 2, 1) if longest_last else width
    exponent = torch.arange(0, width, 2, dtype=torch.float64) / steps
    angles = torch.arange(count, dtype=torch.float64)[:, None] * torch.exp(-math.log(10_000) * exponent)
    return torch.cat([angles.sin(), angles.cos()], -1).float()


class Sinusoidal(PositionEncoding):
    """Sinusoids of the paper's wavelengths."""

    longest_last: ClassVar[bool] = False
    first: ClassVar[int] = 0
    """The position of the first token."""
    huggingface = frozenset({"MarianMTModel", "PegasusForConditionalGeneration"})

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        count = self.first + settings.max_positions
        table = sinusoids(count, settings.width, longest_last=self.longest_last)[self.first :]
        self.register_buffer("table", table, persistent=False)


class MarianSinusoidal(Sinusoidal):
    """Sinusoids with slightly longer wavelengths, as Marian computes them. MarianMTModel has the paper's instead."""

    longest_last = True
    huggingface = frozenset()


class StoredSinusoidal(PositionEncoding):
    """Sinusoids of Marian's wavelengths that a model folder stores, so that an imported model keeps its own numbers."""

    def __init__(self, settings: ModelSettings, longest: int) -> None:
        super().__init__(settings)
        self.longest = longest
        self.register_buffer("table", sinusoids(longest, settings.width, longest_last=True))


class FairseqSinusoidal(Sinusoidal):
    """Marian's wavelengths, from position 2 on: fairseq counts from its padding id, 1, which has no position."""

    longest_last = True
    first = 2
    huggingface = frozenset({"M2M100ForConditionalGeneration"})


class Learned(PositionEncoding):
    """A learned vector for each position."""

    trained = True
    huggingface = frozenset(
        {
            "PegasusForConditionalGeneration",
            "BartForConditionalGeneration",
            "MBartForConditionalGeneration",
            "WhisperForConditionalGeneration",
        }
    )

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self.table = nn.Parameter(torch.empty(settings.max_positions, settings.width))
        nn.init.normal_(self.table, std=settings.width**-0.5)
