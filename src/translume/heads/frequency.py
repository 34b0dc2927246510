"""How often tokens stand in the targets of the training pairs."""

import numpy as np
from numpy.typing import NDArray

from translume.model import HeadData

MOST_PAIRS = 1 << 18
"""Pairs looked at; of a larger corpus, that many spread evenly."""


def target_counts(data: HeadData, vocabulary: int) -> NDArray[np.int64]:
    """[V]: how often each target token stands in the training pairs, one end mark a pair."""
    numbers = spread_evenly(data.corpus.pairs, MOST_PAIRS)
    counts = np.zeros(vocabulary, np.int64)
    for begin in range(0, len(numbers), 4096):
        ids = [data.corpus.target(number) for number in numbers[begin : begin + 4096]]
        counts += np.bincount(np.concatenate(ids), minlength=vocabulary)
    counts[data.end] += len(numbers)
    return counts


def spread_evenly(pairs: int, most: int) -> list[int]:
    """Numbers of `most` pairs, or of all if there are fewer, ascending and spread evenly over all of them."""
    looked = min(pairs, most)
    return [place * pairs // looked for place in range(looked)]


def by_frequency(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """[V]: token ids, the most frequent first, ties by smaller id."""
    return np.argsort(-counts, kind="stable")
