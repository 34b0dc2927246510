"""The default head: one linear map and a softmax."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from translume.belief import Logits, NextToken
from translume.config import CappedSettings, ProjectedSettings
from translume.heads.chunked_cross_entropy import (
    chunk_rows,
    label_log_probs,
    softmax_divergence,
    softmax_loss,
)
from translume.heads.linear import (
    LinearHead,
    accumulation_dtype,
    label_logits,
    output_bias,
    output_weight,
    spread,
)
from translume.model import Head, HeadLoss, HeadSizes, LossOptions
from translume.model.state import Selectable


class SoftmaxHead(LinearHead):
    """softmax(W h + b); W may be the target embedding itself (Press and Wolf 2017)."""

    blends_teacher_loss = True
    weighs_rows = True

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        loss = softmax_loss(hidden, self.weight, self.bias, labels, options)
        return HeadLoss(loss.objective, loss.nll, labels.numel())

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        return softmax_divergence(first, second, self.weight, self.bias)

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        return label_log_probs(hidden, self.weight, self.bias, labels)

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        return Logits(F.linear(hidden, self.weight, self.bias))

    def plain(self) -> dict[str, Tensor]:
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}


class CappedHead(LinearHead):
    """softmax(c·tanh((W h + b) / c)), whose logits are limited to ±c. The backward pass computes them again."""

    def __init__(self, settings: CappedSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        super().__init__(settings, sizes, tied)
        self._cap = settings.cap

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._cap * torch.tanh(F.linear(hidden, self.weight, self.bias) / self._cap)

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        shares = spread(options, self.vocabulary, hidden)

        def losses(part: Tensor, label: Tensor) -> Tensor:
            """Return the objective and the nll [2] of a few rows."""
            logits, lse, own = self._exact(part, label)
            objective = nll = (lse - own).sum()
            if shares is not None:
                objective = objective + (options.label_smoothing * own - logits @ shares).sum()
            return torch.stack([objective + options.z_loss * lse.square().sum(), nll])

        zeros = hidden.new_zeros(2, dtype=accumulation_dtype(hidden))
        objective, nll = sum(self._chunked(losses, hidden, labels), zeros).unbind()
        return HeadLoss(objective, nll.detach(), labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        def score(part: Tensor, label: Tensor) -> Tensor:
            _, lse, own = self._exact(part, label)
            return own - lse

        return torch.cat(self._chunked(score, hidden, labels))

    def _exact(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [c, V], log Σ exp [c] and labels' logits [c], those of labels not rounded; at least fp32."""
        own = self._cap * torch.tanh(label_logits(hidden, self.weight, self.bias, labels) / self._cap)
        logits = self._logits(hidden).to(own.dtype).scatter(1, labels[:, None], own[:, None])
        return logits, logits.logsumexp(-1), own

    def _chunked(self, function: Callable[..., Tensor], hidden: Tensor, labels: Tensor) -> list[Tensor]:
        """Apply a function of a few rows of hidden states [n, D] and labels [n] to all."""
        rows = chunk_rows(self.vocabulary)
        parts = zip(torch.split(hidden, rows), torch.split(labels, rows), strict=True)
        return [checkpoint(function, *part, use_reentrant=False) for part in parts]

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        return Logits(self._logits(hidden))


class ProjectedHead(Head):
    """softmax(W f(A h) + b), with A [size, D] and f = tanh or the identity.

    The logits of a softmax over states of size D have rank D at most (Yang et al. 2018). A larger size with tanh raises
    that limit, at the cost of one more product; a smaller size makes the product with W cheaper.
    """

    blends_teacher_loss = True
    weighs_rows = True

    def __init__(self, settings: ProjectedSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        super().__init__()
        self.vocabulary = sizes.vocabulary
        size = settings.size or 2 * sizes.width
        self.map = nn.Linear(sizes.width, size, bias=False)
        nn.init.normal_(self.map.weight, std=sizes.width**-0.5)
        self.weight = output_weight(sizes.vocabulary, size)
        self.bias = output_bias(sizes.vocabulary, enabled=settings.bias)
        self._activation = settings.activation

    def _mapped(self, hidden: Tensor) -> Tensor:
        mapped: Tensor = self.map(hidden)
        return mapped.tanh() if self._activation == "tanh" else mapped

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        loss = softmax_loss(self._mapped(hidden), self.weight, self.bias, labels, options)
        return HeadLoss(loss.objective, loss.nll, labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        return label_log_probs(self._mapped(hidden), self.weight, self.bias, labels)

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        return Logits(F.linear(self._mapped(hidden), self.weight, self.bias))
