"""BPE-dropout on ids: apply the merges of a tokenizer, each skipped with some probability."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from translume.text.segmentation import character_class

CACHE_SIZE = 300_000
"""Maximum number of cached segmentation states. A full cache is emptied."""
MAX_CACHED_TOKENS = 10
"""States with more tokens are not cached (except a word's first): there are too many for a second hit."""
_CLASSES = {"letter": 1, "unspaced": 2, "digit": 4, "other": 8, "mark": 15, "space": 15}


class _State:
    """A segmentation of one word, and the segmentations reachable by one merge, best merge first."""

    __slots__ = ("ids", "nexts")

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids
        self.nexts: list[_State | int] | None = None
        """Positions of the possible merges, best first; once taken, a position is replaced by the resulting state."""


class MergeDropout:
    """Draws segmentations by BPE-dropout (Provilkov et al. 2020, algorithm 1).

    At each step every applicable merge is skipped with probability `dropout`, and the best of the others is applied. A
    word is finished when no merge is left. States are cached, and one random number decides how many best merges of a
    word are applied before one is skipped, so most words cost one number and one look-up. The cache does not affect
    what is drawn.
    """

    def __init__(self, pieces: Sequence[str], pairs: Mapping[tuple[int, int], int], first: int) -> None:
        """pieces: by id.  pairs: the id that each pair merges to, in merge order.  first: the first id of text."""
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._made = pairs
        self._pieces = pieces
        self._ids = {piece: id_ for id_, piece in enumerate(pieces) if len(piece) == 1 and id_ >= first}
        reserved = [0] * first
        self._start_classes = reserved + [0 if p[0] == " " else _CLASSES[character_class(p[0])] for p in pieces[first:]]
        self._end_classes = reserved + [_CLASSES[character_class(p[-1])] for p in pieces[first:]]
        self._first = first
        self._chains: dict[tuple[int, ...], list[_State]] = {}
        self._cached = 0

    def draw(self, ids: Sequence[int], dropout: float, seed: int) -> list[int]:
        """Return ids of the same text, segmented at random. dropout in (0, 1]. Equal arguments give equal results."""
        if self._cached > CACHE_SIZE:
            self._chains, self._cached = {}, 0
        uniform, log, chains = random.Random(seed).random, math.log, self._chains
        # log(u) / log(1 - dropout) is geometric: the number of merges applied before the first skipped one
        scale = max(1 / math.log1p(-dropout), -1e300) if dropout < 1 else 0.0
        result: list[int] = []
        for word in self._split(ids):
            chain = chains.get(word) or self._chain(word)
            passed = log(1.0 - uniform()) * scale
            if passed >= len(chain) - 1:
                result += chain[-1].ids
            else:
                result += self._walk(chain[int(passed)], dropout, uniform)
        return result

    def _walk(self, state: _State, dropout: float, uniform: Callable[[], float]) -> tuple[int, ...]:
        """Return the final segmentation of a word whose best merge at `state` is skipped."""
        begin = 1
        while True:
            nexts = self._expand(state)
            index = begin
            while index < len(nexts) and uniform() < dropout:
                index += 1
            if index >= len(nexts):
                return state.ids
            state = self._merge(state, index)
            begin = 0

    def _split(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut where no merge can cross: before word marks, between character classes, around bytes."""
        begins, ends, end = self._start_classes, self._end_classes, 0
        words: list[tuple[int, ...]] = []
        word: list[int] = []
        for id_ in ids:
            if end & begins[id_]:
                word.append(id_)
            else:
                if word:
                    words.append(tuple(word))
                word = [id_]
            end = ends[id_]
        if word:
            words.append(tuple(word))
        return words

    def _chain(self, word: tuple[int, ...]) -> list[_State]:
        """Return the states of a word from its characters to its tokens if no merge is skipped."""
        known = self._ids
        if word[0] >= self._first:
            word_ids = tuple([known[character] for id_ in word for character in self._pieces[id_]])
        else:
            word_ids = word
        chain = [_State(word_ids)]
        while self._expand(chain[-1]):
            chain.append(self._merge(chain[-1], 0))
        self._chains[word] = chain
        self._cached += len(chain)
        return chain

    def _expand(self, state: _State) -> list[_State | int]:
        if state.nexts is None:
            ids, ranks = state.ids, self._ranks
            merges = [(ranks[pair], place) for place, pair in enumerate(pairwise(ids)) if pair in ranks]
            state.nexts = [place for _, place in sorted(merges)]
        return state.nexts

    def _merge(self, state: _State, index: int) -> _State:
        successor = self._expand(state)[index]
        if isinstance(successor, int):
            place, ids = successor, state.ids
            successor = _State((*ids[:place], self._made[ids[place], ids[place + 1]], *ids[place + 2 :]))
            if len(ids) <= MAX_CACHED_TOKENS and state.nexts is not None:
                state.nexts[index] = successor
                self._cached += 1
        return successor
