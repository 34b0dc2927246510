"""BPE-dropout on ids: the merges of a tokenizer applied with some of them skipped at random."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from translume.text.segmentation import character_class

CACHE = 300_000
"""Most remembered states of words; beyond, all are forgotten and found anew."""
SHORT = 10
"""States of more tokens are not remembered (but for a word's first): they are too many to be met again."""
_CLASSES = {"letter": 1, "unspaced": 2, "digit": 4, "other": 8, "mark": 15, "space": 15}


class _State:
    """A segmentation of one word, and the segmentations that its possible merges lead to, best merge first."""

    __slots__ = ("ids", "nexts")

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids
        self.nexts: list[_State | int] | None = None
        """Positions of the possible merges, best first; each is replaced by the state it leads to once taken."""


class MergeDropout:
    """Draws segmentations by BPE-dropout (Provilkov et al. 2020, algorithm 1).

    At each step every applicable merge is skipped with probability `dropout` and the best one left is applied; a
    word is done when none is left. States of words are remembered, and one random number says how many best merges
    of a word pass before one is skipped, so that most words cost one number and one look-up. What is drawn does not
    depend on what is remembered.
    """

    def __init__(self, pieces: Sequence[str], pairs: Mapping[tuple[int, int], int], first: int) -> None:
        """`pieces` by id, the id made by each pair of ids in order of merging; ids from `first` on are text."""
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._made = pairs
        self._pieces = pieces
        self._ids = {piece: id_ for id_, piece in enumerate(pieces) if len(piece) == 1 and id_ >= first}
        reserved = [0] * first
        self._begins = reserved + [0 if p[0] == " " else _CLASSES[character_class(p[0])] for p in pieces[first:]]
        self._ends = reserved + [_CLASSES[character_class(p[-1])] for p in pieces[first:]]
        self._first = first
        self._chains: dict[tuple[int, ...], list[_State]] = {}
        self._remembered = 0

    def draw(self, ids: Sequence[int], dropout: float, seed: int) -> list[int]:
        """Ids that spell the same text, drawn anew for a dropout in (0, 1]; equal arguments give equal results."""
        if self._remembered > CACHE:
            self._chains, self._remembered = {}, 0
        uniform, log, chains = random.Random(seed).random, math.log, self._chains
        # log(u) / log(1 - dropout) is geometric: the number of merges that pass before the first one skipped
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
        """The end of a word's segmentation whose best merge at `state` is skipped."""
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
        """Cut where no merge can reach across: before marks, between classes of characters, around bytes."""
        begins, ends, end = self._begins, self._ends, 0
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
        """States of a word from its characters to its tokens when no merge is skipped."""
        known = self._ids
        if word[0] >= self._first:
            word_ids = tuple([known[character] for id_ in word for character in self._pieces[id_]])
        else:
            word_ids = word
        chain = [_State(word_ids)]
        while self._expand(chain[-1]):
            chain.append(self._merge(chain[-1], 0))
        self._chains[word] = chain
        self._remembered += len(chain)
        return chain

    def _expand(self, state: _State) -> list[_State | int]:
        if state.nexts is None:
            ids, ranks = state.ids, self._ranks
            found = [(ranks[pair], place) for place, pair in enumerate(pairwise(ids)) if pair in ranks]
            state.nexts = [place for _, place in sorted(found)]
        return state.nexts

    def _merge(self, state: _State, index: int) -> _State:
        successor = self._expand(state)[index]
        if isinstance(successor, int):
            place, ids = successor, state.ids
            successor = _State((*ids[:place], self._made[ids[place], ids[place + 1]], *ids[place + 2 :]))
            if len(ids) <= SHORT and state.nexts is not None:
                state.nexts[index] = successor
                self._remembered += 1
        return successor
