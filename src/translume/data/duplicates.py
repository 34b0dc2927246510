"""Which texts stood before: a set of 64-bit hashes in 8 bytes a text, 16 while it grows."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def hashes(texts: Iterable[str], count: int, salt: bytes = b"") -> NDArray[np.uint64]:
    """The 64-bit hash of each text; two of 200 million differ wrongly in none with probability 0.999."""
    digests = b"".join(blake2b(text.encode("utf-8"), digest_size=8, salt=salt).digest() for text in texts)
    return np.frombuffer(digests, np.uint64, count)


class Seen:
    """A growing set of hashes: sorted runs, each at least twice as long as the next, merged as they come.

    Python's set takes 100 bytes and more for each; here a new array is merged with the runs not longer than itself.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, found: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Add hashes [n]; True where one stood before, in an earlier call or earlier in this one."""
        values, first = np.unique(found, return_index=True)
        old = np.zeros(len(values), np.bool_)
        for run in self._runs:
            position = np.minimum(np.searchsorted(run, values), len(run) - 1)
            old |= run[position] == values
        repeated = np.ones(len(found), np.bool_)
        repeated[first] = old
        fresh = values[~old]
        if len(fresh):
            self._insert(fresh)
        return repeated

    def _insert(self, run: NDArray[np.uint64]) -> None:
        smaller = [run]
        size = len(run)
        while self._runs and len(self._runs[-1]) <= 2 * size:
            size += len(self._runs[-1])
            smaller.append(self._runs.pop())
        if len(smaller) > 1:
            run = np.concatenate(smaller)
            smaller.clear()
            run.sort()
        self._runs.append(run)
