"""What targets must hold, as automata: how far each hypothesis is, and what leads on.

Every phrase of a constraint has an automaton of its own (Knuth, Morris and Pratt 1977), so that one that breaks off
goes on with the longest of its beginnings that still stands ("a a b" after "a a a"), and phrases that share a prefix or
overlap know nothing of one another. Its states, for a phrase of m tokens:

    0       a word goes on, so that the phrase cannot begin here; 1  it may begin
    1 + p   its first p tokens have been said
    1 + m   it has been said, and counts unless the next token goes on with its last word

Progress is a row of numbers for each hypothesis, which the beam carries: a strategy stays a value, and a step costs
the same however long the prefix is, as reading all tokens again would not.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

OTHERS = 4
"""Symbols for tokens that are not the phrase's own: by whether a word may part before and after them."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """The ids of what has to be said.

    apart_before, apart_after: whether no word may go on before it, or after it.
    """

    ids: tuple[int, ...]
    apart_before: bool = False
    apart_after: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Where words part, by token.

    begins: [V] bool, False where a token goes on with the word before it, if there is one.
    ends: [V] bool, False where the token after it may go on with its last word.
    space: the id of what parts two words, for phrases that are `apart_before`; None where there is none.
    """

    begins: Tensor
    ends: Tensor
    space: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What the targets of B sentences must hold: up to G different constraints each, with A phrases in all.

    A constraint is met by any of its phrases, `counts` times; what meets one may meet another. S states, Y symbols,
    M tokens of the longest phrase; what a sentence has fewer of is padding that is never asked for.

    own: [B, A, M], each phrase's tokens, −1 behind.  table: [B, A, S, Y], the next state.
    leads: [B, A, S], the token that leads on.  restarts: the same for who begins anew.
    gain: [B, A, S], tokens said of those that it costs.  gain_apart: the same if no word may go on here.
    whole: [B, A], the last state.  cost: [B, A], tokens of a phrase, its space counted.
    guarded: [B, A], whether it is `apart_after`.  member: [B, A, G], whose phrase it is.
    counts: [B, G].  cheapest: [B, G], the cost of its shortest phrase.  begins, ends: [V].
    """

    own: Tensor
    table: Tensor
    leads: Tensor
    restarts: Tensor
    gain: Tensor
    gain_apart: Tensor
    whole: Tensor
    cost: Tensor
    guarded: Tensor
    member: Tensor
    counts: Tensor
    cheapest: Tensor
    begins: Tensor
    ends: Tensor

    @classmethod
    def of(cls, wanted: Sequence[Sequence[Sequence[Phrase]]], boundaries: Boundaries) -> Self:
        """wanted: for each sentence its constraints, each a list of phrases that meet it; equal ones count up."""
        groups = [list(Counter(tuple(phrases) for phrases in each).items()) for each in wanted]
        phrases = [[phrase for alternatives, _ in each for phrase in alternatives] for each in groups]
        known = sorted({id_ for each in phrases for phrase in each for id_ in phrase.ids})
        begins = dict(zip(known, boundaries.begins[known].tolist(), strict=True))
        ends = dict(zip(known, boundaries.ends[known].tolist(), strict=True))
        automata = [
            [
                _automaton(
                    phrase, boundaries.space, tuple(begins[i] for i in phrase.ids), tuple(ends[i] for i in phrase.ids)
                )
                for phrase in each
            ]
            for each in phrases
        ]
        shape = (len(wanted), max(map(len, phrases), default=0), max(map(len, groups), default=0))
        longest = max((len(phrase.ids) for each in phrases for phrase in each), default=0)
        return cls._filled(shape, longest, automata, groups, boundaries)

    @classmethod
    def _filled(
        cls,
        shape: tuple[int, int, int],
        longest: int,
        automata: "Sequence[Sequence[_Automaton]]",
        groups: Sequence[Sequence[tuple[tuple[Phrase, ...], int]]],
        boundaries: Boundaries,
    ) -> Self:
        size, most, constraints = shape
        own = np.full((size, most, longest), -1)
        table = np.zeros((size, most, longest + 2, longest + OTHERS), dtype=np.int64)
        states = np.zeros((4, size, most, longest + 2), dtype=np.int64)
        numbers = np.zeros((3, size, most), dtype=np.int64)
        member = np.zeros((size, most, constraints), dtype=bool)
        counts, cheapest = np.zeros((2, size, constraints), dtype=np.int64)
        for row, (each, of_row) in enumerate(zip(automata, groups, strict=True)):
            owners = [number for number, (alternatives, _) in enumerate(of_row) for _ in alternatives]
            for column, (one, owner) in enumerate(zip(each, owners, strict=True)):
                length = len(one.ids)
                own[row, column, :length] = one.ids
                table[row, column, : length + 2, :length] = one.table[:, :length]
                table[row, column, : length + 2, longest:] = one.table[:, length:]
                states[:, row, column, : length + 2] = one.states
                numbers[:, row, column] = (length + 1, one.cost, one.guarded)
                member[row, column, owner] = True
                counts[row, owner] = of_row[owner][1]
                cheapest[row, owner] = min(one.cost, cheapest[row, owner] or one.cost)
        device = boundaries.begins.device
        leads, restarts, gain, gain_apart = torch.from_numpy(states).to(device)
        whole, cost, guarded = torch.from_numpy(numbers).to(device)
        return cls(
            own=torch.from_numpy(own).to(device),
            table=torch.from_numpy(table).to(device),
            leads=leads,
            restarts=restarts,
            gain=gain,
            gain_apart=gain_apart,
            whole=whole,
            cost=cost,
            guarded=guarded.bool(),
            member=torch.from_numpy(member).to(device),
            counts=torch.from_numpy(counts).to(device),
            cheapest=torch.from_numpy(cheapest).to(device),
            begins=boundaries.begins,
            ends=boundaries.ends,
        )

    @property
    def tokens(self) -> Tensor:
        """[B]: what it costs at most to meet them all; no more tokens than these are ever needed."""
        return (self.counts * self.cheapest).sum(1)

    def take(self, sentences: Tensor) -> Self:
        """Those of some `sentences`, in rising order."""
        if sentences.numel() == self.own.size(0):
            return self
        by_sentence = [field.name for field in fields(self) if field.name not in ("begins", "ends")]
        return replace(self, **{name: getattr(self, name)[sentences] for name in by_sentence})

    def start(self) -> Tensor:
        """[B, 1, A + G]: progress before the first token: states of all phrases, and how often each is still wanted."""
        states = torch.ones_like(self.whole)
        return torch.cat([states, self.counts], 1)[:, None]

    def advance(self, progress: Tensor, tokens: Tensor) -> Tensor:
        """Progress [B, P, A + G] after `tokens` [B, P]."""
        count = self.own.size(1)
        states, left = progress[..., :count], progress[..., count:]
        same = tokens[:, :, None, None] == self.own[:, None]  # [B, P, A, M]
        begins, ends = self.begins[tokens], self.ends[tokens]
        other = self.own.size(2) + 2 * begins.long() + ends.long()
        symbol = other[..., None].expand(states.shape)
        if self.own.size(2):
            found, place = same.max(-1)
            symbol = torch.where(found, place, symbol)
        each = self.table.size(3)
        after = self._at(self.table.flatten(2), states * each + symbol)
        said = (states == self.whole[:, None]) & (begins[..., None] | ~self.guarded[:, None])
        return torch.cat([after, (left - self._any(said).long()).clamp_(min=0)], -1)

    def needed(self, progress: Tensor) -> Tensor:
        """[B, P]: tokens that are enough to meet what is unmet; 0 if and only if nothing is.

        Always one token of `proposals` makes it less.
        """
        count = self.own.size(1)
        if not count:
            return progress.new_zeros(progress.shape[:2])
        states, left = progress[..., :count], progress[..., count:]
        unmet, apart = self._unmet(states, left)
        said = torch.where(apart[..., None], self._at(self.gain_apart, states), self._at(self.gain, states))
        cheapest = (self.cheapest[:, None] * self.member).sum(-1)[:, None]  # [B, 1, A], of each phrase's constraint
        saved = cheapest - self.cost[:, None] + said
        saved = saved.masked_fill(~self._of_phrases(unmet > 0), 0).amax(-1).clamp_(min=0)
        return (unmet * self.cheapest[:, None]).sum(-1) - saved

    def proposals(self, progress: Tensor) -> Tensor:
        """[B, P, A]: the token that leads on in each phrase of an unmet constraint, −1 for the others.

        Where the next token decides whether a phrase counts, one that makes it count.
        """
        count = self.own.size(1)
        states, left = progress[..., :count], progress[..., count:]
        unmet, apart = self._unmet(states, left)
        tokens = self._at(self.leads, states)
        goes_on = apart[..., None] & ~self.begins[tokens]
        tokens = torch.where(goes_on, self._at(self.restarts, states), tokens)
        return tokens.masked_fill(~self._of_phrases(unmet > 0), -1)

    def awaits(self, progress: Tensor) -> Tensor:
        """[B, P]: whether nothing is unmet but by a next token that goes on with the last word."""
        count = self.own.size(1)
        return self._unmet(progress[..., :count], progress[..., count:])[1] & (self.needed(progress) == 0)

    def _unmet(self, states: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """[B, P, G], how often each is still wanted, and [B, P], whether the next token has to begin a word."""
        said = states == self.whole[:, None]
        wanted = self._of_phrases(left > 0)
        apart = (said & wanted & self.guarded[:, None]).any(-1)
        return (left - self._any(said).long()).clamp_(min=0), apart

    def _any(self, phrases: Tensor) -> Tensor:
        """[B, P, G], for which constraints any of the marked phrases [B, P, A] stands."""
        return (phrases[..., None] & self.member[:, None]).any(2)

    def _of_phrases(self, constraints: Tensor) -> Tensor:
        """[B, P, A], the phrases of the marked constraints [B, P, G]."""
        return (constraints[:, :, None] & self.member[:, None]).any(-1)

    @staticmethod
    def _at(table: Tensor, places: Tensor) -> Tensor:
        """[B, P, A]: entries of table [B, A, …] at places [B, P, A]."""
        return table.gather(2, places.transpose(1, 2)).transpose(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Automaton:
    """One phrase's part of `Constraints`: table [m + 2, m + OTHERS], states [4, m + 2]."""

    ids: tuple[int, ...]
    table: np.ndarray
    states: np.ndarray
    cost: int
    guarded: bool


@lru_cache(maxsize=4096)
def _automaton(phrase: Phrase, space: int | None, begins: tuple[bool, ...], ends: tuple[bool, ...]) -> _Automaton:
    """begins, ends: of the phrase's own tokens."""
    ids, length = np.array(phrase.ids), len(phrase.ids)
    bridge = phrase.apart_before and not begins[0]
    if not length or (bridge and space is None):
        raise ValueError("a phrase has no tokens, or has to stand apart and nothing can part it")
    others = np.arange(OTHERS)
    symbol_begins = np.array([*begins, *(others // 2 > 0)])
    symbol_ends = np.array([*ends, *(others % 2 > 0)])
    # Where the phrase may begin after each of its tokens: the state that has forgotten all but that.
    blank = [1, *(int(end or not bridge) for end in ends)]
    table = np.zeros((length + 2, length + OTHERS), dtype=np.int64)
    table[0] = table[1] = symbol_ends | (not bridge)
    table[1, :length][ids == ids[0]] = 2
    falls = blank[1]
    for said in range(1, length):
        table[1 + said] = table[falls]
        table[1 + said, :length][ids == ids[said]] = 2 + said
        falls = table[falls, said]
    counts = symbol_begins | (not phrase.apart_after)
    table[1 + length] = np.where(counts, table[blank[length]], table[falls])
    first = [space if bridge and not may else phrase.ids[0] for may in (False, *map(bool, blank))]
    leads = [*first[:1], *phrase.ids, first[-1]]
    restarts = first
    fresh = [int(bridge and may) for may in (False, *map(bool, blank))]
    gain = [0, *(said + bridge for said in range(length)), fresh[-1]]
    lead_begins = [begins[0] or bridge, *begins, begins[0] or bool(bridge and not blank[-1])]
    gain_apart = [value if begin else new for value, begin, new in zip(gain, lead_begins, fresh, strict=True)]
    return _Automaton(
        ids=phrase.ids,
        table=table,
        states=np.array([leads, restarts, gain, gain_apart]),
        cost=length + bridge,
        guarded=phrase.apart_after,
    )
