"""A mixture of softmaxes, whose log-probabilities are not limited to the rank of one linear map."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.belief import Logits, NextToken
from translume.config import MixtureSettings
from translume.heads import chunked_cross_entropy, fixed_cross_entropy
from translume.heads.linear import LinearGradients, LinearHead, accumulation_dtype, label_logits, learnt, scaled, spread
from translume.model import HeadLoss, HeadSizes, LossOptions
from translume.model.compiled import on_device
from translume.model.state import Selectable


class MixtureHead(LinearHead):
    """p = Σ_k π_k softmax(W tanh(A_k h) + b), π = softmax(B h), k = 1 … K (Yang et al. 2018, equations 3 and 4).

    Computed in log space: −log p_y = −logsumexp_k(log π_k + l_ky − lse_k). The authors' code computes
    log(Σ_k … + 1e-8), which is at least −18.4 and gives no gradient to less likely tokens.
    B is initialised to zero. z-loss is the mean over components of their squared log normalisers.
    """

    def __init__(self, settings: MixtureSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        super().__init__(settings, sizes, tied)
        self.map = nn.Linear(sizes.width, settings.components * sizes.width, bias=False)  # all A_k
        nn.init.normal_(self.map.weight, std=sizes.width**-0.5)
        self.prior = nn.Linear(sizes.width, settings.components, bias=False)
        nn.init.zeros_(self.prior.weight)

    def _components(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states [n, K, D] of the components, and log π [n, K] in at least fp32."""
        states: Tensor = self.map(hidden).tanh().unflatten(1, (-1, hidden.size(1)))
        prior: Tensor = self.prior(hidden)
        return states, prior.to(accumulation_dtype(prior)).log_softmax(-1)

    def _picked(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p [n] of labels [n], and the log normalisers [n, K] of the components."""
        states, log_prior = self._components(hidden)
        each = labels.repeat_interleave(log_prior.size(1))
        lse, own = chunked_cross_entropy.lse_and_label_logits(states.flatten(0, 1), self.weight, self.bias, each)
        lse, own = lse.view_as(log_prior), own.view_as(log_prior)
        return (log_prior + own - lse).logsumexp(-1), lse

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        shares = spread(options, self.vocabulary, hidden)
        if shares is not None:
            target = _Target(1.0 - options.label_smoothing, shares, options.z_loss)
            objective, nll = _smoothed_loss(*self._components(hidden), self.weight, self.bias, labels, target)
            return HeadLoss(objective, nll, labels.numel())
        log_probs, lse = self._picked(hidden, labels)
        nll = objective = -log_probs.sum()
        if options.z_loss:
            objective = objective + options.z_loss * lse.square().mean(-1).sum()
        return HeadLoss(objective, nll.detach(), labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        return self._picked(hidden, labels)[0]

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        states, log_prior = self._components(hidden)
        logits = F.linear(states, self.weight, self.bias).to(log_prior.dtype)  # [N, K, V]
        # Log-probabilities are logits whose normaliser is zero.
        return Logits((logits.log_softmax(-1) + log_prior[..., None]).logsumexp(1))

    def terms(self, hidden: Tensor, context: Selectable | None) -> Mapping[str, Tensor]:
        """Return "components" [N, K]: the mixture weights π."""
        return {"components": self._components(hidden)[1].exp()}


def _smoothed_loss(
    states: Tensor, log_prior: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, target: "_Target"
) -> tuple[Tensor, Tensor]:
    """Return the exact (objective, nll) with label smoothing over the mixture's log-probabilities, in chunks of rows.

    states: [n, K, D].  log_prior: [n, K].  labels: [n].
    """
    sums: tuple[Tensor, Tensor] = _SmoothedLoss.apply(  # type: ignore[no-untyped-call]  # torch's has no types
        states, log_prior, weight, bias, labels, target, learnt(states, log_prior, weight, bias)
    )
    return sums


@dataclass(frozen=True, slots=True)
class _Target:
    """The smoothed target distribution: `label` for the label plus `spread` [V] for all tokens.  z_loss: of lse²."""

    label: float
    spread: Tensor
    z_loss: float


class _SmoothedLoss(torch.autograd.Function):
    """−Σ_v t_v log p_v and its gradients; the target t is 1−ε for the label plus ε spread over tokens.

    With r_kv the share of component k in p_v and q_k its softmax, the gradient of l_kv is q_kv Σ_w t_w r_kw − t_v r_kv.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, log_prior: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
        target: "_Target", gradients: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        kept, parts = accumulation_dtype(states), log_prior.size(1)
        rows = max(1, chunked_cross_entropy.chunk_rows(weight.size(0)) // parts)
        if on_device(states):
            rows = fixed_cross_entropy.chunk_rows(len(labels), parts * weight.size(0))
        objective = states.new_zeros((), dtype=kept)
        nll = objective.clone()
        by_prior = torch.empty_like(log_prior)
        accumulated = LinearGradients(states.flatten(0, 1), weight, bias) if gradients else None
        for start in range(0, len(labels), rows):
            place = slice(start, start + rows)
            part, label = states[place], labels[place]
            logits = F.linear(part, weight, bias).to(kept)  # [c, K, V]
            if part.dtype != kept:
                each = label[:, None].expand(-1, parts)
                own = label_logits(part.flatten(0, 1), weight, bias, each.flatten())
                logits.scatter_(2, each[..., None], own.view(len(label), parts, 1))
            losses, slopes, by_prior[place] = _losses(logits, log_prior[place], label, target)
            objective += losses[0]
            nll += losses[1]
            if accumulated is not None:
                accumulated.add(slice(start * parts, (start + rows) * parts), slopes.flatten(0, 1))
        if accumulated is not None:
            ctx.save_for_backward(by_prior, accumulated.hidden.view_as(states), accumulated.weight, accumulated.bias)
        ctx.mark_non_differentiable(nll)
        return objective, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by_prior, *linear = ctx.saved_tensors
        by_states, by_weight, by_bias = scaled(gradients[0], *linear)
        return by_states, by_prior * gradients[0], by_weight, by_bias, None, None, None


def _losses(
    logits: Tensor, log_prior: Tensor, labels: Tensor, target: _Target
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Return ((objective, nll), gradient in the logits [c, K, V], gradient in log π [c, K]). Overwrites the logits."""
    lse = logits.logsumexp(-1, keepdim=True)  # [c, K, 1]
    own = labels[:, None]
    logits -= lse
    joint = logits + log_prior[..., None]
    log_probs = joint.logsumexp(1)  # [c, V]
    nll = -log_probs.gather(1, own).sum()
    objective = target.label * nll - (log_probs @ target.spread).sum()
    joint.sub_(log_probs[:, None]).exp_()  # r
    of_label = joint.gather(2, own[:, None].expand(-1, joint.size(1), 1)).mul_(target.label)
    joint.mul_(target.spread).scatter_add_(2, own[:, None].expand_as(of_label), of_label)
    mass = joint.sum(-1, keepdim=True)
    slope = mass
    if target.z_loss:
        objective += target.z_loss * lse.square().mean(1).sum()
        slope = mass + 2.0 * target.z_loss / lse.size(1) * lse
    return (objective, nll), logits.exp_().mul_(slope).sub_(joint), -mass[..., 0]
