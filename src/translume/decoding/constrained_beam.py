"""Beam search for targets that must hold given phrases (Post and Vilar 2018; Hu et al. 2019)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from translume.belief import Bias, NextToken
from translume.decoding.beam import Beam, Candidates
from translume.decoding.beam_search import BeamSearch
from translume.decoding.constraints import Constraints
from translume.decoding.coverage import Coverage
from translume.decoding.length import LengthPenalty
from translume.decoding.standing import Standing
from translume.decoding.used import priced

LATE = 1e4
"""What a hypothesis that ends without a token it needs pays for each: any that holds more stands before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstrainedBeam:
    """A beam whose places are shared out by how much of the constraints each hypothesis has met.

    Candidates are the best of all, the best of each hypothesis and, whatever they are worth, the tokens that lead on in
    each unmet constraint (Post and Vilar 2018, section 3.1). Those with as many tokens met are a bank; the first of
    every bank, then the second of every bank and so on find a place (dynamic beam allocation, vectorised as by
    Hu et al. 2019, section 3). Nothing ends with eos before all is met, and those from which that can no longer be had
    within the limit come last: all is met, whatever the width, unless no room or a rule forbids it. Without constraints
    it is `beam`.

    constraints: of the search's B sentences.  limits: [B], as the search has them.  eos: its id.
    beam: how wide, how many and when to stop.
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
        """Those that end, then the K that go on, best first each; at most 2·width together."""
        constraints = self.constraints.take(beam.sentences)
        before = constraints.start() if beam.carried is None else beam.carried
        # Where all is met unless a word goes on, the end is one way not to; the best tokens may all go on with it.
        ends = constraints.awaits(before).long() * (self.eos + 1) - 1
        proposals = torch.cat([constraints.proposals(before), ends[..., None]], -1)
        pool, always = self._pool(beam, belief, bias, proposals)
        each = torch.arange(len(beam.sentences), device=before.device)[:, None]
        progress = constraints.advance(before[each, pool.origin], pool.token)
        needed = constraints.needed(progress)
        total, late = self._late(beam, pool, needed)
        best = total.argsort(dim=1, descending=True, stable=True)
        rank = torch.empty_like(best).scatter_(1, best, torch.arange(best.size(1), device=best.device).expand_as(best))
        total = total.masked_fill(~always & (rank >= 2 * self.width), -math.inf)
        # Who is late comes last: as long as anybody is in time, one that is has a place.
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
            carried=progress[each, order],
        )

    def done(self, standing: Standing) -> Tensor:
        return self.beam.done(standing)

    def _pool(self, beam: Beam, belief: NextToken, bias: Bias | None, proposals: Tensor) -> tuple[Candidates, Tensor]:
        """Candidates [B, P], none twice, and which [B, P] stay whatever others are worth."""
        size, before, count = proposals.shape
        top = belief.topk(2 * self.width, bias)
        proposed = proposals.flatten(0, 1)  # [N, A]
        log_probs, ranks = priced(belief, proposed.clamp(min=0), bias)
        twice = (proposed[:, :, None] == proposed[:, None]).tril(-1).any(-1)
        same = proposed[:, :, None] == top.ids[:, None]  # [N, A, 2·width]
        ranks = ranks.masked_fill((proposed < 0) | twice | same.any(-1), -math.inf)
        always = same.any(1)
        always[:, :2] = True  # the best of each, and another one where that is eos
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
        return pool, functional.pad(always, (0, pool.token.size(1) - always.size(1)))

    def _late(self, beam: Beam, pool: Candidates, needed: Tensor) -> tuple[Tensor, Tensor]:
        """[B, P] each: totals, −inf for those that end with less than others of their sentence; tokens too few.

        A token is too few where the limit leaves no room for it.
        """
        room = self.limits.to(needed.device)[beam.sentences][:, None] - beam.tokens.size(2) - 1
        room = room.masked_fill(pool.token == self.eos, 0)
        late = (needed - room).clamp_(min=0)
        most = torch.iinfo(late.dtype).max
        least = late.masked_fill(pool.total.isneginf() | (pool.token == self.eos), most).amin(1, keepdim=True)
        # With eos only where nothing is missing, or nothing else is possible; at the limit, with the least missing.
        least = torch.where((least == most) | (room == 0) & (pool.token != self.eos), least, 0)
        total = torch.where(room == 0, (pool.total - LATE * late).masked_fill(late > least, -math.inf), pool.total)
        return total, late


def allocated(total: Tensor, met: Tensor, ends: Tensor, width: int) -> Tensor:
    """[B, P]: 0 for candidates that end, 1 for those that go on, 2 for those without a place.

    One from every bank in turn, the bank with most `met` [B, P] first, by `total` [B, P] within it; −inf is none. What
    `ends` [B, P] takes one of the first `width` turns or none; of the others the first `width` go on.
    """
    none = total.isneginf()
    by_total = total.argsort(dim=1, descending=True, stable=True)
    bank = met.masked_fill(none, torch.iinfo(met.dtype).min).gather(1, by_total)
    bank, order = bank.sort(dim=1, descending=True, stable=True)
    order = by_total.gather(1, order)
    place = torch.arange(bank.size(1), device=bank.device).expand_as(bank)
    begins = functional.pad(bank[:, 1:] != bank[:, :-1], (1, 0), value=True)
    turn = place - place.masked_fill(~begins, 0).cummax(1).values
    # Who is late has its turns after all who are in time: one of these may only end, and leave its place to nobody.
    turn = (turn + (bank < 0) * bank.size(1)).masked_fill(bank == torch.iinfo(bank.dtype).min, 2 * bank.size(1))
    order = order.gather(1, turn.argsort(dim=1, stable=True))
    ends, none = ends.gather(1, order), none.gather(1, order)
    goes = ~ends & ~none
    goes = goes & (goes.cumsum(1) <= width)
    category = torch.full_like(order, 2)
    category = category.masked_fill(ends & ~none & (place < width), 0).masked_fill(goes, 1)
    return torch.empty_like(category).scatter_(1, order, category)


def _joined(one: Tensor, other: Tensor) -> Tensor:
    """[B, …]: what stands in one [B, K, …], then what stands in the other."""
    return torch.cat([one.flatten(1), other.flatten(1)], 1)
