"""Distributions derived from p_model, the model's own: those that a search ranks by, and those that it draws from.

`Reshaped` distributions are sharpened by a temperature, or have label smoothing removed. This is transparent to
strategies: `log_probs`, `log_prob_of` and `sample` are of the reshaped distribution, and a search ranks by it
(`TopK.ranks_by`). `TopK.log_probs` stay those of p_model, because the log_prob of a hypothesis is always Σ log p_model,
which forced decoding reproduces.

p_used is the distribution that tokens are drawn from: reshaping, rules and temperature applied, then normalised.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic

from translume.belief import Bias, NextToken, TopK, drawn, exact_topk
from translume.decoding.step import S, Step
from translume.lazy import Tensor, torch


class Reshaped(ABC):
    """A distribution computed from the model's own, row by row."""

    normalised: bool

    def __init__(self, belief: NextToken) -> None:
        """belief: the model's own distribution."""
        self._belief = belief
        self._before_and_after: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def _reshape(self, log_probs: Tensor) -> Tensor:
        """Return new log-probabilities [N, V], none above 0, from the model's own [N, V]."""

    @property
    def rows(self) -> int:
        return self._belief.rows

    @property
    def size(self) -> int:
        return self._belief.size

    @property
    def own(self) -> NextToken:
        """The model's own distribution, before any reshaping."""
        return own_belief(self._belief)

    def _both(self) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [N, V] before and after reshaping."""
        if self._before_and_after is None:
            before = self._belief.log_probs()
            self._before_and_after = before, self._reshape(before)
        return self._before_and_after

    def _ranks(self, bias: Bias | None) -> Tensor:
        """Return [N, V] with the bias. Rows whose allowed tokens all became impossible are ranked by the model's own.

        So a prefix can be forced even if reshaping gives one of its tokens probability 0.
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
    """p ** (1/T) / Σ p ** (1/T): flatter than the model's own for T > 1, sharper for T < 1 (Guo et al. 2017, sec. 4).

    For a softmax this is the softmax of its logits divided by T. The result is always normalised.
    """

    normalised = True

    def __init__(self, belief: NextToken, temperature: float) -> None:
        super().__init__(belief)
        self._temperature = temperature

    def _reshape(self, log_probs: Tensor) -> Tensor:
        return (log_probs / self._temperature).log_softmax(-1)


class Unsmoothed(Reshaped):
    """min(max(p − ε/V, 0) / (1 − ε), 1): the distribution with its label smoothing removed (Liang et al. 2022).

    This is the distribution without smoothing if the model has learnt its smoothed labels exactly. Tokens with less
    than ε/V make the sum exceed one, so the result is not normalised.
    """

    normalised = False

    def __init__(self, belief: NextToken, epsilon: float) -> None:
        """epsilon: the label smoothing used in training."""
        super().__init__(belief)
        self._epsilon = epsilon

    def _reshape(self, log_probs: Tensor) -> Tensor:
        floor = math.log(self._epsilon / self.size)
        # In a trained model few tokens exceed ε/V, so logarithms are computed for those only.
        places = (log_probs > floor).flatten().nonzero()[:, 0]
        kept = log_probs.flatten()[places]
        # log(p − ε/V) = log p + log(1 − e^(floor − log p)), by expm1 because the two are close where it matters.
        kept = kept + torch.expm1(floor - kept).neg().log() - math.log1p(-self._epsilon)
        unsmoothed = torch.full_like(log_probs, -math.inf, memory_format=torch.contiguous_format)
        unsmoothed.view(-1)[places] = kept.clamp(max=0)
        return unsmoothed


def own_belief(belief: NextToken) -> NextToken:
    """Return p_model, the distribution that log_prob sums, whether or not `belief` is reshaped."""
    return belief.own if isinstance(belief, Reshaped) else belief


def reshaped(step: Step[S], *, temperature: float = 1.0, unsmooth: float = 0.0) -> Step[S]:
    """Return the step with tempered or unsmoothed distributions (not both); the step itself with neither."""
    if temperature == 1.0 and unsmooth == 0.0:
        return step
    if temperature != 1.0 and unsmooth != 0.0:
        raise ValueError("temperature and unsmooth: expected at most one of them")
    return ReshapedStep(step, temperature, unsmooth)


@dataclass(frozen=True, slots=True)
class ReshapedStep(Generic[S]):
    """A step with tempered distributions, or unsmoothed ones if `unsmooth` is above 0."""

    step: Step[S]
    temperature: float
    unsmooth: float

    def __call__(self, prefix: Tensor, state: S) -> tuple[NextToken, S]:
        belief, state = self.step(prefix, state)
        if self.unsmooth:
            return Unsmoothed(belief, self.unsmooth), state
        return Tempered(belief, self.temperature), state


def used_log_probs(belief: NextToken, bias: Bias | None, temperature: float = 1.0) -> Tensor:
    """Return [N, V], fp32: log p_used, the biased distribution to the power of 1/temperature, normalised.

    A row in which no possible token is allowed is −inf throughout.
    """
    scores = biased_log_probs(belief, bias)
    lost = scores.amax(-1, keepdim=True).isneginf()
    return (scores.float() / temperature).log_softmax(-1).masked_fill_(lost, -math.inf)


def biased_log_probs(belief: NextToken, bias: Bias | None) -> Tensor:
    """Return [N, V]: log-probabilities with the bias, as after reshaping, before any temperature.

    As in `Reshaped._ranks`, a token that reshaping made impossible can still be forced.
    """
    scores, own = _biased(belief, bias), own_belief(belief)
    if own is belief:
        return scores
    lost = scores.amax(-1, keepdim=True).isneginf()
    return torch.where(lost, _biased(own, bias), scores) if bool(lost.any()) else scores


def token_log_probs(belief: NextToken, ids: Tensor, bias: Bias | None) -> tuple[Tensor, Tensor]:
    """Return what tokens `ids` [N, m] add to a hypothesis's log_prob and to its total, [N, m] each.

    The first is log p_model. The second is the reshaped log-probability, if any, with the rules' bias.
    """
    own = own_belief(belief)
    log_probs = own.log_prob_of(ids).float()
    ranks = log_probs
    if own is not belief:
        ranks = belief.log_prob_of(ids).float()
        ranks = torch.where(ranks.isneginf(), log_probs, ranks)
    return log_probs, ranks if bias is None else ranks + bias.values_of(ids)


def _biased(belief: NextToken, bias: Bias | None) -> Tensor:
    log_probs = belief.log_probs()
    return log_probs if bias is None else bias.add_to(log_probs)
