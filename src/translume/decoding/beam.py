"""The values of a search: what stands after a step, and what it ends with."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms:
    """What a hypothesis's score is made of: total / divisor + coverage.

    total: its log_prob with what rules, a language model and a strategy added.  divisor: of the length penalty.
    coverage: of the coverage penalty, at most 0.
    """

    total: float
    divisor: float
    coverage: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One finished target.

    tokens: its ids without bos; eos is the last one if and only if `finished_by` is "eos".
    log_prob: nats, Σ log p_model of its own tokens, a forced prefix and eos included; no rule or bias changes it.
    log_probs: of each token, adding up to it.
    score: what it is ranked by: log_prob with the rules' biases, the length and the coverage penalty.
    terms: these, one by one.
    finished_by: "length" when its sentence's limit was reached; eos is neither added nor paid for then.
    """

    tokens: tuple[int, ...]
    log_prob: float
    log_probs: tuple[float, ...]
    score: float
    terms: ScoreTerms
    finished_by: Literal["eos", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A hypothesis that finished in a step.

    sentence: its number.  origin: the place among its sentence's K in the beam before that its last token continues.
    group: the one of its strategy's groups that found it.
    """

    sentence: int
    origin: int
    group: int
    hypothesis: Hypothesis


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """Where a search stands after a step: K hypotheses for each of B sentences still searched.

    Best first by `total`; where a strategy has groups, one group after another, each best first.

    sentences: [B], their numbers in the order they were given, from 0.
    tokens: [B, K, t], without bos; a view that no later step changes.
    log_prob: [B, K], nats.  total: [B, K], log_prob with biases added.
    score: [B, K], what they would be ranked by if they ended now; −inf where a place holds no hypothesis.
    origin: [B, K], the place among its sentence's in the beam before that each continues.
    coverage: [B, K], the coverage penalty in `score`; None where there is none.
    carried: [B, K] or [B, K, …], what the strategy gave its candidates to carry; None where it gave nothing.
    finished: [B], whether the sentence's search ends with this step; it is not in the next beam.
    ended: hypotheses that finished in this step, by sentence, best first; they are no longer among the K,
        except those that reached the limit, which stand in both.
    """

    sentences: Tensor
    tokens: Tensor
    log_prob: Tensor
    total: Tensor
    score: Tensor
    origin: Tensor
    finished: Tensor
    ended: tuple[Ending, ...] = ()
    coverage: Tensor | None = None
    carried: Tensor | None = None

    @property
    def width(self) -> int:
        """K: hypotheses per sentence."""
        return self.total.size(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Continuations of a beam's hypotheses, [B, W] each, best first, or as many of each group one group after another.

    token: the next token.  origin: the place among the sentence's K that it continues.
    log_prob, total: nats, of the whole hypothesis, without and with biases; a total of −inf is no candidate.
    carried: any numbers, [B, W] or [B, W, …], that the strategy wants back for each that goes on, as the next beam's
        `carried`.
    """

    token: Tensor
    origin: Tensor
    log_prob: Tensor
    total: Tensor
    carried: Tensor | None = None

    def foremost(self, count: int) -> "Candidates":
        """The first `count` of each sentence."""
        if count == self.token.size(1):
            return self
        return Candidates(
            token=self.token[:, :count].contiguous(),
            origin=self.origin[:, :count].contiguous(),
            log_prob=self.log_prob[:, :count].contiguous(),
            total=self.total[:, :count].contiguous(),
            carried=None if self.carried is None else self.carried[:, :count].contiguous(),
        )

    def filled(self, count: int) -> "Candidates":
        """With places that hold no candidate behind them, up to `count` of each sentence, where there are fewer."""
        missing = count - self.token.size(1)
        if missing <= 0:
            return self
        return Candidates(
            token=functional.pad(self.token, (0, missing)),
            origin=functional.pad(self.origin, (0, missing)),
            log_prob=functional.pad(self.log_prob, (0, missing), value=-torch.inf),
            total=functional.pad(self.total, (0, missing), value=-torch.inf),
            carried=None if self.carried is None else _padded(self.carried, missing),
        )

    def take(self, places: Tensor) -> "Candidates":
        """Those at `places` [B, M] of each sentence."""
        sentences = torch.arange(places.size(0), device=places.device)[:, None]
        return Candidates(
            token=self.token.gather(1, places),
            origin=self.origin.gather(1, places),
            log_prob=self.log_prob.gather(1, places),
            total=self.total.gather(1, places),
            carried=None if self.carried is None else self.carried[sentences, places],
        )


def _padded(carried: Tensor, missing: int) -> Tensor:
    """`carried` [B, W, …] with zeros for `missing` more places."""
    inner = [0, 0] * (carried.dim() - 2)
    return functional.pad(carried, (*inner, 0, missing))
