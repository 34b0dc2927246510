"""Drafts from a corpus: after the last tokens comes what came after them most often."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ORDERS = (3, 2)
"""How many last tokens are looked up; the longest that is found counts."""
MOST_TOKENS = 1 << 20
"""Most tokens of a vocabulary: three ids make one 64-bit key."""
LEAST_LIKELY = 0.1
"""A continuation ends where fewer of its like went on so in the corpus: reading what is soon taken back costs, too."""
STORED = 8
"""Tokens of a continuation that are kept."""

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Order:
    """What follows n tokens.  keys: [M], sorted, one for each n tokens.  next: [M, STORED], −1 where it is over."""

    keys: Ids
    next: NDArray[np.int32]


class TableDrafts:
    """What most often follows the last 3 tokens, or else the last 2, in the targets of a corpus.

    A continuation is a chain: the token that is most frequent after n tokens, then the one after the last n tokens with
    it, and so on until a target's end, or until too few went on so; of equally frequent ones the smaller id.
    """

    def __init__(self, orders: Sequence[tuple[int, _Order]]) -> None:
        """Made by `of`."""
        self._orders = orders

    @classmethod
    def of(cls, targets: Iterable[Sequence[int]], *, bos: int, eos: int, size: int) -> Self:
        """The table of some targets' ids, given without bos and eos.  size: V.

        Raises ValueError for a vocabulary of more than 2²⁰ tokens.
        """
        if size > MOST_TOKENS:
            raise ValueError(f"a vocabulary of {size:,} tokens, wanted at most {MOST_TOKENS:,}")
        # One row of ids: each target with as many bos before it as are looked up, and eos after it.
        begin = [bos] * max(ORDERS)
        corpus = np.fromiter((id for target in targets for id in (*begin, *target, eos)), dtype=np.int64)
        return cls([(order, _order(corpus, order, bos, eos)) for order in ORDERS])

    def __len__(self) -> int:
        """How many different sequences of last tokens are known."""
        return sum(len(order.keys) for _, order in self._orders)

    def propose(self, prefix: Tensor, sentences: Tensor, most: int) -> Tensor:
        longest = max(ORDERS)
        last = prefix[:, -longest:].cpu().numpy()
        short = longest - last.shape[1]
        if short > 0:
            last = np.concatenate([np.repeat(last[:, :1], short, 1), last], 1)
        drafts = np.full((len(last), min(most, STORED)), -1, dtype=np.int64)
        missing = np.ones(len(last), dtype=bool)
        for order, table in self._orders:
            if not len(table.keys):
                continue
            keys = _keys(last[:, longest - order :])
            places = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
            found = missing & (table.keys[places] == keys)
            drafts[found] = table.next[places[found], : drafts.shape[1]]
            missing &= ~found
        return torch.from_numpy(drafts).to(prefix.device)


def _keys(ids: Ids) -> Ids:
    """[M], one number for each row of ids [M, n]."""
    keys = np.zeros(len(ids), dtype=np.int64)
    for column in ids.T:
        keys = keys * MOST_TOKENS + column
    return keys


def _order(corpus: Ids, order: int, bos: int, eos: int) -> _Order:
    """What follows `order` tokens in a corpus of targets that begin with bos and end with eos."""
    if len(corpus) <= order:
        return _Order(np.empty(0, dtype=np.int64), np.empty((0, STORED), dtype=np.int32))
    windows = np.lib.stride_tricks.sliding_window_view(corpus, order + 1)
    # Within one target, and something follows: eos before the end is another target's, bos is never written.
    windows = windows[(windows[:, :-1] != eos).all(1) & (windows[:, -1] != bos)]
    before, after = _keys(windows[:, :-1]), windows[:, -1]
    ranked = np.lexsort((after, before))
    before, after = before[ranked], after[ranked]
    first = np.flatnonzero(np.r_[True, (before[1:] != before[:-1]) | (after[1:] != after[:-1])])
    counts = np.diff(np.r_[first, len(before)])
    before, after = before[first], after[first]
    # The most frequent first, then the smaller id; of these the first for each key.
    ranked = np.lexsort((after, -counts, before))
    before, after = before[ranked], after[ranked]
    first = np.flatnonzero(np.r_[True, before[1:] != before[:-1]])
    keys, likeliest = before[first], after[first]
    share = counts[ranked][first] / np.add.reduceat(counts[ranked], first)
    following = keys % MOST_TOKENS ** (order - 1) * MOST_TOKENS + likeliest
    places = np.minimum(np.searchsorted(keys, following), len(keys) - 1)
    likeliest = np.where(likeliest == eos, -1, likeliest)
    return _Order(keys, _chained(likeliest, share, np.where(keys[places] == following, places, -1)))


def _chained(likeliest: Ids, share: NDArray[np.float64], following: Ids) -> NDArray[np.int32]:
    """[M, STORED], what follows each key, token by token; −1 where its target is over or it becomes too unlikely.

    likeliest: [M], the next token, −1 for an end.  share: [M], how often it is that one.
    following: [M], the place of the key that the two make, −1 where there is none.
    """
    chains = np.full((len(likeliest), STORED), -1, dtype=np.int32)
    places, likely = np.arange(len(likeliest)), np.ones(len(likeliest))
    for column in range(STORED):
        likely = likely * share[places]
        goes = (places >= 0) & (likeliest[places] >= 0) & (likely >= LEAST_LIKELY)
        chains[:, column] = np.where(goes, likeliest[places], -1)
        places = np.where(goes, following[places], -1)
    return chains
