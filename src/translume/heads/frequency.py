"""How often tokens stand in the targets of the training pairs."""

import numpy as np
from numpy.typing import NDArray

from translume.model import HeadData

MOST_PAIRS = 1 << 18
"""Pairs looked at; of a larger corpus, that many spread evenly."""


def target_counts(data: HeadData, vocabulary: int) -> NDArray[np.int64]:
    """[V]: how often each target token stands in the training pairs, one end mark a pair."""
    pairs = data.corpus.pairs
    looked = min(pairs, MOST_PAIRS)
    counts = np.zeros(vocabulary, np.int64)
    for begin in range(0, looked, 4096):
        numbers = range(begin, min(begin + 4096, looked))
        ids = [data.corpus.target(number * pairs // looked) for number in numbers]
        counts += np.bincount(np.concatenate(ids), minlength=vocabulary)
    counts[data.end] += looked
    return counts


def by_frequency(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """[V]: token ids, the most frequent first, ties by smaller id."""
    return np.argsort(-counts, kind="stable")
