"""Beliefs of another shape than the model's own: sharpened by a temperature, or with label smoothing undone.

A strategy needs to know nothing of it. `log_probs`, `log_prob_of` and `sample` are those of the new shape, and a search
ranks by it: `TopK.ranks_by`. `TopK.log_probs` stay the model's own, for the log_prob of a hypothesis is Σ log p_model
whatever it was ranked by, and forced decoding reproduces it.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from translume.belief import Bias, NextToken, TopK, drawn, exact_topk
from translume.decoding.step import S, Step


class Reshaped(ABC):
    """A belief made of another one, row by row."""

    normalised: bool

    def __init__(self, belief: NextToken) -> None:
        """belief: the model's own."""
        self._belief = belief
        self._before_and_after: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def _reshape(self, log_probs: Tensor) -> Tensor:
        """Log-probabilities [N, V] of the new shape, none above 0, from the model's own [N, V]."""

    @property
    def rows(self) -> int:
        return self._belief.rows

    @property
    def size(self) -> int:
        return self._belief.size

    @property
    def own(self) -> NextToken:
        """The model's own belief, below however many shapes."""
        return own_belief(self._belief)

    def _both(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N, V] before and after."""
        if self._before_and_after is None:
            before = self._belief.log_probs()
            self._before_and_after = before, self._reshape(before)
        return self._before_and_after

    def _ranks(self, bias: Bias | None) -> Tensor:
        """[N, V], with the bias; a row whose allowed tokens all lost their probability is ranked by the model's own.

        So a forced prefix goes on through a token that the new shape holds for impossible.
        """
        before, after = self._both()
        if bias is None:
            return after
        ranks = bias.add_to(after)
        lost = ranks.amax(-1).isneginf()
        return torch.where(lost[:, None], bias.add_to(before), ranks) if bool(lost.any()) else ranks

    def topk(self, k: int, bias: Bias | None = None) -> TopK:
        ranks, ids = exact_topk(self._ranks(bias), min(k, self.size))
        own = self.own
        log_probs = self._both()[0].gather(1, ids) if own is self._belief else own.log_prob_of(ids)
        return TopK(ids, log_probs, ranks)

    def log_probs(self) -> Tensor:
        return self._both()[1]

    def log_prob_of(self, ids: Tensor) -> Tensor:
        return self._both()[1].gather(1, ids)

    def sample(self, uniforms: Tensor, *, temperature: float = 1.0, bias: Bias | None = None) -> Tensor:
        return drawn(self._ranks(bias), uniforms, temperature)


class Tempered(Reshaped):
    """p ** (1/T) / Σ p ** (1/T): flatter than the model's own above T = 1, sharper below (Guo et al. 2017, section 4).

    Of a softmax this is the softmax of its logits over T. A belief that was no distribution is one afterwards.
    """

    normalised = True

    def __init__(self, belief: NextToken, temperature: float) -> None:
        super().__init__(belief)
        self._temperature = temperature

    def _reshape(self, log_probs: Tensor) -> Tensor:
        return (log_probs / self._temperature).log_softmax(-1)


class Unsmoothed(Reshaped):
    """min(max(p − ε/V, 0) / (1 − ε), 1): a belief with its label smoothing taken back (Liang et al. 2022).

    It is what the model would believe without, if it has learnt its smoothed labels. Where a token has less than the
    ε/V that smoothing wants for it, the sum comes out above one, so that this is no distribution.
    """

    normalised = False

    def __init__(self, belief: NextToken, epsilon: float) -> None:
        """epsilon: the label smoothing of the model's training."""
        super().__init__(belief)
        self._epsilon = epsilon

    def _reshape(self, log_probs: Tensor) -> Tensor:
        floor = math.log(self._epsilon / self.size)
        # Few tokens of a trained model have more than ε/V: only they are worth a logarithm.
        places = (log_probs > floor).flatten().nonzero()[:, 0]
        kept = log_probs.flatten()[places]
        # log(p − ε/V) = log p + log(1 − e^(floor − log p)), by expm1, since the two are close where it matters.
        kept = kept + torch.expm1(floor - kept).neg().log() - math.log1p(-self._epsilon)
        unsmoothed = torch.full_like(log_probs, -math.inf, memory_format=torch.contiguous_format)
        unsmoothed.view(-1)[places] = kept.clamp(max=0)
        return unsmoothed


def own_belief(belief: NextToken) -> NextToken:
    """The model's own belief, whatever shape it was given: what a log_prob is the sum of."""
    return belief.own if isinstance(belief, Reshaped) else belief


def reshaped(step: Step[S], *, temperature: float = 1.0, unsmooth: float = 0.0) -> Step[S]:
    """The step with its beliefs tempered or unsmoothed, not both; the step itself where neither is asked for."""
    if temperature == 1.0 and unsmooth == 0.0:
        return step
    if temperature != 1.0 and unsmooth != 0.0:
        raise ValueError("temperature and unsmooth: wanted at most one of them")
    return ReshapedStep(step, temperature, unsmooth)


@dataclass(frozen=True, slots=True)
class ReshapedStep(Generic[S]):
    """A step whose beliefs are tempered, or unsmoothed where `unsmooth` is above 0."""

    step: Step[S]
    temperature: float
    unsmooth: float

    def __call__(self, prefix: Tensor, state: S) -> tuple[NextToken, S]:
        belief, state = self.step(prefix, state)
        if self.unsmooth:
            return Unsmoothed(belief, self.unsmooth), state
        return Tempered(belief, self.temperature), state
