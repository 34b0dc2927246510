"""Entmax: a sparse softmax that gives most tokens probability 0 (Peters et al. 2019)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from translume.belief import BLOCK, NextToken
from translume.config import EntmaxSettings
from translume.heads import chunked_cross_entropy
from translume.heads.chunked_cross_entropy import chunked_loss
from translume.heads.linear import LinearHead, accumulation_dtype, label_logits, spread
from translume.heads.next_tokens import MonotoneBelief
from translume.model import HeadLoss, HeadSizes, LossOptions
from translume.model.compiled import on_device
from translume.model.state import Selectable

MAX_STEPS = 100
"""Maximum number of Newton steps on a CPU, which stops at the last that is needed."""


class EntmaxHead(LinearHead):
    """p_v = max((α−1)·l_v − τ, 0)^(1/(α−1)) with l = W h + b, τ such that Σ p = 1 (α-entmax; Peters et al. 2019).

    The loss is the Fenchel-Young loss Σ_v p_v (l_v − l_y) + H_α(p) with the Tsallis entropy H_α. Its gradient in the
    logits is p − e_y; it is finite if p_y is zero, unlike −log p_y, and zero if p_y is one. Label smoothing adds
    ε·(l_y − l̄), as for the softmax (Peters and Martins 2021). z-loss has no effect, since there is no log Σ exp. The
    nll is not defined: it is infinite if any label is outside the support.
    """

    full_support = False
    exact_loss = False
    exact_smoothing = False

    def __init__(self, settings: EntmaxSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        super().__init__(settings, sizes, tied)
        self._alpha = settings.alpha

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        rule = _FenchelYoung(self._alpha, options.label_smoothing, spread(options, self.vocabulary, hidden))
        return HeadLoss(chunked_loss(hidden, self.weight, self.bias, labels, rule), None, labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        """Return log-probabilities [n], fp32, of labels [n]; −inf without gradient outside the support."""
        rows = chunked_cross_entropy.chunk_rows(self.vocabulary)
        parts = [
            checkpoint(self._score, part, label, use_reentrant=False)
            for part, label in zip(torch.split(hidden, rows), torch.split(labels, rows), strict=True)
        ]
        return torch.cat(parts)

    def _score(self, hidden: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(hidden, self.weight, self.bias).to(accumulation_dtype(hidden))
        if hidden.dtype != logits.dtype:
            exact = label_logits(hidden, self.weight, self.bias, labels)
            logits = logits.scatter(1, labels[:, None], exact[:, None])
        return Sparse(logits, self._alpha).log_prob_of(labels[:, None])[:, 0]

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        return Sparse(F.linear(hidden, self.weight, self.bias), self._alpha)


class Sparse(MonotoneBelief):
    """The α-entmax of logits [N, V]; log-probabilities are −inf outside the support."""

    def __init__(self, logits: Tensor, alpha: float) -> None:
        super().__init__(logits)
        self._alpha = alpha
        self._tau_and_mass: tuple[Tensor, Tensor] | None = None

    def _threshold(self) -> tuple[Tensor, Tensor]:
        """Return τ for logits minus their largest, and log Σ p, which rounding may leave unequal to 0; [N, 1] each."""
        if self._tau_and_mass is None:
            scores = (self._logits - self._peak()) * (self._alpha - 1.0)
            power = 1.0 / (self._alpha - 1.0)
            tau: Tensor = _Threshold.apply(scores, power)  # type: ignore[no-untyped-call]  # torch's has no types
            with torch.no_grad():
                mass = (scores - tau).clamp_(min=0.0).pow_(power).sum(-1, keepdim=True).log_()
            self._tau_and_mass = tau, mass
        return self._tau_and_mass

    def _log_probs_of(self, logits: Tensor) -> Tensor:
        tau, mass = self._threshold()
        above = (logits - self._peak()) * (self._alpha - 1.0) - tau
        inside = above > 0
        # 1 outside the support, since the gradient of log 0 would be NaN.
        log_probs = above.where(inside, 1.0).log() / (self._alpha - 1.0) - mass
        return log_probs.masked_fill(~inside, -torch.inf)


def threshold(scores: Tensor, power: float) -> Tensor:
    """Return τ [N, 1] with Σ_v max(s_v − τ, 0)^power = 1, for scores [N, V] with row maxima 0; power at least 1.

    Newton's method from below for the norm (Σ_v max(s_v − τ, 0)^power)^(1/power): it is convex and decreasing in τ, so
    steps never overshoot, and scores below τ stay below it. It needs fewer steps than the sum, which is the power of
    about a linear function. For power 1 this is Michelot's algorithm (1986), which ends at the exact support.
    On devices other than CPUs it makes the number of steps that `newton_steps` returns, without looking at the result.
    """
    tau = scores.new_full((len(scores), 1), -1.0)
    tolerance = 2.0 * torch.finfo(scores.dtype).eps
    buffer = scores.new_empty(0)
    reads = not on_device(scores)
    for step in range(MAX_STEPS if reads else newton_steps(scores.size(1), power)):
        if step < 2 and reads:
            scores = _drop_columns_below(scores, tau)
        if buffer.shape != scores.shape:
            buffer = torch.empty_like(scores)
        above = torch.sub(scores, tau, out=buffer).clamp_(min=0.0)
        if power == 1.0:
            slope, value = above.count_nonzero(-1)[:, None], above.sum(-1, keepdim=True)
        else:
            raised = above if power == 2.0 else above.pow(power - 1.0)
            slope = raised.sum(-1, keepdim=True)
            value = raised.mul_(above).sum(-1, keepdim=True)
        move = ((value - value.pow(1.0 - 1.0 / power)) / slope).clamp_(min=0.0)
        tau = tau + move
        if reads and not bool((move > tolerance).any()):
            break
    return tau


def newton_steps(vocabulary: int, power: float) -> int:
    """Return a number of Newton steps of `threshold` that suffices for rounding to be the largest error.

    For a convex function, each step divides the product of value and slope by at least 4 (Dinkelbach's method). The
    product is at most V^(2/power) at first, so that after log2(V) / power steps it is at most 1; a few steps of
    quadratic convergence follow. No scores that were tried needed more: for V = 2¹⁸ and power 2 the most was 10, where
    this returns 13.
    """
    return 4 + math.ceil(math.log2(vocabulary) / power)


def _drop_columns_below(scores: Tensor, tau: Tensor) -> Tensor:
    """Remove blocks of columns of scores [N, V] that are all below τ [N, 1], if at most half of the columns remain."""
    blocks = scores.size(-1) // BLOCK
    body, rest = scores[:, : blocks * BLOCK].view(len(scores), blocks, BLOCK), scores[:, blocks * BLOCK :]
    if blocks < 2 or not len(scores):
        return scores
    best, which = body.amax(-1).sort(descending=True)
    left = int((best > tau).sum(-1).max())
    if 2 * left > blocks:
        return scores
    return torch.cat([body.gather(1, which[:, :left, None].expand(-1, -1, BLOCK)).flatten(1), rest], 1)


class _Threshold(torch.autograd.Function):
    """`threshold` with its gradient: (s_v − τ)^(power−1) in s_v, normalised to sum to one over the support."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, power: float) -> Tensor:
        tau = threshold(scores, power)
        ctx.power = power
        ctx.save_for_backward(scores, tau)
        return tau

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        scores, tau = ctx.saved_tensors
        above = (scores - tau).clamp_(min=0.0)
        raised = (above > 0).to(above.dtype) if ctx.power == 1.0 else above.pow_(ctx.power - 1.0)
        return raised * (gradients[0] / raised.sum(-1, keepdim=True)), None


@dataclass(frozen=True, slots=True)
class _FenchelYoung:
    """The Fenchel-Young loss.  smoothing: ε.  spread: [V], the share of ε of each token; None without smoothing."""

    alpha: float
    smoothing: float
    spread: Tensor | None

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        place, less = labels[:, None], self.alpha - 1.0
        own, peak = logits.gather(1, place), logits.amax(-1, keepdim=True)
        scores = (logits - peak).mul_(less)
        smoothed = None if self.spread is None else self.smoothing * own[:, 0] - logits @ self.spread
        tau = threshold(scores, 1.0 / less)
        above = scores.sub_(tau).clamp_(min=0.0)  # p^(α−1), and on the support less·(l − peak) − τ
        probabilities = torch.pow(above, 1.0 / less, out=logits)
        probabilities.div_(probabilities.sum(-1, keepdim=True))
        mean = torch.bmm(probabilities[:, None, :], above[:, :, None])[:, :, 0]  # Σ p·above, [c, 1]
        losses = (peak - own + (mean + tau) / less + (1.0 - mean) / (self.alpha * less))[:, 0]
        # p_y − 1 is computed as −Σ_{v≠y} p_v, which does not cancel when the model is confident.
        others = probabilities.scatter_(1, place, 0.0).sum(-1, keepdim=True)
        logits.scatter_(1, place, self.smoothing - others)
        if smoothed is None or self.spread is None:
            return losses
        logits.sub_(self.spread)
        return losses + smoothed
