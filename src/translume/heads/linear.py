"""Shared parts of heads with a linear map to the vocabulary: weights, fp32 sums, label smoothing, gradients."""

import torch
from torch import Tensor, nn

from translume.model import LossOptions


def output_weight(count: int, width: int, tied: nn.Parameter | None = None) -> nn.Parameter:
    """[count, width]: `tied` itself, or new ones with which the logits of a normalised state deviate by 1."""
    if tied is not None:
        return tied
    fresh = nn.Parameter(torch.empty(count, width))
    nn.init.normal_(fresh, std=width**-0.5)
    return fresh


def output_bias(count: int, *, enabled: bool) -> nn.Parameter | None:
    """[count] zeros, or None where none are wanted."""
    return nn.Parameter(torch.zeros(count)) if enabled else None


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """What is summed in: fp32, or fp64 for fp64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def label_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """[n]: the logits of labels [n] after hidden states [n, D], not rounded to the dtype of the weights."""
    logits = (
        hidden.to(accumulation_dtype(hidden)) * weight.index_select(0, labels).to(accumulation_dtype(hidden))
    ).sum(-1)
    return logits if bias is None else logits + bias.index_select(0, labels).to(logits.dtype)


def spread(options: LossOptions, vocabulary: int, like: Tensor) -> Tensor | None:
    """[V], which sum to ε: what each token has of the target beside its being the label; None where there is no ε.

    Of the dtype that sums over `like` are kept in.
    """
    if not options.label_smoothing:
        return None
    if options.smoothed is None:
        return like.new_full((vocabulary,), options.label_smoothing / vocabulary, dtype=accumulation_dtype(like))
    return options.label_smoothing * _shares(options.smoothed, like)


class MeanToken:
    """The mean of the tokens that are smoothed over: the logit of its vector and bias is the mean of their logits.

    share: [V], of each token; None for 1/V.  row: [D].  Row and bias are differentiable, in at least fp32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, smoothed: Tensor | None) -> None:
        """weight: [V, D].  bias: [V].  smoothed: [V], as `LossOptions` has it."""
        kept = accumulation_dtype(weight)
        self.share = None if smoothed is None else _shares(smoothed, weight)
        self.bias: Tensor | float = 0.0
        if self.share is None:
            self.row = weight.mean(0, dtype=kept)
            if bias is not None:
                self.bias = bias.mean(dtype=kept)
        else:
            self.row = self.share @ weight.to(kept)
            if bias is not None:
                self.bias = self.share @ bias.to(kept)

    def logit(self, hidden: Tensor) -> Tensor:
        """[n], of hidden states [n, D]."""
        return hidden.to(self.row.dtype) @ self.row + self.bias


def _shares(smoothed: Tensor, like: Tensor) -> Tensor:
    marks = smoothed.to(accumulation_dtype(like))
    return marks / marks.sum()


class LinearGradients:
    """What rows add to the gradients of W h + b, all of them at first zero but `hidden`, which `add` fills.

    hidden: [n, D], in its own dtype.  weight: [V, D], bias: [V] or None, both in at least fp32.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Of these hidden states [n, D], weight [V, D] and bias [V]."""
        self._inputs, self._weight, self._wide = hidden, weight, accumulation_dtype(hidden)
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
