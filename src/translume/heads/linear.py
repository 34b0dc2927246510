"""Shared parts of heads with a linear map to the vocabulary: weights, fp32 sums, label smoothing, gradients."""

import torch
from torch import Tensor, nn

from translume.config.heads import LinearHead as LinearSettings
from translume.model import Head, HeadSizes, LossOptions
from translume.model.compiled import on_device, weight_gradient


def output_weight(count: int, width: int, tied: nn.Parameter | None = None) -> nn.Parameter:
    """Return `tied`, or new weights [count, width] with which the logits of a normalised state have deviation 1."""
    if tied is not None:
        return tied
    fresh = nn.Parameter(torch.empty(count, width))
    nn.init.normal_(fresh, std=width**-0.5)
    return fresh


def output_bias(count: int, *, enabled: bool) -> nn.Parameter | None:
    """Return [count] zeros, or None if disabled."""
    return nn.Parameter(torch.zeros(count)) if enabled else None


class LinearHead(Head):
    """A head whose logits are W h + b.  weight: W [V, D].  bias: b [V], or None."""

    def __init__(self, settings: LinearSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        """tied: an embedding [V, D] to share; it is not copied."""
        super().__init__()
        self.vocabulary = sizes.vocabulary
        self.weight = output_weight(sizes.vocabulary, sizes.width, tied)
        self.bias = output_bias(sizes.vocabulary, enabled=settings.bias)


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which sums are kept: fp32, or fp64 for fp64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def learnt(*tensors: Tensor | None) -> bool:
    """Return whether gradients are recorded and any of the tensors needs one."""
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)


def label_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """Return the logits [n] of labels [n] after hidden states [n, D], not rounded to the dtype of the weights."""
    logits = (
        hidden.to(accumulation_dtype(hidden)) * weight.index_select(0, labels).to(accumulation_dtype(hidden))
    ).sum(-1)
    return logits if bias is None else logits + bias.index_select(0, labels).to(logits.dtype)


def spread(options: LossOptions, vocabulary: int, like: Tensor) -> Tensor | None:
    """Return the share [V] of each token in label smoothing, which sum to ε; None without smoothing.

    The dtype is `accumulation_dtype(like)`.
    """
    if not options.label_smoothing:
        return None
    if options.smoothed is None:
        return like.new_full((vocabulary,), options.label_smoothing / vocabulary, dtype=accumulation_dtype(like))
    return options.label_smoothing * _shares(options.smoothed, like)


class MeanToken:
    """The mean vector and bias of the tokens of label smoothing, whose logit is the mean of these tokens' logits.

    share: [V], the weight of each token; None for 1/V.  row: [D].  Row and bias are differentiable, at least fp32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, smoothed: Tensor | None) -> None:
        """weight: [V, D].  bias: [V].  smoothed: [V], as in `LossOptions`."""
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
        """Return the mean logits [n] after hidden states [n, D]."""
        return hidden.to(self.row.dtype) @ self.row + self.bias


def _shares(smoothed: Tensor, like: Tensor) -> Tensor:
    marks = smoothed.to(like.device, accumulation_dtype(like))
    return marks / marks.sum()


class LinearGradients:
    """Gradients of W h + b accumulated chunk by chunk in the forward pass; `add` fills rows of `hidden`.

    hidden: [n, D], in its own dtype.  weight: [V, D], bias: [V], both in at least fp32; None if they are not trained.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """hidden: [n, D].  weight: [V, D].  bias: [V]."""
        self._inputs, self._weight, self._sum_dtype = hidden, weight, accumulation_dtype(hidden)
        self.hidden = torch.empty_like(hidden)
        self.weight, self.bias = (
            each.new_zeros(each.shape, dtype=self._sum_dtype) if each is not None and each.requires_grad else None
            for each in (weight, bias)
        )

    def add(self, place: slice, slopes: Tensor) -> None:
        """Add rows `place`, whose logits have gradients `slopes` [c, V]."""
        if self.bias is not None:
            self.bias += slopes.sum(0, dtype=self._sum_dtype)
        rows = self._inputs[place]
        narrow = slopes.to(rows.dtype)
        self.hidden[place] = narrow @ self._weight
        self._add_product(narrow, rows)

    def _add_product(self, left: Tensor, right: Tensor) -> None:
        """Add leftᵀ · right, of [c, V] and [c, D], to the gradient of W."""
        if self.weight is None:
            return
        if right.dtype == self._sum_dtype:
            self.weight.addmm_(left.t(), right)
        else:
            weight_gradient(left, right, self.weight)


def scaled(
    factor: Tensor, hidden: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return gradients saved in a forward pass, times the `factor` of its loss, in the dtype of `hidden`.

    They are scaled in place unless the graph is retained, since a second backward pass would scale them again.
    """
    if on_device(factor) or float(factor) != 1.0:
        kept = _graph_is_kept()
        hidden = hidden * factor.to(hidden.dtype) if kept else hidden.mul_(factor.to(hidden.dtype))
        if weight is not None:
            weight = weight * factor if kept else weight.mul_(factor)
        bias = None if bias is None else bias * factor
    by_weight, by_bias = (None if each is None else each.to(hidden.dtype) for each in (weight, bias))
    return hidden, by_weight, by_bias


def _graph_is_kept() -> bool:
    """Return whether the running backward pass may be followed by another; True if this version of torch cannot say."""
    asked = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", None)
    return asked is None or bool(asked())
