"""The sample of the training data that is held out for validation when there are no validation files."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from translume.data.cleaning import hashes
from translume.data.pairs import Pair

SEED = 1
MAX_PAIRS = 2000
ONE_IN = 50


def source_hashes(pairs: list[Pair]) -> NDArray[np.uint64]:
    """Return a hash for each pair [n] that depends only on SEED and its source, or on the text of a document.

    If there are documents, it is that of the name of its document, which is held out as a whole.
    """
    texts = (pair.document or pair.source or pair.target for pair in pairs)
    return hashes(texts, len(pairs), salt=SEED.to_bytes(16, "little"))


class Sample:
    """Chooses the pairs to hold out in one pass over the corpus, in constant memory: at most 2,000 and 2 % of all.

    Sources are chosen, not pairs: every copy and every other translation of a held-out source is held out too, so that
    no source of the sample is in training. The sources with the lowest hashes are taken, at least one if there are two
    pairs or more, except those with more copies than the sample has room for.
    """

    def __init__(self) -> None:
        self._read = 0
        self._lowest, self._copies = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._hashes, self._numbers = np.zeros(0, np.uint64), np.zeros(0, np.int64)

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Count pairs.  hashes: their `source_hashes`, without pairs that have an empty side, which no corpus keeps."""
        self._read += len(hashes)
        if len(self._lowest) == MAX_PAIRS:  # those above cannot be chosen any more
            hashes = hashes[hashes <= self._lowest[-1]]
        merged, where = np.unique(np.concatenate([self._lowest, hashes]), return_inverse=True)
        weights = np.concatenate([self._copies, np.ones(len(hashes), np.int64)])
        self._copies = np.bincount(where, weights=weights, minlength=len(merged)).astype(np.int64)[:MAX_PAIRS]
        self._lowest = merged[:MAX_PAIRS]

    def note(self, hashes: NDArray[np.uint64], numbers: NDArray[np.int64]) -> None:
        """Remember the numbers of pairs that were counted and are in the corpus.  hashes: their `source_hashes`."""
        possible = self._lowest[self._copies <= MAX_PAIRS]
        hashes, numbers = np.concatenate([self._hashes, hashes]), np.concatenate([self._numbers, numbers])
        kept = np.isin(hashes, possible)
        self._hashes, self._numbers = hashes[kept], numbers[kept]

    def chosen(self) -> NDArray[np.int64]:
        """Return the numbers of the pairs to hold out, ascending."""
        free = min(MAX_PAIRS, max(self._read // ONE_IN, 1)) if self._read > 1 else 0
        taken = []
        for value, count in zip(self._lowest.tolist(), self._copies.tolist(), strict=True):
            if count <= free:
                taken.append(value)
                free -= count
        return np.sort(self._numbers[np.isin(self._hashes, np.array(taken, np.uint64))])

    def to_values(self) -> dict[str, Any]:
        """Return the state as JSON values; `from_values` is the inverse."""
        arrays = (self._lowest, self._copies, self._hashes, self._numbers)
        return {"read": self._read, "arrays": [each.tolist() for each in arrays]}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return a sample that continues another; a new one for an empty mapping."""
        sample = cls()
        if values:
            lowest, copies, hashes, numbers = values["arrays"]
            sample._read = int(values["read"])
            sample._lowest, sample._copies = np.array(lowest, np.uint64), np.array(copies, np.int64)
            sample._hashes, sample._numbers = np.array(hashes, np.uint64), np.array(numbers, np.int64)
        return sample


def chunks(pairs: Iterable[Pair], size: int, characters: int = 1 << 22) -> Iterator[list[Pair]]:
    """Yield lists of at most `size` pairs and about `characters` characters, so that long lines cannot fill memory."""
    rest = iter(pairs)
    while chunk := list(islice(rest, 1)):
        length = 0
        for pair in islice(rest, size - 1):
            chunk.append(pair)
            length += len(pair.source) + len(pair.target)
            if length > characters:
                break
        yield chunk
