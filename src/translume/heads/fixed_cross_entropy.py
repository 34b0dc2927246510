"""Cross entropy over large vocabularies on GPUs: chunks of fixed size, gradients in the same pass, nothing read back.

The sums are those of `chunked_cross_entropy`, which is for CPUs. Here a chunk is one product, one pass from logits to
losses and to the gradients of the logits, and two products more. That pass is elementwise but for two sums, so that
`torch.compile` makes it read the logits three times and write them once. Rows of padding have weight 0. Their
number differs from batch to batch, and the host would have to wait for the GPU to read it.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from translume.heads.linear import accumulation_dtype, label_logits, spread
from translume.model import LossOptions

CHUNK_ELEMENTS = 1 << 26
"""Maximum number of logits in memory at a time. A GPU needs some thousand rows to be busy."""


def row_losses(
    logits: Tensor, own: Tensor, labels: Tensor, weights: Tensor, shares: Tensor | None,
    smoothing: float, z: float, teacher: float, gradients: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the losses [c] of rows, their nll [c], and, if wanted, the gradients [c, V] of their sum in the logits.

    logits: [c, V].  own: [c], the logits of labels [c], in the dtype of sums.  weights: [c], of the rows.
    shares: [V], the share of each token in label smoothing, which sum to `smoothing`; None: the same for all.
    z, teacher: `LossOptions.z_loss` and `LossOptions.share` λ; of the teacher's term, only λ·lse is here.
    """
    wide, is_label = _exact(logits, own, labels)
    lse = wide.logsumexp(-1)
    nll, rest = lse - own, 1.0 - teacher
    losses = rest * nll + teacher * lse
    if smoothing:
        mean = smoothing * wide.mean(-1) if shares is None else (wide * shares).sum(-1)
        losses = losses + rest * (smoothing * own - mean)
    if z:
        losses = losses + rest * z * lse.square()
    if not gradients:
        return losses * weights, nll * weights, None
    slopes = (wide - lse[:, None]).exp()
    if z:
        slopes = slopes * (1.0 + 2.0 * rest * z * lse)[:, None]
    if smoothing:
        slopes = slopes - rest * (smoothing / logits.size(1) if shares is None else shares)
    slopes = torch.where(is_label, slopes - rest * (1.0 - smoothing), slopes) * weights[:, None]
    return losses * weights, nll * weights, slopes.to(logits.dtype)


def _exact(logits: Tensor, own: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits [c, V] in the dtype of `own`, with these [c] for labels [c], and which entries are labels.

    A label's logit is not rounded, so that the loss of a confident model is exact.
    """
    is_label = torch.arange(logits.size(1), device=logits.device) == labels[:, None]
    return torch.where(is_label, own[:, None], logits.to(own.dtype)), is_label


def softmax_sums(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: LossOptions, *, gradients: bool
) -> tuple[Tensor, Tensor]:
    """Return the objective and the nll of labels [n] under softmax(W h + b), summed; see `softmax_loss`.

    hidden: [n, D].  weight: [V, D].  bias: [V].  gradients: whether to compute them, in the same pass.
    """
    objective, nll = _SoftmaxSums.apply(  # type: ignore[no-untyped-call]  # torch's has no types
        hidden, weight, bias, labels, options, gradients
    )
    return objective, nll


def lse_and_label_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return (lse [n], l_y [n]) as `chunked_cross_entropy.lse_and_label_logits` does."""
    lse, own = _LseAndLabelLogits.apply(hidden, weight, bias, labels)  # type: ignore[no-untyped-call]  # torch's has no types
    return lse, own


def chunk_rows(count: int, vocabulary: int) -> int:
    """Return the number of rows of a chunk, which differs little between the chunks of `count` rows."""
    chunks = -(-count * vocabulary // CHUNK_ELEMENTS)
    return max(1, -(-count // max(1, chunks)))


class _Gradients:
    """Gradients of W h + b, added up chunk by chunk; None for what is not trained.

    hidden: [n, D], in its own dtype.  weight: [V, D], bias: [V], in the dtype of sums.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._inputs, self._weight, self._bias = hidden, weight, bias
        self.hidden = torch.empty_like(hidden)
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def add(self, place: slice, slopes: Tensor) -> None:
        """Add rows `place`, whose logits have gradients `slopes` [c, V]."""
        self.hidden[place] = slopes @ self._weight
        if self._weight.requires_grad:
            product = (slopes.mT @ self._inputs[place]).to(accumulation_dtype(slopes))
            self.weight = product if self.weight is None else self.weight.add_(product)
        if self._bias is not None and self._bias.requires_grad:
            sums = slopes.sum(0, dtype=accumulation_dtype(slopes))
            self.bias = sums if self.bias is None else self.bias.add_(sums)

    def scaled(self, factor: Tensor) -> tuple[Tensor | None, ...]:
        """Return them times the gradient of the sum, in the dtypes of their tensors."""
        dtype = self._inputs.dtype
        return tuple(
            None if each is None else (each * factor.to(each.dtype)).to(dtype)
            for each in (self.hidden, self.weight, self.bias)
        )


class _SoftmaxSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
        options: LossOptions, gradients: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        kept, (count, size) = accumulation_dtype(hidden), (len(hidden), len(weight))
        weights = hidden.new_ones(count, dtype=kept) if options.weights is None else options.weights.to(kept)
        shares = None if options.smoothed is None else spread(options, size, hidden)
        function = options.row_losses if options.row_losses is not None and gradients else row_losses
        ctx.gradients = _Gradients(hidden, weight, bias) if gradients else None
        objective, nll = hidden.new_zeros((), dtype=kept), hidden.new_zeros((), dtype=kept)
        rows = chunk_rows(count, size)
        for start in range(0, count, rows):
            place = slice(start, start + rows)
            part, label = hidden[place], labels[place]
            own = label_logits(part, weight, bias, label)
            losses, nlls, slopes = function(
                F.linear(part, weight, bias), own, label, weights[place], shares,
                options.label_smoothing, options.z_loss, options.share, gradients,
            )  # fmt: skip
            objective, nll = objective + losses.sum(), nll + nlls.sum()
            if slopes is not None:
                ctx.gradients.add(place, slopes)
        ctx.mark_non_differentiable(nll)
        return objective, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.gradients.scaled(gradients[0]), None, None, None


class _LseAndLabelLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias, labels)
        own = label_logits(hidden, weight, bias, labels)
        lse = torch.empty_like(own)
        for place, logits in _chunks(hidden, weight, bias):
            lse[place] = _exact(logits, own[place], labels[place])[0].logsumexp(-1)
        return lse, own

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels = ctx.saved_tensors
        by_lse, by_own = gradients
        own = label_logits(hidden, weight, bias, labels)
        total = _Gradients(hidden, weight, bias)
        for place, logits in _chunks(hidden, weight, bias):
            wide, is_label = _exact(logits, own[place], labels[place])
            slopes = wide.softmax(-1) * by_lse[place, None] + by_own[place, None] * is_label
            total.add(place, slopes.to(logits.dtype))
        by_weight, by_bias = (None if each is None else each.to(weight.dtype) for each in (total.weight, total.bias))
        return total.hidden, by_weight, by_bias, None


def _chunks(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield the places of chunks of rows and their logits."""
    rows = chunk_rows(len(hidden), len(weight))
    for start in range(0, len(hidden), rows):
        place = slice(start, start + rows)
        yield place, F.linear(hidden[place], weight, bias)
