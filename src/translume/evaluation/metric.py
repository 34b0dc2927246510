"""What a metric is: counts of each sentence, and a score made from their sum."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from translume.evaluation.values import Score

Counts = NDArray[np.float64]


class Metric(Protocol):
    """A metric over a whole test set; made anew for each use, since it remembers how many references it saw."""

    higher_is_better: bool

    def count(self, translations: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """[n, m]: what is counted in each of n sentences; references: one or more lists of n."""

    def score(self, total: Counts) -> Score:
        """The score of a set of sentences whose counts [m] were summed up; after `count`."""
