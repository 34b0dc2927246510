"""Next-token distributions shared by several heads: monotone in the logits, and over groups of tokens."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from translume.belief import Bias, Logits, TopK, check_finite, drawn, exact_topk, replace_impossible
from translume.heads.linear import accumulation_dtype
from translume.model import LossOptions

SLACK = 4
"""Search only among candidates if V is at least this many times their number; otherwise a full search is faster."""


class MonotoneBelief(ABC):
    """A distribution of logits [N, V] in which a token with a larger logit never has a smaller log-probability.

    Reading it raises BeliefError if the logits contain a NaN or an infinity.
    """

    normalised: bool = True

    def __init__(self, logits: Tensor) -> None:
        """logits: [N, V], any float dtype; computed in fp32 (fp64 for fp64)."""
        self._logits = logits.to(accumulation_dtype(logits))
        self._largest: Tensor | None = None

    @abstractmethod
    def _log_probs_of(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities [N, m] of tokens with logits [N, m]."""

    @property
    def rows(self) -> int:
        return self._logits.size(0)

    @property
    def size(self) -> int:
        return self._logits.size(1)

    def _peak(self) -> Tensor:
        """Return the largest logits [N, 1]."""
        if self._largest is None:
            self._largest = self._logits.amax(-1, keepdim=True)
            check_finite(self._largest)
        return self._largest

    def log_probs(self) -> Tensor:
        self._peak()
        return self._log_probs_of(self._logits)

    def log_prob_of(self, ids: Tensor) -> Tensor:
        self._peak()
        return self._log_probs_of(self._logits.gather(1, ids))

    def topk(self, k: int, bias: Bias | None = None) -> TopK:
        self._peak()
        k = min(k, self.size)
        ranks, ids = self._topk_of_candidates(k, bias) or exact_topk(self._biased(bias), k)
        return TopK(ids, self.log_prob_of(ids), ranks)

    def _biased(self, bias: Bias | None) -> Tensor:
        return self.log_probs() if bias is None else bias.add_to(self.log_probs())

    def _topk_of_candidates(self, k: int, bias: Bias | None) -> tuple[Tensor, Tensor] | None:
        """Return (log-probabilities with bias, ids) [N, k] of the best, found among tokens with the largest logits.

        None if these may not contain the best: with a positive bias, a mask, or more tokens that tie with the last.
        """
        lowered = 0 if bias is None else bias.lowered()
        if lowered is None or (k + lowered + 1) * SLACK > self.size:
            return None
        logits, ids = exact_topk(self._logits, k + lowered + 1)
        ranks = self._log_probs_of(logits)
        outside = ranks[:, -1]  # an upper bound for all other tokens
        if bias is not None and lowered:
            ranks = ranks + bias.values_of(ids)
        ids, by_id = ids.sort(-1)
        ranks, order = ranks.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
        ranks, ids = ranks[:, :k], ids.gather(1, order)[:, :k]
        if bool(((ranks[:, -1] <= outside) & ~outside.isneginf()).any()):
            return None
        return ranks, replace_impossible(ranks, ids, self.size)

    def sample(self, uniforms: Tensor, *, temperature: float = 1.0, bias: Bias | None = None) -> Tensor:
        return drawn(self._biased(bias), uniforms, temperature)


PATIENCE = 16
"""Maximum number of groups computed best first; if more can matter, the whole distribution is computed."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A vocabulary divided into groups.

    order: [V], ids group by group, ascending within a group, so that ties within a group are in order of ids.
    rank: [V], the index of each id in `order`.  starts: [G], the index in `order` at which each group begins.
    direct: the number of tokens before the first group, which belong to the first level directly.
    """

    order: Tensor
    rank: Tensor
    starts: Tensor
    direct: int

    def group_of(self, places: Tensor) -> Tensor:
        """Return the group of each index, −1 for tokens of the first level."""
        return torch.bucketize(places, self.starts, right=True) - 1


@dataclass(frozen=True, slots=True)
class Opened:
    """Computed groups. which: [p], indices of the requested pairs.  values: [p, m], log p(w|g, h).

    places: [p, m], indices in `order`; values are −inf where a group has fewer than m tokens.
    """

    which: Tensor
    values: Tensor
    places: Tensor


def first_level_options(options: LossOptions, groups: Groups) -> LossOptions:
    """Return the options of the first level, where label smoothing gives a group the share of its tokens."""
    if not options.label_smoothing:
        return options
    marks = torch.ones_like(groups.order) if options.smoothed is None else options.smoothed[groups.order]
    sums = marks.new_zeros(len(groups.starts), dtype=torch.long)
    sums.index_add_(
        0, groups.group_of(torch.arange(groups.direct, len(marks), device=marks.device)), marks[groups.direct :].long()
    )
    return replace(options, smoothed=torch.cat([marks[: groups.direct].long(), sums]))


def group_options(options: LossOptions, ids: Tensor) -> LossOptions:
    """Return the options inside a group of tokens `ids`: smoothing covers its smoothed tokens, or else all."""
    if not options.label_smoothing or options.smoothed is None:
        return options
    marks = options.smoothed[ids]
    return replace(options, smoothed=torch.where(marks.any(), marks, torch.ones_like(marks)))


def normalised(logits: Tensor, rows: Tensor) -> Tensor:
    """Return the log-softmax of logits [p, m], fp32 or fp64. BeliefError names one of `rows` [p] if one is NaN."""
    logits = logits.to(accumulation_dtype(logits))
    peak = logits.amax(-1, keepdim=True)
    check_finite(peak, rows)
    # At most zero, so that a token never ranks before its group.
    return (logits - peak) - (logits - peak).exp().sum(-1, keepdim=True).log()


class TwoLevel(ABC):
    """p(w|h) = p(g|h) · p(w|g, h); a group is computed only if a token of it can be among the best."""

    normalised = True

    def __init__(self, first: Tensor, groups: Groups) -> None:
        """first: logits [N, direct + G] of the tokens of the first level and of the groups."""
        self._first = Logits(first)
        self._groups = groups
        self._direct = groups.direct
        self._slots = first.size(0), len(groups.starts) + 1

    @abstractmethod
    def _open(self, rows: Tensor, groups: Tensor) -> Iterator[Opened]:
        """Compute groups [P] for rows [P], each pair once, in any order, in parts of similar size."""

    @abstractmethod
    def _inside(self) -> Tensor:
        """Return [N, V − direct]: log p(w|g, h) of all tokens in groups, by index."""

    @property
    def rows(self) -> int:
        return self._first.rows

    @property
    def size(self) -> int:
        return len(self._groups.order)

    def log_probs(self) -> Tensor:
        first = self._first.log_probs()
        places = torch.arange(self._direct, self.size, device=first.device)
        inside = first[:, self._direct + self._groups.group_of(places)] + self._inside()
        return torch.cat([first[:, : self._direct], inside], 1)[:, self._groups.rank]

    def log_prob_of(self, ids: Tensor) -> Tensor:
        first = self._first.log_probs()
        places = self._groups.rank[ids]
        groups = self._groups.group_of(places)
        log_probs = first.gather(1, torch.where(groups < 0, places, self._direct + groups))
        needed = groups.new_zeros(self._slots, dtype=torch.bool).scatter_(1, groups + 1, value=True)[:, 1:]
        rows, opened = needed.nonzero(as_tuple=True)
        for part in self._open(rows, opened):
            slots = _Slots(rows[part.which], opened[part.which], self._slots)
            row = torch.arange(self.rows, device=ids.device)[:, None].expand_as(ids)
            slot = slots.indices(row, groups)
            asked = (slot >= 0).nonzero(as_tuple=True)
            column = places[asked] - self._groups.starts[groups[asked]]
            log_probs = log_probs.index_put(asked, part.values[slot[asked], column], accumulate=True)
        return log_probs

    def sample(self, uniforms: Tensor, *, temperature: float = 1.0, bias: Bias | None = None) -> Tensor:
        return Logits(self.log_probs()).sample(uniforms, temperature=temperature, bias=bias)

    def topk(self, k: int, bias: Bias | None = None) -> TopK:
        first = self._first.log_probs()
        k = min(k, self.size)
        best = _Best.none(first, k)
        if self._direct:
            rows = torch.arange(self.rows, device=first.device)
            values = first[:, : self._direct]
            places = torch.arange(self._direct, device=first.device).expand(values.shape)
            best = best.joined(self._best_of(values, places, (rows, torch.full_like(rows, -1)), bias, k))
        if len(self._groups.starts):
            limits, which = self._limits(first[:, self._direct :], bias).sort(-1, descending=True)
            searched = self._search(first, (limits, which), best, bias)
            if searched is None:
                return self._whole(bias, k)
            best = searched
        return self._filled(best)

    def _whole(self, bias: Bias | None, k: int) -> TopK:
        log_probs = self.log_probs()
        ranks, ids = exact_topk(log_probs if bias is None else bias.add_to(log_probs), k)
        return TopK(ids, log_probs.gather(1, ids), ranks)

    def _limits(self, groups: Tensor, bias: Bias | None) -> Tensor:
        """Return [N, G]: an upper bound on the rank of a group's tokens, from log-probabilities [N, G] of groups."""
        if bias is None:
            return groups
        lift = groups.new_zeros(self.rows).scatter_reduce(0, bias.rows, bias.values.to(groups.dtype), "amax")
        limits = groups + lift[:, None]
        if bias.allowed is not None:
            allowed = bias.allowed[..., self._groups.order[self._direct :]].expand(self.rows, -1)
            places = torch.arange(self._direct, self.size, device=groups.device)
            counts = torch.zeros_like(groups).index_add_(1, self._groups.group_of(places), allowed.to(groups.dtype))
            limits = limits.masked_fill(counts == 0, -math.inf)
        return limits

    def _search(self, first: Tensor, ranked: tuple[Tensor, Tensor], best: "_Best", bias: Bias | None) -> "_Best | None":
        """Return the best tokens of `best` and all groups, computing groups best first: 1, 2, 4, … for each row.

        None if so many groups can matter that one product for all of them is cheaper.
        """
        limits, which = ranked
        begin, count, k = 0, 1, best.ranks.size(1)
        while begin < limits.size(1):
            window = limits[:, begin : begin + count]
            # Also if equal: ties are broken by the smaller id.
            rows, columns = ((window >= best.ranks[:, -1:]) & ~window.isneginf()).nonzero(as_tuple=True)
            if not len(rows):
                break
            if count >= PATIENCE and 2 * len(rows) > window.numel():
                return None
            groups = which[rows, begin + columns]
            for part in self._open(rows, groups):
                row, group = rows[part.which], groups[part.which]
                values = part.values + first[row, self._direct + group][:, None]
                best_of_part = self._best_of(values, part.places, (row, group), bias, k)
                best = best.joined(best_of_part.spread((row, columns[part.which]), window.shape))
            begin, count = begin + count, 2 * count
        return best

    def _best_of(
        self, values: Tensor, places: Tensor, pairs: tuple[Tensor, Tensor], bias: Bias | None, k: int
    ) -> "_Best":
        """Return the k best of log-probabilities [p, m] of tokens at `places`, for (rows, groups) [p]."""
        ranks = values
        if bias is not None:
            place = self._groups.rank[bias.ids]
            group = self._groups.group_of(place)
            slot = _Slots(*pairs, self._slots).indices(bias.rows, group)
            inside = slot >= 0
            starts = torch.cat([self._groups.starts, self._groups.starts.new_zeros(1)])  # the last is of −1
            target = slot[inside], (place - starts[group])[inside]
            ranks = ranks.index_put(target, bias.values[inside].to(ranks.dtype), accumulate=True)
            if bias.allowed is not None:
                ids = self._groups.order[places]
                allowed = bias.allowed[ids] if bias.allowed.dim() == 1 else bias.allowed[pairs[0][:, None], ids]
                ranks = ranks.masked_fill(~allowed, -math.inf)
        ranks, columns = exact_topk(ranks, min(k, ranks.size(1)))
        return _Best(ranks, values.gather(1, columns), self._groups.order[places.gather(1, columns)])

    def _filled(self, best: "_Best") -> TopK:
        """Fill up with the smallest remaining ids where fewer than k tokens are allowed."""
        ids = replace_impossible(best.ranks, best.ids, self.size)
        if ids is best.ids:
            return TopK(ids, best.values, best.ranks)
        return TopK(ids, torch.where(best.ranks.isneginf(), self.log_prob_of(ids), best.values), best.ranks)


class _Slots:
    """Index of (row, group) pairs [p]."""

    def __init__(self, rows: Tensor, groups: Tensor, shape: tuple[int, int]) -> None:
        """shape: N and G + 1; the last is of group −1."""
        self._table = torch.full(shape, -1, dtype=torch.long, device=rows.device)
        self._table[rows, groups] = torch.arange(len(rows), device=rows.device)

    def indices(self, rows: Tensor, groups: Tensor) -> Tensor:
        """Return the indices of pairs, −1 for unknown ones."""
        return self._table[rows, groups]


@dataclass(frozen=True, slots=True)
class _Best:
    """Tokens [N, k] of each row, best first: ranks, log-probabilities and ids."""

    ranks: Tensor
    values: Tensor
    ids: Tensor

    @classmethod
    def none(cls, like: Tensor, k: int) -> "_Best":
        nothing = like.new_full((like.size(0), k), -math.inf)
        return cls(nothing, nothing, torch.zeros(nothing.shape, dtype=torch.long, device=like.device))

    def spread(self, places: tuple[Tensor, Tensor], shape: torch.Size) -> "_Best":
        """Return tokens [p, m] as [N, w·m], given the (row, column) of each p in a table [N, w]."""
        width = self.ranks.size(1)
        tables = (self.ranks.new_full((*shape, width), -math.inf), self.values.new_zeros(*shape, width),
                  self.ids.new_zeros(*shape, width))  # fmt: skip
        for table, own in zip(tables, (self.ranks, self.values, self.ids), strict=True):
            table[places] = own
        return _Best(*(table.flatten(1) for table in tables))

    def joined(self, other: "_Best") -> "_Best":
        """Return the k best of both, ties by smaller id."""
        k = self.ranks.size(1)
        ids, by_id = torch.cat([self.ids, other.ids], 1).sort(-1)
        ranks = torch.cat([self.ranks, other.ranks], 1).gather(1, by_id)
        ranks, by_rank = ranks.sort(dim=-1, descending=True, stable=True)
        values = torch.cat([self.values, other.values], 1).gather(1, by_id).gather(1, by_rank[:, :k])
        return _Best(ranks[:, :k], values, ids.gather(1, by_rank[:, :k]))
