"""Learn the pieces of a unigram language model (Kudo 2018, section 3.2).

The `tokenizers` library learns different models from the same text, because it sums in the order of a randomly seeded
hash table. This implementation is deterministic. It works on arrays of all words of equal length.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST_PIECE = 16
MAX_SUBSTRINGS = 4_000_000
"""Maximum number of substrings to consider. From a larger text, the most frequent words are taken."""
SEED_FACTOR = 10
"""Initial candidates for each piece of the result."""
SHRINK = 0.75
"""Share of the candidates that a round of pruning keeps (as SentencePiece)."""

Grid = NDArray[np.int32]
Floats = NDArray[np.float64]


def learn_unigram(counts: Mapping[str, int], alphabet: Sequence[str], size: int) -> dict[str, float]:
    """Return at most `size` pieces with log-probabilities, likeliest first, including all characters of `alphabet`."""
    words = _within_budget(counts)
    pieces = [*alphabet, *_seeds(words, SEED_FACTOR * size)]
    required = len(alphabet)
    ids = {piece: id_ for id_, piece in enumerate(pieces)}
    texts = [(_grid(group, ids), np.array([words[word] for word in group], float)) for group in _by_length(words)]
    long = [(_grid(group, ids), [ids[piece] for piece in group]) for group in _by_length(pieces[required:])]
    lengths = np.array([len(piece) for piece in pieces], float)
    frequencies = _occurrences(texts, len(pieces))
    scores = _maximised(frequencies * lengths, required, np.ones(len(pieces), bool))
    while True:
        for _ in range(2):
            frequencies = _expected(texts, scores)
            scores = _maximised(frequencies, required, np.isfinite(scores))
        alive = int(np.isfinite(scores).sum())
        if alive <= size:
            break
        keep = max(int(alive * SHRINK), size)
        losses = np.where(np.isfinite(scores), frequencies, 0.0) * _advantage(long, scores)
        losses[:required] = np.inf
        losses[~np.isfinite(scores)] = -np.inf
        pruned = np.argsort(-losses, kind="stable")[keep:]
        scores[pruned] = -np.inf
    found = sorted((-scores[id_], piece) for piece, id_ in ids.items() if np.isfinite(scores[id_]))
    return {piece: -float(negative) for negative, piece in found}


def _within_budget(counts: Mapping[str, int]) -> dict[str, int]:
    words: dict[str, int] = {}
    left = MAX_SUBSTRINGS
    for word in sorted(counts, key=lambda word: (-counts[word], word)):
        left -= len(word) * min(len(word), LONGEST_PIECE)
        if left < 0 and words:
            break
        words[word] = counts[word]
    return words


def _seeds(words: Mapping[str, int], size: int) -> list[str]:
    """Return substrings that occur at least twice, sorted by how much of the text they cover."""
    found: Counter[str] = Counter()
    for word, count in words.items():
        for begin in range(len(word) - 1):
            for end in range(begin + 2, min(len(word), begin + LONGEST_PIECE) + 1):
                found[word[begin:end]] += count
    often = [piece for piece, count in found.items() if count > 1]
    return sorted(often, key=lambda piece: (-found[piece] * len(piece), piece))[:size]


def _by_length(words: Iterable[str]) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for word in words:
        groups.setdefault(len(word), []).append(word)
    return [groups[length] for length in sorted(groups)]


def _grid(words: Sequence[str], ids: Mapping[str, int]) -> Grid:
    """Return ids of the pieces in words of n characters [words, n starts, min(n, 16) lengths]; len(ids) for none."""
    n, none = len(words[0]), len(ids)
    widths = range(1, min(n, LONGEST_PIECE) + 1)
    flat = [
        ids.get(word[begin : begin + width], none) if begin + width <= n else none
        for word in words
        for begin in range(n)
        for width in widths
    ]
    return np.array(flat, np.int32).reshape(len(words), n, len(widths))


def _occurrences(texts: Sequence[tuple[Grid, Floats]], size: int) -> Floats:
    total = np.zeros(size + 1)
    for grid, counts in texts:
        weights = np.broadcast_to(counts[:, None, None], grid.shape)
        total += np.bincount(grid.ravel(), weights.ravel(), size + 1)
    return total[:-1]


def _maximised(frequencies: Floats, required: int, alive: NDArray[np.bool_]) -> Floats:
    """Return log-probabilities under SentencePiece's sparse prior: digamma(count) − digamma(sum of counts)."""
    kept = alive & (frequencies >= 0.5)
    kept[:required] = True
    counts = np.maximum(frequencies, 0.5)
    scores = _digamma(counts) - _digamma(np.array([counts[kept].sum()]))
    return np.where(kept, scores, -np.inf)


def _digamma(values: Floats) -> Floats:
    """Return ψ(x) for x > 0, by recurrence to x + 6 and the asymptotic series (Abramowitz and Stegun 6.3.5, 6.3.18)."""
    shifted = values + 6
    series = np.log(shifted) - 1 / (2 * shifted) - 1 / (12 * shifted**2) + 1 / (120 * shifted**4)
    return series - sum((1 / (values + k) for k in range(6)), np.zeros_like(values))


def _expected(texts: Sequence[tuple[Grid, Floats]], scores: Floats) -> Floats:
    """Return the expected count of each piece over all segmentations of the words (forward-backward)."""
    padded = np.append(scores, -np.inf)
    total = np.zeros(len(padded))
    for grid, counts in texts:
        gains = padded[grid]  # [words, n, widths]
        words, n, widths = gains.shape
        forward, backward = np.full((words, n + 1), -np.inf), np.full((words, n + 1), -np.inf)
        forward[:, 0] = backward[:, n] = 0
        for place in range(1, n + 1):
            for width in range(1, min(place, widths) + 1):
                reached = forward[:, place - width] + gains[:, place - width, width - 1]
                forward[:, place] = np.logaddexp(forward[:, place], reached)
        for place in range(n - 1, -1, -1):
            for width in range(1, min(n - place, widths) + 1):
                left = gains[:, place, width - 1] + backward[:, place + width]
                backward[:, place] = np.logaddexp(backward[:, place], left)
        for width in range(1, widths + 1):
            begins = slice(0, n - width + 1)
            log_share = forward[:, begins] + gains[:, begins, width - 1] + backward[:, width:]
            share = np.exp(log_share - forward[:, n:]) * counts[:, None]
            total += np.bincount(grid[:, begins, width - 1].ravel(), share.ravel(), len(padded))
    return total[:-1]


def _advantage(long: Sequence[tuple[Grid, list[int]]], scores: Floats) -> Floats:
    """Return the gain of each piece over its best segmentation into other pieces, in nats; 0 for characters."""
    padded = np.append(scores, -np.inf)
    result = np.zeros(len(scores))
    for grid, ids in long:
        gains = padded[grid]
        words, n, widths = gains.shape
        if widths == n:
            gains[:, 0, n - 1] = -np.inf
        best = np.full((words, n + 1), -np.inf)
        best[:, 0] = 0
        for place in range(1, n + 1):
            for width in range(1, min(place, widths) + 1):
                reached = best[:, place - width] + gains[:, place - width, width - 1]
                best[:, place] = np.maximum(best[:, place], reached)
        own = scores[ids]
        alive = np.isfinite(own)
        result[ids] = np.subtract(own, best[:, n], out=np.zeros_like(own), where=alive)
    return result
