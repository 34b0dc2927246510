"""Data structures of a search: beams, candidates and hypotheses, and its exception."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from translume.errors import TranslationError
from translume.lazy import Tensor, torch

Keys = Tensor | NDArray[np.int64]
"""[B], a number for each sentence, from which its random numbers follow."""


class SearchError(TranslationError):
    """The search for a sentence cannot continue.

    sentence: its number, from 0.  token: the position of the target token, from 1.
    The message counts sentences from 1 within the batch; callers that know the line replace it.
    """

    def __init__(self, reason: str, *, sentence: int, token: int) -> None:
        super().__init__(f"sentence {sentence + 1}, token {token}: {reason}")
        self.reason, self.sentence, self.token = reason, sentence, token


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms:
    """The parts of a hypothesis's score, total / divisor + coverage.

    total: log_prob plus what rules, a language model and the strategy added.  divisor: of the length penalty.
    coverage: the coverage penalty, at most 0.
    """

    total: float
    divisor: float
    coverage: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One finished target.

    tokens: its ids without bos; the last one is eos if and only if `finished_by` is "eos".
    log_prob: nats, Σ log p_model of its tokens, a forced prefix and eos included; rules and biases do not change it.
    log_probs: of each token; their sum is log_prob.
    score: the value it is ranked by: log_prob with the rules' biases, the length and the coverage penalty.
    terms: the parts of the score.
    finished_by: "length" if it reached its sentence's limit; eos is then neither added nor counted.
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

    sentence: its number.  origin: index of the hypothesis in the previous beam that its last token continues.
    group: the strategy's group that found it.
    """

    sentence: int
    origin: int
    group: int
    hypothesis: Hypothesis


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """The live hypotheses after a step: K for each of the B sentences still searched.

    Sorted by `total`, best first; if the strategy has groups, group after group, each best first.

    sentences: [B], their numbers in the order they were given, from 0.
    tokens: [B, K, t], without bos; a view that later steps do not change.
    log_prob: [B, K], nats.  total: [B, K], log_prob with biases added.
    score: [B, K], the score if they ended now; −inf marks an empty place.
    origin: [B, K], index of the hypothesis in the sentence's previous beam that each continues.
    coverage: [B, K], the coverage penalty contained in `score`, or None.
    carried: [B, K] or [B, K, …], data of the strategy, from `Candidates.carried`, or None.
    finished: [B], whether the sentence's search ends with this step; the next beam leaves it out.
    ended: hypotheses that finished in this step, by sentence, best first. They are not among the K, except those that
        reached the limit, which are in both.
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
class BeamStatus:
    """The data from which a strategy decides whether the search of a sentence is done.

    With G groups, each group of each sentence is a row of its own: B stands for B·G and K for K/G.

    length: tokens of each live hypothesis.  limits: [B], maximum number of tokens.
    total: [B, K], of the live hypotheses, best first; −inf marks an empty place.
    best: [B, nbest], scores of the best finished hypotheses, best first; −inf where there are fewer.
    ended: [B], number of finished hypotheses.
    lift: the most that rules can add to a hypothesis's total with each further token; 0 if they only lower it.
    """

    length: int
    limits: Tensor
    total: Tensor
    best: Tensor
    ended: Tensor
    lift: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Continuations of a beam's hypotheses, [B, W] each, best first; with groups, equally many of each, in order.

    token: the next token.  origin: index of the hypothesis it continues among the sentence's K.
    log_prob, total: nats, of the whole hypothesis, without and with biases; a total of −inf marks an empty place.
    carried: data [B, W] or [B, W, …] of the strategy, which the next beam carries for candidates that continue.
    """

    token: Tensor
    origin: Tensor
    log_prob: Tensor
    total: Tensor
    carried: Tensor | None = None

    def foremost(self, count: int) -> "Candidates":
        """Return the first `count` of each sentence."""
        return self if count == self.token.size(1) else self._changed(lambda each: each[:, :count].contiguous())

    def filled(self, count: int) -> "Candidates":
        """Append empty places, up to `count` candidates per sentence."""
        missing = count - self.token.size(1)
        if missing <= 0:
            return self
        padded = self._changed(lambda each: torch.nn.functional.pad(each, (*[0, 0] * (each.dim() - 2), 0, missing)))
        padded.log_prob[:, -missing:] = padded.total[:, -missing:] = -torch.inf
        return padded

    def take(self, places: Tensor) -> "Candidates":
        """Return the candidates at `places` [B, M] of each sentence."""
        sentences = torch.arange(places.size(0), device=places.device)[:, None]
        return self._changed(lambda each: each[sentences, places])

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Candidates":
        token, origin, log_prob, total = map(change, (self.token, self.origin, self.log_prob, self.total))
        carried = None if self.carried is None else change(self.carried)
        return Candidates(token=token, origin=origin, log_prob=log_prob, total=total, carried=carried)
