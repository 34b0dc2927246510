"""The primitive under heads whose loss gives its gradient in the logits at once; never holds n×V.

Logits W h + b of some rows at a time are turned into losses and, in their own place, into the gradients, which go into
the matrix products while they are at hand.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from translume.heads import lse_pick
from translume.heads.gradients import LinearGradients, scaled
from translume.heads.precision import label_logits, wide


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
    loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]  # torch's has no types
        hidden, weight, bias, labels, rule, wanted
    )
    return loss


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rule: LogitLoss, wanted: bool
    ) -> Tensor:
        kept = wide(hidden)
        rows = min(lse_pick.chunk_rows(weight.size(0)), max(1, len(hidden)))
        buffer = hidden.new_empty(rows, weight.size(0))
        total = hidden.new_zeros((), dtype=kept)
        grown = LinearGradients(hidden, weight, bias) if wanted else None
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
            if grown is not None:
                grown.add(slice(start, start + rows), logits)
        if grown is not None:
            ctx.save_for_backward(grown.hidden, grown.weight, grown.bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *scaled(gradients[0], *ctx.saved_tensors), None, None, None
