"""The values of a search: what stands after a step, and what it ends with."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One finished target.

    tokens: its ids without bos; eos is the last one if and only if `finished_by` is "eos".
    log_prob: nats, Σ log p_model of its own tokens, a forced prefix and eos included; no rule or bias changes it.
    log_probs: of each token, adding up to it.
    score: what it is ranked by: log_prob with the rules' biases and the length penalty.
    finished_by: "length" when its sentence's limit was reached; eos is neither added nor paid for then.
    """

    tokens: tuple[int, ...]
    log_prob: float
    log_probs: tuple[float, ...]
    score: float
    finished_by: Literal["eos", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A hypothesis that finished in a step.

    sentence: its number.  origin: the place among its sentence's K in the beam before that its last token continues.
    """

    sentence: int
    origin: int
    hypothesis: Hypothesis


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """Where a search stands after a step: K hypotheses for each of B sentences still searched, best first.

    sentences: [B], their numbers in the order they were given, from 0.
    tokens: [B, K, t], without bos; a view that no later step changes.
    log_prob: [B, K], nats.  total: [B, K], log_prob with biases added.
    score: [B, K], what they would be ranked by if they ended now; −inf where a place holds no hypothesis.
    origin: [B, K], the place among its sentence's in the beam before that each continues.
    carried: [B, K], what the strategy gave its candidates to carry; None where it gave nothing.
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
    carried: Tensor | None = None

    @property
    def width(self) -> int:
        """K: hypotheses per sentence."""
        return self.total.size(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Continuations of a beam's hypotheses, [B, W] each, best first.

    token: the next token.  origin: the place among the sentence's K that it continues.
    log_prob, total: nats, of the whole hypothesis, without and with biases; a total of −inf is no candidate.
    carried: any number that the strategy wants back for each that goes on, as the next beam's `carried`.
    """

    token: Tensor
    origin: Tensor
    log_prob: Tensor
    total: Tensor
    carried: Tensor | None = None

    def take(self, places: Tensor) -> "Candidates":
        """Those at `places` [B, M] of each sentence."""
        return Candidates(
            token=self.token.gather(1, places),
            origin=self.origin.gather(1, places),
            log_prob=self.log_prob.gather(1, places),
            total=self.total.gather(1, places),
            carried=None if self.carried is None else self.carried.gather(1, places),
        )
