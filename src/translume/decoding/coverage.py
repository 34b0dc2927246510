"""How much of the source a target has read, as a term of its score."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from translume.config import DecodingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """β · Σ_s log(min(Σ_t a_ts, 1)): 0 where all of the source was read, less where not (Wu et al. 2016, equation 15).

    a_ts: what writing token t, eos included, read of source token s. Every token that the encoder reads counts, its
    end mark too. It ranks hypotheses beside one another, as their length does; which beginnings a beam keeps is
    decided without it, by their totals.

    weight: β, at least 0.
    """

    weight: float

    @classmethod
    def of(cls, settings: DecodingSettings) -> Self | None:
        """The coverage penalty of [decoding]; None where there is none, so that no attention is computed."""
        return cls(weight=settings.coverage_penalty) if settings.coverage_penalty else None

    def score(self, read: Tensor) -> Tensor:
        """[N], of sums of attention [N, S]; 1 where no source token stands."""
        # What underflows to 0 was read a little all the same: no hypothesis is worth minus infinity for it.
        return self.weight * read.clamp(torch.finfo(read.dtype).tiny, 1.0).log().sum(-1)
