"""Lexically constrained beam search: targets that must contain given phrases (Post and Vilar 2018; Hu et al. 2019).

Each phrase of a constraint has an automaton of its own (Knuth, Morris and Pratt 1977), so a broken-off match continues
with the longest prefix of the phrase that still matches ("a a b" after "a a a"), and phrases may overlap or share
prefixes. Its states, for a phrase of m tokens:

    0       inside a word, so that the phrase cannot begin here; 1  it may begin
    1 + p   its first p tokens have been written
    1 + m   it is complete, and counts unless the next token continues its last word

Progress is a row of numbers for each hypothesis, carried by the beam. A strategy therefore has no state of its own, and
the cost of a step does not depend on the length of the prefix.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from translume.belief import Bias, NextToken
from translume.decoding.beam import Beam, BeamStatus, Candidates
from translume.decoding.beam_search import BeamSearch
from translume.decoding.scoring import Coverage, LengthPenalty
from translume.decoding.used_distribution import token_log_probs
from translume.lazy import Tensor, torch

OTHERS = 4
"""Symbols for tokens outside the phrase: by whether a word may begin with and end after them."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """The ids of a required phrase.

    apart_before, apart_after: whether it must begin, or end, at a word boundary.
    """

    ids: tuple[int, ...]
    apart_before: bool = False
    apart_after: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Word boundaries, by token.

    begins: [V] bool, False if a token continues the preceding word.
    ends: [V] bool, False if the next token may continue its last word.
    space: the id that separates two words, for phrases that are `apart_before`; None if there is none.
    """

    begins: Tensor
    ends: Tensor
    space: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """The constraints of B sentences: up to G different ones each, with up to A phrases in all.

    A constraint is met when any of its phrases has been written `counts` times; tokens may count for several
    constraints. S states, Y symbols, M tokens of the longest phrase; shorter dimensions are padded.

    own: [B, A, M], each phrase's tokens, padded with −1.  table: [B, A, S, Y], the next state.
    leads: [B, A, S], the token that continues the phrase.  restarts: the token that begins it again.
    gain: [B, A, S], tokens of its cost already written.  gain_apart: the same if a word must begin here.
    whole: [B, A], the state of a complete phrase.  cost: [B, A], tokens of a phrase, with the space before it.
    guarded: [B, A], whether it is `apart_after`.  member: [B, A, G], the constraint it belongs to.
    counts: [B, G].  cheapest: [B, G], the cost of the constraint's shortest phrase.  begins, ends: [V].
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
    def from_phrases(cls, required: Sequence[Sequence[Sequence[Phrase]]], boundaries: Boundaries) -> Self:
        """Build the constraints of some sentences.

        required: for each sentence its constraints, each a list of alternative phrases. Equal constraints are counted.
        """
        groups = [list(Counter(tuple(phrases) for phrases in each).items()) for each in required]
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
        shape = (len(required), max(map(len, phrases), default=0), max(map(len, groups), default=0))
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
        size, phrases, constraints = shape
        own = np.full((size, phrases, longest), -1)
        table = np.zeros((size, phrases, longest + 2, longest + OTHERS), dtype=np.int64)
        states = np.zeros((4, size, phrases, longest + 2), dtype=np.int64)
        numbers = np.zeros((3, size, phrases), dtype=np.int64)
        member = np.zeros((size, phrases, constraints), dtype=bool)
        counts, cheapest = np.zeros((2, size, constraints), dtype=np.int64)
        for row, (each, of_row) in enumerate(zip(automata, groups, strict=True)):
            owners = [number for number, (alternatives, _) in enumerate(of_row) for _ in alternatives]
            for column, (automaton, owner) in enumerate(zip(each, owners, strict=True)):
                length = len(automaton.ids)
                own[row, column, :length] = automaton.ids
                table[row, column, : length + 2, :length] = automaton.table[:, :length]
                table[row, column, : length + 2, longest:] = automaton.table[:, length:]
                states[:, row, column, : length + 2] = automaton.states
                numbers[:, row, column] = (length + 1, automaton.cost, automaton.guarded)
                member[row, column, owner] = True
                counts[row, owner] = of_row[owner][1]
                cheapest[row, owner] = min(automaton.cost, cheapest[row, owner] or automaton.cost)
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
        """[B]: the number of tokens that suffices to meet all constraints."""
        return (self.counts * self.cheapest).sum(1)

    def take(self, sentences: Tensor) -> Self:
        """Return the constraints of some `sentences`, in ascending order."""
        if sentences.numel() == self.own.size(0):
            return self
        by_sentence = [field.name for field in fields(self) if field.name not in ("begins", "ends")]
        return replace(self, **{name: getattr(self, name)[sentences] for name in by_sentence})

    def start(self) -> Tensor:
        """Return progress [B, 1, A + G] before the first token: phrase states, then the outstanding counts."""
        states = torch.ones_like(self.whole)
        return torch.cat([states, self.counts], 1)[:, None]

    def advance(self, progress: Tensor, tokens: Tensor) -> Tensor:
        """Return progress [B, P, A + G] after `tokens` [B, P]."""
        count = self.own.size(1)
        states, left = progress[..., :count], progress[..., count:]
        same = tokens[:, :, None, None] == self.own[:, None]  # [B, P, A, M]
        begins, ends = self.begins[tokens], self.ends[tokens]
        other = self.own.size(2) + 2 * begins.long() + ends.long()
        symbol = other[..., None].expand(states.shape)
        if self.own.size(2):
            matches, place = same.max(-1)
            symbol = torch.where(matches, place, symbol)
        symbols = self.table.size(3)
        after = self._at(self.table.flatten(2), states * symbols + symbol)
        said = (states == self.whole[:, None]) & (begins[..., None] | ~self.guarded[:, None])
        return torch.cat([after, (left - self._any(said).long()).clamp_(min=0)], -1)

    def needed(self, progress: Tensor) -> Tensor:
        """Return [B, P], a number of tokens that suffices to meet all unmet constraints; 0 if and only if all are met.

        At least one token of `proposals` reduces it.
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
        """Return [B, P, A], the token that continues each phrase of an unmet constraint, −1 for the others.

        If the next token decides whether a complete phrase counts, it is a token that makes it count.
        """
        count = self.own.size(1)
        states, left = progress[..., :count], progress[..., count:]
        unmet, apart = self._unmet(states, left)
        tokens = self._at(self.leads, states)
        goes_on = apart[..., None] & ~self.begins[tokens]
        tokens = torch.where(goes_on, self._at(self.restarts, states), tokens)
        return tokens.masked_fill(~self._of_phrases(unmet > 0), -1)

    def awaits_word_end(self, progress: Tensor) -> Tensor:
        """Return [B, P], whether all constraints are met unless the next token continues the last word."""
        count = self.own.size(1)
        return self._unmet(progress[..., :count], progress[..., count:])[1] & (self.needed(progress) == 0)

    def _unmet(self, states: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """Return outstanding counts [B, P, G], and [B, P], whether the next token must begin a word."""
        said = states == self.whole[:, None]
        wanted = self._of_phrases(left > 0)
        apart = (said & wanted & self.guarded[:, None]).any(-1)
        return (left - self._any(said).long()).clamp_(min=0), apart

    def _any(self, phrases: Tensor) -> Tensor:
        """Return [B, P, G], the constraints to which any of the marked phrases [B, P, A] belongs."""
        return (phrases[..., None] & self.member[:, None]).any(2)

    def _of_phrases(self, constraints: Tensor) -> Tensor:
        """Return [B, P, A], the phrases of the marked constraints [B, P, G]."""
        return (constraints[:, :, None] & self.member[:, None]).any(-1)

    @staticmethod
    def _at(table: Tensor, places: Tensor) -> Tensor:
        """Return [B, P, A]: entries of table [B, A, …] at places [B, P, A]."""
        return table.gather(2, places.transpose(1, 2)).transpose(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Automaton:
    """One phrase's part of `Constraints`.

    table: [m + 2, m + OTHERS].  states: [4, m + 2]: leads, restarts, gain, gain_apart.
    """

    ids: tuple[int, ...]
    table: np.ndarray
    states: np.ndarray
    cost: int
    guarded: bool


@lru_cache(maxsize=4096)
def _automaton(phrase: Phrase, space: int | None, begins: tuple[bool, ...], ends: tuple[bool, ...]) -> _Automaton:
    """Build the automaton of a phrase.  begins, ends: `Boundaries` of the phrase's own tokens."""
    ids, length = np.array(phrase.ids), len(phrase.ids)
    bridge = phrase.apart_before and not begins[0]
    if not length:
        raise ValueError("a phrase has no tokens")
    outside = np.arange(OTHERS)
    symbol_begins = np.array([*begins, *(outside // 2 > 0)])
    symbol_ends = np.array([*ends, *(outside % 2 > 0)])
    # The state after each token if the match is abandoned: 1 if the phrase may begin there, otherwise 0.
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
    lead = -1 if space is None else space  # without a token for the space, another phrase leads to a word's begin
    first = [lead if bridge and not may else phrase.ids[0] for may in (False, *map(bool, blank))]
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


COST_OF_UNMET_TOKEN = 1e4
"""Cost of each missing token of a hypothesis that ends with unmet constraints; it outweighs log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstrainedBeam:
    """Beam search with dynamic beam allocation (Post and Vilar 2018, section 3.1; Hu et al. 2019, section 3).

    Candidates are the best of all, the best of each hypothesis, and always the tokens that continue each unmet
    constraint. Candidates with equally many constraint tokens form a bank. Places in the beam go to the best of every
    bank, then to the second best of every bank, and so on. No hypothesis ends with eos before all constraints are met.
    Hypotheses that can no longer meet them within the limit come last. So all constraints are met at any beam width,
    unless the limit or a rule prevents it. Without constraints this is `beam`.

    constraints: of the search's B sentences.  limits: [B], those of the search.  eos: its id.
    beam: the width, nbest and stopping rule.
    """

    groups: ClassVar[int] = 1

    beam: BeamSearch
    constraints: Constraints
    limits: Tensor
    eos: int

    @property
    def width(self) -> int:
        return self.beam.width

    @property
    def nbest(self) -> int:
        return self.beam.nbest

    @property
    def length_penalty(self) -> LengthPenalty:
        return self.beam.length_penalty

    @property
    def coverage(self) -> Coverage | None:
        return self.beam.coverage

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        """Return the candidates that end, then the K that continue, best first each; at most 2·width in all."""
        constraints = self.constraints.take(beam.sentences)
        before = constraints.start() if beam.carried is None else beam.carried
        # If constraints are met unless the last word continues, propose eos: the best tokens may all continue the word.
        ends = constraints.awaits_word_end(before).long() * (self.eos + 1) - 1
        proposals = torch.cat([constraints.proposals(before), ends[..., None]], -1)
        pool, always = self._pool(beam, belief, bias, proposals)
        rows = torch.arange(len(beam.sentences), device=before.device)[:, None]
        progress = constraints.advance(before[rows, pool.origin], pool.token)
        needed = constraints.needed(progress)
        total, late = self._late(beam, pool, needed)
        best = total.argsort(dim=1, descending=True, stable=True)
        rank = torch.empty_like(best).scatter_(1, best, torch.arange(best.size(1), device=best.device).expand_as(best))
        total = total.masked_fill(~always & (rank >= 2 * self.width), -math.inf)
        # Candidates that cannot meet the constraints within the limit have negative banks, so they come last.
        met = torch.where(late > 0, -late, constraints.tokens[:, None] - needed)
        category = allocated(total, met, pool.token == self.eos, self.width)
        total = total.masked_fill(category == 2, -math.inf)
        order = total.argsort(dim=1, descending=True, stable=True)
        order = order.gather(1, category.gather(1, order).argsort(dim=1, stable=True))[:, : 2 * self.width]
        return Candidates(
            token=pool.token.gather(1, order),
            origin=pool.origin.gather(1, order),
            log_prob=pool.log_prob.gather(1, order),
            total=total.gather(1, order),
            carried=progress[rows, order],
        )

    def done(self, status: BeamStatus) -> Tensor:
        return self.beam.done(status)

    def _pool(self, beam: Beam, belief: NextToken, bias: Bias | None, proposals: Tensor) -> tuple[Candidates, Tensor]:
        """Return distinct candidates [B, P], and which [B, P] are kept regardless of their totals."""
        size, before, count = proposals.shape
        top = belief.topk(2 * self.width, bias)
        proposed = proposals.flatten(0, 1)  # [N, A]
        log_probs, ranks = token_log_probs(belief, proposed.clamp(min=0), bias)
        twice = (proposed[:, :, None] == proposed[:, None]).tril(-1).any(-1)
        same = proposed[:, :, None] == top.ids[:, None]  # [N, A, 2·width]
        ranks = ranks.masked_fill((proposed < 0) | twice | same.any(-1), -math.inf)
        always = same.any(1)
        always[:, :2] = True  # the best of each hypothesis, and the next one in case that is eos
        shape = (size, before, -1)
        origin = torch.arange(before, device=proposals.device)[None, :, None].expand(size, -1, top.ids.size(1))
        places = torch.arange(before, device=proposals.device)[None, :, None].expand(size, -1, count)
        pool = Candidates(
            token=_joined(top.ids.view(shape), proposals.clamp(min=0)),
            origin=_joined(origin, places),
            log_prob=_joined(
                beam.log_prob[..., None] + top.log_probs.view(shape), beam.log_prob[..., None] + log_probs.view(shape)
            ),
            total=_joined(
                beam.total[..., None] + top.ranks_by.view(shape),
                beam.total[..., None] + ranks.view(size, before, count),
            ),
        )
        pool = pool.filled(2 * self.width)
        always = _joined(always.view(shape), torch.ones_like(proposals, dtype=torch.bool))
        return pool, torch.nn.functional.pad(always, (0, pool.token.size(1) - always.size(1)))

    def _late(self, beam: Beam, pool: Candidates, needed: Tensor) -> tuple[Tensor, Tensor]:
        """Return totals, −inf for candidates that must not end, and the number of tokens beyond the limit, [B, P] each.

        A candidate may end with eos only if nothing is missing or nothing else is possible.
        """
        room = self.limits.to(needed.device)[beam.sentences][:, None] - beam.tokens.size(2) - 1
        room = room.masked_fill(pool.token == self.eos, 0)
        late = (needed - room).clamp_(min=0)
        largest = torch.iinfo(late.dtype).max
        smallest = late.masked_fill(pool.total.isneginf() | (pool.token == self.eos), largest).amin(1, keepdim=True)
        # End with eos only if nothing is missing or nothing else is possible; at the limit, with the least missing.
        smallest = torch.where((smallest == largest) | (room == 0) & (pool.token != self.eos), smallest, 0)
        total = torch.where(
            room == 0, (pool.total - COST_OF_UNMET_TOKEN * late).masked_fill(late > smallest, -math.inf), pool.total
        )
        return total, late


def allocated(total: Tensor, met: Tensor, ends: Tensor, width: int) -> Tensor:
    """Return [B, P]: 0 for candidates that end, 1 for those that continue, 2 for those without a place.

    Banks take turns, the bank with most `met` [B, P] first, by `total` [B, P] within it; a total of −inf is no
    candidate. Candidates marked in `ends` [B, P] need one of the first `width` turns; of the others the first `width`
    continue.
    """
    none = total.isneginf()
    by_total = total.argsort(dim=1, descending=True, stable=True)
    bank = met.masked_fill(none, torch.iinfo(met.dtype).min).gather(1, by_total)
    bank, order = bank.sort(dim=1, descending=True, stable=True)
    order = by_total.gather(1, order)
    place = torch.arange(bank.size(1), device=bank.device).expand_as(bank)
    begins = torch.nn.functional.pad(bank[:, 1:] != bank[:, :-1], (1, 0), value=True)
    turn = place - place.masked_fill(~begins, 0).cummax(1).values
    # Candidates beyond the limit take their turns last, since others may end and free a place.
    turn = (turn + (bank < 0) * bank.size(1)).masked_fill(bank == torch.iinfo(bank.dtype).min, 2 * bank.size(1))
    order = order.gather(1, turn.argsort(dim=1, stable=True))
    ends, none = ends.gather(1, order), none.gather(1, order)
    goes = ~ends & ~none
    goes = goes & (goes.cumsum(1) <= width)
    category = torch.full_like(order, 2)
    category = category.masked_fill(ends & ~none & (place < width), 0).masked_fill(goes, 1)
    return torch.empty_like(category).scatter_(1, order, category)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Flatten and concatenate [B, K, …] and [B, K, …] along the second dimension."""
    return torch.cat([first.flatten(1), second.flatten(1)], 1)
