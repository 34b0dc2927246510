"""The primitive under heads whose loss gives its gradient in the logits at once; never holds n×V.

Logits W h + b of some rows at a time are turned into losses and, in their own place, into the gradients, which go into
the matrix products while they are at hand.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from translume.heads import lse_pick


class LogitLoss(Protocol):
    """A loss of labels under logits."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Losses [c] of labels [c]; logits [c, V], fp32 or fp64, become the gradients of the losses, in place."""


def chunked_loss(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rule: LogitLoss) -> Tensor:
    """The sum of a loss of labels [n] under logits W h + b, fp32 (fp64 for fp64), differentiable.

    hidden: [n, D].  weight: [V, D].  bias: [V].
    """
    learnt = hidden.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    wanted = torch.is_grad_enabled() and learnt
    loss: Tensor = _ChunkedLoss.apply(hidden, weight, bias, labels, rule, wanted)  # type: ignore[no-untyped-call]
    return loss


def wide(tensor: Tensor) -> torch.dtype:
    """What is summed in: fp32, or fp64 for fp64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def label_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """[n]: the logits of labels [n] after hidden states [n, D], not rounded to the dtype of the weights."""
    logits = (hidden.to(wide(hidden)) * weight.index_select(0, labels).to(wide(hidden))).sum(-1)
    return logits if bias is None else logits + bias.index_select(0, labels).to(logits.dtype)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rule: LogitLoss, wanted: bool
    ) -> Tensor:
        kept = wide(hidden)
        rows = min(lse_pick.chunk_rows(weight.size(0)), max(1, len(hidden)))
        buffer = hidden.new_empty(rows, weight.size(0))
        total = hidden.new_zeros((), dtype=kept)
        by_hidden = torch.empty_like(hidden)
        by_weight = weight.new_zeros(weight.shape, dtype=kept) if wanted else None
        by_bias = None if bias is None else bias.new_zeros(bias.shape, dtype=kept)
        for start in range(0, hidden.size(0), rows):
            part, label = hidden[start : start + rows], labels[start : start + rows]
            out = buffer[: len(part)]
            if bias is None:
                torch.mm(part, weight.t(), out=out)
            else:
                torch.addmm(bias, part, weight.t(), out=out)
            logits = out.to(kept)
            if part.dtype != kept:
                logits.scatter_(1, label[:, None], label_logits(part, weight, bias, label)[:, None])
            total += rule(logits, label).sum()
            if by_weight is None:
                continue
            if by_bias is not None:
                by_bias += logits.sum(0)
            slopes = logits.to(part.dtype)
            by_hidden[start : start + rows] = slopes @ weight
            if part.dtype == kept:
                by_weight.addmm_(slopes.t(), part)
            else:
                by_weight += slopes.t() @ part
        if wanted:
            ctx.save_for_backward(by_hidden, by_weight, by_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        (factor,) = gradients
        by_bias = None if bias is None else (bias * factor).to(hidden.dtype)
        by_weight = (weight * factor).to(hidden.dtype)
        return hidden * factor.to(hidden.dtype), by_weight, by_bias, None, None, None
