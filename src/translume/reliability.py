"""Calibration: reliability bins and the expected calibration error (ECE).

Predictions made with confidence c should be correct with frequency c. Steps are counted in 15 bins of equal width by
confidence, bin b covering (b/15, (b+1)/15]. ECE = Σ_b n_b/n · |accuracy − mean confidence| (Guo et al. 2017, sec. 2).
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

    confidence: their mean.  accuracy: the share of correct ones.  Both are None if there are no steps.
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Calibration figures of a set of steps.

    ece: expected calibration error, 0 to 1.  count: number of steps.  confidence: their mean.  accuracy: share correct.
    """

    ece: float
    count: int
    confidence: float
    accuracy: float
    bins: tuple[Bin, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {**asdict(self), "bins": [asdict(each) for each in self.bins]}


class Bins:
    """Accumulates steps in bins by confidence, optionally in groups."""

    def __init__(self, count: int = BINS, groups: int = 1) -> None:
        self._sums = torch.zeros(3, groups, count, dtype=torch.float64)

    def add(self, confidence: Tensor, right: Tensor, group: Tensor | int = 0) -> None:
        """Add m steps.  confidence: [m], 0 to 1.  right: [m], whether each is correct.  group: [m], or one for all."""
        size = self._sums.size(2)
        confidence = confidence.double().cpu()
        place = ((confidence * size).ceil().long() - 1).clamp_(0, size - 1)
        rows = torch.stack([torch.ones_like(confidence), confidence, right.double().cpu()])
        where = torch.as_tensor(group, device="cpu") * size + place
        self._sums.flatten(1).index_add_(1, where, rows)

    def reliability(self, groups: Tensor | None = None) -> Reliability:
        """Return the figures of all groups, or of `groups`; raise DataError if there are no steps."""
        sums = self._sums if groups is None else self._sums[:, groups]
        counts, confidence, right = sums.sum(1).tolist()
        total = sum(counts)
        if not total:
            raise DataError("calibration: found no tokens, expected at least one")
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
        gaps = (abs(expected - actual) for expected, actual in zip(confidence, right, strict=True))
        return Reliability(
            ece=math.fsum(gaps) / total,
            count=int(total),
            confidence=sum(confidence) / total,
            accuracy=sum(right) / total,
            bins=bins,
        )
