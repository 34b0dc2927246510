"""Gradients of a linear map that are made beside its loss, chunk by chunk, and handed out in the backward pass."""

import torch
from torch import Tensor

from translume.heads.precision import wide


class LinearGradients:
    """What rows add to the gradients of W h + b, all of them at first zero but `hidden`, which `add` fills.

    hidden: [n, D], in its own dtype.  weight: [V, D], bias: [V] or None, both in at least fp32.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Of these hidden states [n, D], weight [V, D] and bias [V]."""
        self._inputs, self._weight, self._wide = hidden, weight, wide(hidden)
        self.hidden = torch.empty_like(hidden)
        self.weight = weight.new_zeros(weight.shape, dtype=self._wide)
        self.bias = None if bias is None else bias.new_zeros(bias.shape, dtype=self._wide)

    def add(self, place: slice, slopes: Tensor) -> None:
        """Rows `place`, whose logits have the gradients `slopes` [c, V], fp32 or fp64."""
        if self.bias is not None:
            self.bias += slopes.sum(0)
        rows = self._inputs[place]
        narrow = slopes.to(rows.dtype)
        self.hidden[place] = narrow @ self._weight
        self._add_product(narrow, rows)

    def _add_product(self, left: Tensor, right: Tensor) -> None:
        """Add left ᵀ · right, of [c, V] and [c, D], to the gradient of W."""
        if right.dtype == self._wide:
            self.weight.addmm_(left.t(), right)
        else:
            self.weight += left.t() @ right


def scaled(factor: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients that a forward pass saved, times the `factor` of its loss, all of the dtype of `hidden`.

    Scaled where they are, unless the graph is kept: a second backward pass would find them scaled already.
    """
    if float(factor) != 1.0:
        if _graph_is_kept():
            hidden, weight = hidden * factor.to(hidden.dtype), weight * factor
        else:
            hidden, weight = hidden.mul_(factor.to(hidden.dtype)), weight.mul_(factor)
        bias = None if bias is None else bias * factor
    return hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)


def _graph_is_kept() -> bool:
    """Whether the backward pass that is running may be followed by another; True where this torch does not tell."""
    asked = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", None)
    return asked is None or bool(asked())
