"""Whether probabilities mean what they say: of what was said with confidence c, a share c should be right.

ECE, the expected calibration error: steps fall into 15 bins of equal width by their confidence, bin b holding
(b/15, (b+1)/15]; ECE = Σ_b n_b/n · |share that is right − mean confidence| (Guo et al. 2017, section 2).
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from translume.errors import DataError

BINS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Steps whose confidence is above `low` and at most `high`.

    confidence: their mean one.  accuracy: the share that is right.  Both are None where there are no steps.
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How confident, and how often right.

    ece: expected calibration error, from 0 to 1.  count: steps.  confidence: their mean one.  accuracy: share right.
    """

    ece: float
    count: int
    confidence: float
    accuracy: float
    bins: tuple[Bin, ...]

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON knows them."""
        return {**asdict(self), "bins": [asdict(each) for each in self.bins]}


class Bins:
    """Counts steps by their confidence, in groups where there are some, and what is needed of them."""

    def __init__(self, count: int = BINS, groups: int = 1) -> None:
        self._sums = torch.zeros(3, groups, count, dtype=torch.float64)

    def add(self, confidence: Tensor, right: Tensor, group: Tensor | int = 0) -> None:
        """confidence: [m], from 0 to 1.  right: [m], whether.  group: of each [m], or of all."""
        size = self._sums.size(2)
        confidence = confidence.double().cpu()
        place = ((confidence * size).ceil().long() - 1).clamp_(0, size - 1)
        rows = torch.stack([torch.ones_like(confidence), confidence, right.double().cpu()])
        where = torch.as_tensor(group, device="cpu") * size + place
        self._sums.flatten(1).index_add_(1, where, rows)

    def reliability(self, groups: Tensor | None = None) -> Reliability:
        """What was counted, of some `groups` only where they are given; DataError if that is nothing."""
        sums = self._sums if groups is None else self._sums[:, groups]
        counts, confidence, right = sums.sum(1).tolist()
        total = sum(counts)
        if not total:
            raise DataError("calibration: found no tokens, wanted at least one")
        bins = tuple(
            Bin(
                low=place / len(counts),
                high=(place + 1) / len(counts),
                count=int(n),
                confidence=confidence[place] / n if n else None,
                accuracy=right[place] / n if n else None,
            )
            for place, n in enumerate(counts)
        )
        apart = (abs(said - was) for said, was in zip(confidence, right, strict=True))
        return Reliability(
            ece=math.fsum(apart) / total,
            count=int(total),
            confidence=sum(confidence) / total,
            accuracy=sum(right) / total,
            bins=bins,
        )
