"""The predicted distribution of the next token (a belief), and the bias that rules add to it."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from translume.errors import TranslationError
from translume.lazy import Tensor, torch

BLOCK = 128
"""Columns per block of the exact fast top-k."""
CACHED_ELEMENTS = 1 << 17
"""Exponentials held at a time on a CPU, so that they fit a core's cache."""
UNSHIFTED = 60.0
"""Rows whose largest logit is at most this need no shift: sums of exponentials neither overflow nor vanish in fp32."""
COMPARED = 20_000
"""Pairs of a biased token and a candidate that are compared one by one; more are searched for."""


class BeliefError(TranslationError):
    """The logits of `row` do not form a distribution, or every token of the row is forbidden."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


@dataclass(frozen=True, slots=True)
class Bias:
    """A sparse bias and a mask that rules add to log-probabilities; −inf and False forbid a token.

    rows, ids, values: [P] each: `values` is added to the log-probability of token `ids` of row `rows`.
    allowed: [N, V] or [V], True where a token may be chosen; None allows all.
    most: the result of `lowered`, if known in advance.
    """

    rows: Tensor
    ids: Tensor
    values: Tensor
    allowed: Tensor | None = None
    most: int | None = None

    @classmethod
    def forbid(cls, rows: Tensor, ids: Tensor, most: int | None = None) -> Self:
        """Forbid token `ids` [P] in row `rows` [P]."""
        return cls(rows, ids, torch.full(ids.shape, -math.inf, device=ids.device), most=most)

    @classmethod
    def only(cls, allowed: Tensor) -> Self:
        """Allow only the tokens marked in `allowed` [N, V] or [V]."""
        none = torch.empty(0, dtype=torch.long, device=allowed.device)
        return cls(none, none, torch.empty(0, device=allowed.device), allowed)

    @classmethod
    def join(cls, parts: Sequence["Bias"]) -> "Bias | None":
        """Combine all parts; None if there are none."""
        if len(parts) < 2:
            return parts[0] if parts else None
        allowed = None
        for part in parts:
            if part.allowed is not None:
                allowed = part.allowed if allowed is None else allowed & part.allowed
        return cls(
            torch.cat([part.rows for part in parts]),
            torch.cat([part.ids for part in parts]),
            torch.cat([part.values for part in parts]),
            allowed,
        )

    def lowered(self) -> int | None:
        """Return the largest number of tokens lowered or forbidden in a row; None with a positive value or a mask."""
        if self.most is not None:
            return self.most
        if self.allowed is not None or bool((self.values > 0).any()):
            return None
        return int(self.rows.bincount().max()) if self.rows.numel() else 0

    def names(self, ids: Tensor) -> bool:
        """Return whether the bias changes any of the tokens `ids` [N, m]."""
        return bool((ids.index_select(0, self.rows) == self.ids[:, None]).any())

    def values_of(self, ids: Tensor) -> Tensor:
        """Return the values [N, m], fp32, added to tokens `ids` [N, m]; −inf for forbidden ones."""
        if self.ids.numel() * ids.size(1) > COMPARED:
            added = self._searched(ids)
        else:
            same = ids[self.rows] == self.ids[:, None]  # [P, m]
            values = torch.where(same, self.values.float()[:, None], 0.0)
            added = torch.zeros(ids.shape, device=ids.device).index_add_(0, self.rows, values)
        if self.allowed is None:
            return added
        allowed = self.allowed[ids] if self.allowed.dim() == 1 else self.allowed.gather(1, ids)
        return added.masked_fill(~allowed, -math.inf)

    def _searched(self, ids: Tensor) -> Tensor:
        """Return the sums of values of tokens `ids` [N, m] by binary search, in O((P + N·m) log P)."""
        size = 1 + int(torch.maximum(ids.max(), self.ids.max()))
        pairs, place = torch.unique(self.rows * size + self.ids, return_inverse=True)
        sums = torch.zeros(len(pairs), device=ids.device).index_add_(0, place, self.values.float())
        wanted = torch.arange(len(ids), device=ids.device)[:, None] * size + ids
        at = torch.searchsorted(pairs, wanted).clamp_(max=len(pairs) - 1)
        return torch.where(pairs[at] == wanted, sums[at], 0.0)

    def add_to(self, scores: Tensor) -> Tensor:
        """Return a copy of `scores` [N, V] with the bias added; −inf for forbidden tokens."""
        scores = scores.index_put((self.rows, self.ids), self.values.to(scores.dtype), accumulate=True)
        return scores if self.allowed is None else scores.masked_fill(~self.allowed, -math.inf)


@dataclass(frozen=True, slots=True)
class TopK:
    """The k best next tokens of each row, best first; ties in order of their ids.

    ids: [N, k].  log_probs: [N, k], log p_model in nats, fp32.  ranks_by: [N, k], log_probs with biases added;
    −inf where fewer than k tokens are allowed.
    """

    ids: Tensor
    log_probs: Tensor
    ranks_by: Tensor


class NextToken(Protocol):
    """The distribution of the next token of N rows over a vocabulary of V. Rules do not change it."""

    normalised: bool
    """Whether probabilities sum to one."""

    @property
    def rows(self) -> int:
        """N."""

    @property
    def size(self) -> int:
        """V."""

    def topk(self, k: int, bias: Bias | None = None) -> TopK:
        """Return the k best tokens by log-probability plus bias; at most V."""

    def log_probs(self) -> Tensor:
        """Return [N, V], fp32 (fp64 for a head in fp64), nats. All other methods must agree with it."""

    def log_prob_of(self, ids: Tensor) -> Tensor:
        """Return the log-probabilities [N, m], fp32, of tokens `ids` [N, m]."""

    def sample(self, uniforms: Tensor, *, temperature: float = 1.0, bias: Bias | None = None) -> Tensor:
        """Draw ids [N, count] from p_used, the distribution with bias to the power of 1/temperature.

        uniforms: [N, count], in [0, 1). Draws invert the cumulative distribution over ids in ascending order, so a
        row's draws depend only on its own distribution and uniforms.
        Raises BeliefError if all tokens of a row are forbidden.
        """


class Summary(NamedTuple):
    """Statistics of logits [N, V], computed in one pass.

    maxima: [N, blocks], the largest of each BLOCK of columns.  sums: [N, 1], Σ exp(logits), which may overflow.
    first: [N, 1], the smallest id of the largest logit; undefined for rows with a NaN.
    normaliser: [N, 1] each, the largest logit and log Σ exp(logits − largest); None if the largest logit of any row
        exceeds UNSHIFTED or is not finite.
    """

    maxima: Tensor
    sums: Tensor
    first: Tensor
    normaliser: tuple[Tensor, Tensor] | None = None


class Logits:
    """The softmax of logits [N, V]. Reading it raises BeliefError if the logits do not form a distribution."""

    normalised = True

    def __init__(self, logits: Tensor, summary: "Summary | None" = None) -> None:
        """logits: [N, V], any float dtype; computed in fp32, or in fp64 for fp64. Must not be modified afterwards.

        summary: statistics of the logits, if already computed; CPU only.
        """
        self._summary = summary
        self._logits = logits if logits.dtype == torch.float64 else logits.float()
        self._peak_and_rest: tuple[Tensor, Tensor] | None = None
        self._maxima: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """[N, V], fp32 or fp64, before normalisation and before any check."""
        return self._logits

    @property
    def rows(self) -> int:
        return self._logits.size(0)

    @property
    def size(self) -> int:
        return self._logits.size(1)

    def _normaliser(self) -> tuple[Tensor, Tensor]:
        """Return max and log Σ exp(logits − max), [N, 1] each; their sum is the normaliser."""
        if self._peak_and_rest is None and self._summary is not None and self._summary.normaliser is not None:
            self._maxima, self._peak_and_rest = self._summary.maxima, self._summary.normaliser
        if self._peak_and_rest is None:
            if self._logits.is_cpu and not (self._logits.requires_grad and torch.is_grad_enabled()):
                self._maxima, sums = maxima_and_sums(self._logits) if self._summary is None else self._summary[:2]
                peak = self._maxima.amax(-1, keepdim=True)
                # No shift is needed for precision (floats are as precise at e⁴⁰ as at 1), only to avoid overflow.
                sums = sums * peak.neg().exp_()
                near = peak.abs() <= UNSHIFTED  # False for a NaN
                if not bool(near.all()):
                    check_finite(peak)
                    # Row by row, so that a row's result does not depend on other rows.
                    which = (~near).nonzero()[:, 0]
                    sums[which] = (self._logits[which] - peak[which]).exp_().sum(-1, keepdim=True)
                # At least 1, the contribution of the peak, so that no log-probability is positive.
                rest = sums.clamp_min_(1.0).log_()
            else:
                peak = self._logits.amax(-1, keepdim=True)
                check_finite(peak)
                rest = (self._logits - peak).exp_().sum(-1, keepdim=True).log_()
            self._peak_and_rest = peak, rest
        return self._peak_and_rest

    def _normalised(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities of `logits` [N, m], which are some of each row's logits."""
        peak, rest = self._normaliser()
        # In this order, rounding errors of large logits cancel near the peak.
        return (logits - peak) - rest

    def topk(self, k: int, bias: Bias | None = None) -> TopK:
        self._normaliser()  # raises on a NaN before ranking
        k = min(k, self.size)
        if bias is None:
            values, ids = self._best(k)
            log_probs = self._normalised(values)
            return TopK(ids, log_probs, log_probs)
        values, ids, logits = self._biased(k, bias)
        log_probs = self._normalised(logits)
        return TopK(ids, log_probs, log_probs if values is logits else self._normalised(values))

    def _best(self, k: int) -> tuple[Tensor, Tensor]:
        """Return logits and ids, [N, k] each, best first."""
        if k == 1 and self._summary is not None:
            return self._normaliser()[0], self._summary.first
        return exact_topk(self._logits, k, self._maxima)

    def _biased(self, k: int, bias: Bias) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits with the bias, ids, and logits without, [N, k] each, best first."""
        lowered = bias.lowered()
        if lowered is None or k + lowered > self.size:
            values, ids = exact_topk(bias.add_to(self._logits), k)
            return values, ids, self._logits.gather(1, ids)
        # If the bias only lowers tokens, the k best that it does not name stay the best.
        logits, ids = self._best(k)
        if not bias.names(ids):
            return logits, ids, logits
        logits, ids = exact_topk(self._logits, k + lowered, self._maxima)
        ids, by_id = ids.sort(-1)
        logits = logits.gather(1, by_id)
        values, order = (logits + bias.values_of(ids)).sort(dim=-1, descending=True, stable=True)
        order = order[:, :k]
        return values[:, :k], ids.gather(1, order), logits.gather(1, order)

    def log_probs(self) -> Tensor:
        return self._normalised(self._logits)

    def log_prob_of(self, ids: Tensor) -> Tensor:
        return self._normalised(self._logits.gather(1, ids))

    def sample(self, uniforms: Tensor, *, temperature: float = 1.0, bias: Bias | None = None) -> Tensor:
        self._normaliser()  # raises on a NaN, which would otherwise be taken for a forbidden token
        return drawn(self._logits if bias is None else bias.add_to(self._logits), uniforms, temperature)


def log_weights(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """Return (scores − largest) / temperature, [N, V], fp64: the logarithm of p_used up to a constant for each row.

    The difference and the quotient are rounded as `scores` are, and all that follows is fp64, so that draws do not
    depend on how a processor adds. A row that is −inf throughout stays so.
    """
    peak = scores.amax(-1, keepdim=True)
    return ((scores - peak.masked_fill(peak.isneginf(), 0.0)) / temperature).double()


def drawn(scores: Tensor, uniforms: Tensor, temperature: float = 1.0) -> Tensor:
    """Draw ids [N, count] in proportion to exp(scores / temperature), scores [N, V], one for each of `uniforms`.

    Returns the first id whose cumulative weight exceeds uniform · Σ weights; an id of weight 0 is never drawn.
    Raises BeliefError for a row that is −inf throughout.
    """
    forbidden = scores.amax(-1).isneginf()
    if bool(forbidden.any()):
        row = int(forbidden.nonzero()[0, 0])
        raise BeliefError(row, f"every next token of row {row} is forbidden")
    return drawn_from(log_weights(scores, temperature), uniforms)


def drawn_from(logarithms: Tensor, uniforms: Tensor) -> Tensor:
    """Draw ids [N, count] as `drawn`, from `log_weights` [N, V]. Every row must have a weight above 0."""
    weights = logarithms.exp()
    cumulative = weights.cumsum(-1)
    if not cumulative.is_cpu:
        # In a parallel scan, rounding can change the sum at ids of weight 0, even downwards.
        cumulative = cumulative.masked_fill_(weights == 0, 0.0).cummax(-1).values
    total = cumulative[:, -1:]
    wanted = (uniforms.double() * total).minimum(torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, wanted, right=True)


def maxima_and_sums(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maxima of logits [N, V] by block of columns, and Σ exp(logits) [N, 1], which may overflow or vanish.

    Maxima are [N, ⌈V / BLOCK⌉]. Computed a few rows at a time, so that logits are read from memory once.
    """
    count, size = logits.shape
    blocks = size // BLOCK
    whole = blocks * BLOCK
    rows = max(1, min(CACHED_ELEMENTS // size, count))
    buffer = logits.new_empty(rows, size)
    maxima = logits.new_empty(count, -(-size // BLOCK))
    sums = logits.new_empty(count, 1)
    body, tops = logits[:, :whole].view(count, blocks, BLOCK), maxima[:, :blocks]
    # Split once: slicing in the loop would take a tenth of the total time.
    for some, parts, top, total in zip(*(torch.split(each, rows) for each in (logits, body, tops, sums)), strict=True):
        if blocks:
            torch.amax(parts, -1, out=top)
        exponentials = torch.exp(some, out=buffer if len(some) == rows else buffer[: len(some)])
        torch.sum(exponentials, -1, keepdim=True, out=total)
    if whole < size:
        torch.amax(logits[:, whole:], -1, out=maxima[:, blocks])
    return maxima, sums


_checks: ContextVar[bool] = ContextVar("checks", default=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """Let distributions be read in the block although their logits may not be finite: a check waits for the GPU."""
    token = _checks.set(False)
    try:
        yield
    finally:
        _checks.reset(token)


def check_finite(peak: Tensor, rows: Tensor | None = None) -> None:
    """Raise BeliefError if one of the largest logits `peak` [p, 1] is not finite. Do nothing inside `unchecked`.

    rows: [p], their row numbers; None: 0, 1, 2, …
    """
    if not _checks.get():
        return
    broken = ~peak.isfinite()
    if bool(broken.any()):
        row = int(broken.nonzero()[0, 0])
        row = row if rows is None else int(rows[row])
        raise BeliefError(row, f"the head's logits of row {row} hold a NaN, an infinity or no finite number")


def exact_topk(scores: Tensor, k: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the k largest of scores [N, V] as (values, ids), [N, k] each, largest first, ties by smaller id.

    Only the blocks of columns with the largest maxima are searched; other blocks cannot contain any of the k.
    maxima: the maxima of scores by block, if already computed.
    """
    rows, size = scores.shape
    if k == 1:
        return _largest(scores, maxima)
    wanted = min(k + 1, size)
    blocks = size // BLOCK
    if blocks <= 2 * wanted:
        values, ids = scores.topk(wanted, -1)
    else:
        body = scores[:, : blocks * BLOCK].view(rows, blocks, BLOCK)
        largest = body.amax(-1) if maxima is None else maxima[:, :blocks]
        best = largest.topk(wanted, -1, sorted=False).indices
        each = torch.arange(rows, device=scores.device)[:, None]
        if body.is_contiguous():
            inside = body.flatten(0, 1).index_select(0, (each * blocks + best).flatten()).view(rows, wanted * BLOCK)
        else:
            inside = body[each, best].flatten(1)
        if size > blocks * BLOCK:
            inside = torch.cat([inside, scores[:, blocks * BLOCK :]], 1)
        values, places = inside.topk(wanted, -1)
        block = places // BLOCK
        columns = best * BLOCK
        if size > blocks * BLOCK:
            block.clamp_max_(wanted)
            columns = torch.nn.functional.pad(columns, (0, 1), value=blocks * BLOCK)
        ids = columns.gather(1, block) + (places - block * BLOCK)
    equal = values[:, 1:] == values[:, :-1]
    values, border = values[:, :k], values[:, -1:]
    if not bool(equal.any()):
        return values, ids[:, :k]
    ids = ids[:, :k]
    tied = equal[:, -1] if wanted > k else None
    if tied is not None and bool(tied.any()):
        which = tied.nonzero()[:, 0]
        ids = ids.index_copy(0, which, _first_of_equal(scores[which], border[which], k))
        values = scores.gather(1, ids)
    ids, by_id = ids.sort(-1)
    values, order = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _largest(scores: Tensor, maxima: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the largest of scores [N, V] and its id, [N, 1] each; ties by smaller id."""
    if maxima is None or scores.size(1) < 2 * BLOCK:
        values, ids = scores.max(-1, keepdim=True)
        return values, ids
    block = maxima.max(-1, keepdim=True).indices  # torch returns the first of equal maxima
    columns = block * BLOCK + torch.arange(BLOCK, device=scores.device)
    values, place = scores.gather(1, columns.clamp_(max=scores.size(1) - 1)).max(-1, keepdim=True)
    return values, columns.gather(1, place)


def _first_of_equal(scores: Tensor, border: Tensor, k: int) -> Tensor:
    """Return the ids [N, k] above the k-th largest value `border` [N, 1], then the smallest ids equal to it."""
    above, equal = scores > border, scores == border
    wanted = k - above.sum(-1, keepdim=True)
    return (above | (equal & (equal.cumsum(-1) <= wanted))).nonzero()[:, 1].view(-1, k)


def replace_impossible(ranks: Tensor, ids: Tensor, size: int) -> Tensor:
    """Replace ids [N, k] whose ranks [N, k], best first, are −inf by the smallest other ids below `size`."""
    lacking = ranks.isneginf()
    rows = lacking.any(-1).nonzero()[:, 0]
    if not len(rows):
        return ids
    pool = min(2 * ids.size(1), size)
    lacking, own = lacking[rows], ids[rows]
    free = torch.ones(len(rows), pool + 1, dtype=torch.bool, device=ids.device)
    free.scatter_(1, own.masked_fill(lacking, pool).clamp(max=pool), value=False)[:, -1] = False
    fillers = free.byte().argsort(dim=-1, descending=True, stable=True)  # remaining ids, ascending
    nth = (lacking.cumsum(-1) - 1).clamp(min=0)
    return ids.index_copy(0, rows, torch.where(lacking, fillers.gather(1, nth), own))
