"""Statistics of the training targets: token frequencies, and tokens ordered by their neighbours."""

import numpy as np
from numpy.typing import NDArray

from translume.model import HeadData

MAX_PAIRS = 1 << 18
"""Maximum number of pairs read; from a larger corpus, this many are sampled evenly."""


def target_counts(data: HeadData, vocabulary: int) -> NDArray[np.int64]:
    """Return the count [V] of each target token in the training pairs, with one EOS per pair."""
    numbers = spread_evenly(data.corpus.pairs, MAX_PAIRS)
    counts = np.zeros(vocabulary, np.int64)
    for begin in range(0, len(numbers), 4096):
        ids = [data.corpus.target(number) for number in numbers[begin : begin + 4096]]
        counts += np.bincount(np.concatenate(ids), minlength=vocabulary)
    counts[data.end] += len(numbers)
    return counts


def spread_evenly(pairs: int, count: int) -> list[int]:
    """Return ascending indices of at most `count` pairs, spread evenly over all of them."""
    looked = min(pairs, count)
    return [place * pairs // looked for place in range(looked)]


def by_frequency(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return token ids [V] by descending frequency, ties by smaller id."""
    return np.argsort(-counts, kind="stable")


CONTEXTS = 128
"""Number of distinct neighbours on each side: the most frequent tokens, and one for all others."""
DIRECTIONS = 32
"""Number of principal components of the neighbour statistics that are used."""


def by_neighbours(data: HeadData, vocabulary: int, size: int) -> NDArray[np.int64]:
    """Return token ids [V] such that each run of `size` ids has similar neighbours in the training targets.

    A token is described by the square roots of its neighbours' relative frequencies (Hellinger distance), projected to
    principal components. Tokens are split in halves along the direction of largest variance, recursively, down to runs.
    Deterministic; O(V·log V) after counting. Needs 2·128 numbers per token.
    """
    counts = target_counts(data, vocabulary)
    ranked = by_frequency(counts)
    context = np.full(vocabulary + 1, CONTEXTS - 1)
    context[ranked[: CONTEXTS - 1]] = np.arange(min(CONTEXTS - 1, vocabulary))
    points = _principal(_neighbourhoods(data, vocabulary, context), counts)
    runs: list[NDArray[np.int64]] = []
    waiting = [ranked]
    while waiting:
        ids = waiting.pop()
        if len(ids) <= size:
            runs.append(ids)
            continue
        first = (-(-len(ids) // size) // 2) * size  # a whole number of runs
        along = ids[np.argsort(_along(points[ids]), kind="stable")]
        waiting += [along[first:], along[:first]]
    return np.concatenate(runs)


def _neighbourhoods(data: HeadData, vocabulary: int, context: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return [V, 2·CONTEXTS]: square roots of the relative frequencies of each token's left and right neighbours."""
    numbers, end = spread_evenly(data.corpus.pairs, MAX_PAIRS), np.array([data.end])
    sides = [np.zeros(vocabulary * CONTEXTS, np.float32) for _ in range(2)]
    for begin in range(0, len(numbers), 1 << 14):
        read = numbers[begin : begin + (1 << 14)]
        ids = np.concatenate([end, *(part for number in read for part in (data.corpus.target(number), end))])
        left, right = ids[:-1].astype(np.int64), ids[1:].astype(np.int64)
        for side, token, neighbour in ((0, right, left), (1, left, right)):
            cells, times = np.unique(token * CONTEXTS + context[neighbour], return_counts=True)
            sides[side][cells] += times
    shares = np.concatenate([side.reshape(vocabulary, CONTEXTS) for side in sides], 1)
    shares /= np.maximum(shares.sum(1, keepdims=True), 1)
    result: NDArray[np.float32] = np.sqrt(shares, out=shares)
    return result


def _principal(points: NDArray[np.float32], counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return [V, DIRECTIONS]: points projected to the principal components of tokens that occur."""
    seen = (counts > 0).astype(np.float32)[:, None]
    points = (points - (points * seen).sum(0) / max(seen.sum(), 1)) * seen
    _, vectors = np.linalg.eigh(points.T @ points)
    result: NDArray[np.float32] = points @ vectors[:, ::-1][:, :DIRECTIONS]
    return result


def _along(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return [n]: points [n, d] projected to their first principal component."""
    centred = points - points.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    direction = vectors[:, -1]
    result: NDArray[np.float32] = centred @ (direction * np.sign(direction[np.abs(direction).argmax()]))
    return result
