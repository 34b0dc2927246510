"""Fingerprints of 64 bits, and pairs that share one, found by sorting in bounded memory."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_SORTED = 1 << 22
"""Fingerprints that are sorted at a time, about."""
_DIGITS = (48, 57)
_GRAM = 4


def joined(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return one fingerprint for two of each pair [n]. Different ones have the same with a probability of 2**-64."""
    return first * np.uint64(0x9E3779B97F4A7C15) + second


def groups(
    fingerprints: NDArray[np.uint64], kept: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Yield the rows among `kept`, with equal fingerprints side by side, and whether each is the first of its group.

    fingerprints, kept: [n]. A group is in one part, and its rows are in their order. Memory: about 250 MB, whatever n
    is, since a part holds the fingerprints with one remainder.
    """
    parts = np.uint64(-(-int(np.count_nonzero(kept)) // _SORTED) or 1)
    for part in range(int(parts)):
        chosen = []
        for begin in range(0, len(fingerprints), _SORTED):
            end = begin + _SORTED
            chosen.append(begin + np.flatnonzero(kept[begin:end] & (fingerprints[begin:end] % parts == part)))
        rows = np.concatenate(chosen)
        values = fingerprints[rows]
        order = np.argsort(values, kind="stable")
        values, rows = values[order], rows[order]
        first = np.ones(len(rows), np.bool_)
        first[1:] = values[1:] != values[:-1]
        yield rows, first


def min_hashes(texts: Sequence[str], bands: int, rows: int) -> NDArray[np.uint64]:
    """Return fingerprints of each text [n, bands] by MinHash (Broder 1997) over the 4-grams of its characters.

    All digits count as the same. Two texts whose sets of 4-grams have the Jaccard similarity J have one of the
    fingerprints in common with the probability 1 − (1 − J**rows)**bands (Leskovec et al., Mining of Massive Datasets,
    3.4). A zero character separates parts of a text.
    """
    points = np.frombuffer("".join(f" {text}\0\0\0" for text in texts).encode("utf-32-le"), np.uint32)
    points = np.where((points >= _DIGITS[0]) & (points <= _DIGITS[1]), _DIGITS[0], points).astype(np.uint64)
    starts = len(points) - _GRAM + 1
    random = np.random.default_rng(0)
    grams = np.zeros(starts, np.uint64)
    for place in range(_GRAM):
        grams = _mixed(grams ^ points[place : place + starts])
    grams = grams[points[:starts] != 0]  # those of the gaps reach into the next text
    lengths = np.fromiter((1 + len(text) - text.count("\0") for text in texts), np.int64, len(texts))
    begins = np.cumsum(lengths) - lengths
    fingerprints = np.zeros((len(texts), bands), np.uint64)
    for band in range(bands):
        for factor in random.integers(0, 1 << 63, rows, np.uint64) * np.uint64(2) + np.uint64(1):
            smallest = np.minimum.reduceat(grams * factor, begins)
            fingerprints[:, band] = _mixed(fingerprints[:, band] ^ smallest)
    return fingerprints


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return values whose every bit depends on all bits, as in SplitMix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
