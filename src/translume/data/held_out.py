"""The sample of the training data that is held out for validation when there are no validation files."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from translume.data.cleaning import hashes
from translume.data.pairs import Pair

SEED = 1
MAX_PAIRS = 2000
ONE_IN = 50
_CHUNK = 1 << 14


def source_hashes(pairs: list[Pair]) -> NDArray[np.uint64]:
    """Return a hash for each pair [n] that depends only on SEED and its source, or on the text of a document."""
    return hashes((pair.source or pair.target for pair in pairs), len(pairs), salt=SEED.to_bytes(16, "little"))


def choose(pairs: Iterable[Pair], *, documents: bool = False) -> NDArray[np.uint64]:
    """Return the sorted source hashes of the sample: at most 2,000 pairs and 2 % of all, but at least one.

    Sources are sampled, not pairs: every copy and every other translation of a held-out source is held out too, so that
    no source of the sample is in training. Pairs with an empty side do not count, since no corpus keeps them. Makes one
    pass over the pairs; memory is constant.  documents: whether the pairs are documents, which have no source.
    """
    lowest, copies, read = np.zeros(0, np.uint64), np.zeros(0, np.int64), 0
    for chunk in chunks(pairs, _CHUNK):
        filled = [pair for pair in chunk if (documents or pair.source.strip()) and pair.target.strip()]
        read += len(filled)
        found = source_hashes(filled)
        if len(lowest) == MAX_PAIRS:  # those above cannot be chosen any more
            found = found[found <= lowest[-1]]
        merged, where = np.unique(np.concatenate([lowest, found]), return_inverse=True)
        weights = np.concatenate([copies, np.ones(len(found), np.int64)])
        copies = np.bincount(where, weights=weights, minlength=len(merged)).astype(np.int64)[:MAX_PAIRS]
        lowest = merged[:MAX_PAIRS]
    free = min(MAX_PAIRS, max(read // ONE_IN, 1)) if read > 1 else 0
    chosen = []
    for value, count in zip(lowest.tolist(), copies.tolist(), strict=True):
        if count <= free:
            chosen.append(value)
            free -= count
    return np.array(sorted(chosen), np.uint64)


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
