"""Cross entropy over large vocabularies on CPUs, computed in chunks of rows so that no N×V matrix is ever held.

With logits l = W h + b, everything a softmax loss needs is lse = log Σ_v exp l_v, the label's logit l_y and the mean
logit l̄:

    nll = lse − l_y        label smoothing: (1−ε)·nll + ε·(lse − l̄)        z-loss: z·lse²

With a teacher's distribution q, the loss also contains λ·KL(q‖p), KL(q‖p) = lse − Σ_v q_v (l_v − log q_v). The second
term is linear in l: its gradients are −q in the products with W and h, and Σ_v q_v l_v = h · (q W) + q · b comes from
the product that computes one of them (`teacher_agreement`).

The logits of a chunk fit the cache. Two measures save passes over a chunk. Logits are not shifted by their maximum:
floats are as precise at e⁴⁰ as at 1, and a chunk whose sum is very large or very small is computed again with a shift.
Probabilities are not normalised element by element: exp(l) enters the matrix products, and the rows of the small
results are divided instead. The label's own term is excluded from the sums and kept in fp32, so that p_y − 1 does not
cancel when the model is confident.

torch.compile is not used: exp and its sum take 1 ms of a chunk whose three products take 91 ms (V = 32k, one core,
fp32); compiled, they took 6 ms.

On GPUs `fixed_cross_entropy` computes the same sums.

`chunked_loss` is the same scheme for losses other than the softmax's, such as those of entmax and sigmoid heads.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from translume.heads import fixed_cross_entropy
from translume.heads.linear import LinearGradients, MeanToken, accumulation_dtype, label_logits, learnt, scaled
from translume.model import LossOptions
from translume.model.compiled import divergence, exponentials, library_for, on_device, pad_rows, padded_count
from translume.model.head import TeacherTargets

CHUNK_ELEMENTS = 1 << 22
"""Number of logits, or of a teacher's probabilities, in memory at a time."""
UNSHIFTED = (1e-25, 1e25)
"""Range of sums of exponentials that need no shift: their products with weights neither overflow nor vanish."""


def teacher_agreement(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: TeacherTargets) -> Tensor:
    """Return Σ over rows of Σ_v q_v (l_v − log q_v), fp32 (fp64 for fp64), of logits l = W h + b and the teacher's q.

    hidden: [n, D].  weight: [V, D].  bias: [V].  Tokens with q_v = 0 contribute nothing.
    """
    agreement: Tensor = _TeacherAgreement.apply(hidden, weight, bias, targets)  # type: ignore[no-untyped-call]  # torch's has no types
    return agreement


class _TeacherAgreement(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: TeacherTargets) -> Tensor:
        rows = max(1, CHUNK_ELEMENTS // weight.size(0))
        total = hidden.new_zeros((), dtype=accumulation_dtype(hidden))
        accumulated = LinearGradients(hidden, weight, bias)
        for start in range(0, len(hidden), rows):
            place = slice(start, min(start + rows, len(hidden)))
            logs = targets(torch.arange(place.start, place.stop, device=hidden.device))
            probabilities = logs.exp()
            logs.clamp_(min=torch.finfo(logs.dtype).min)  # tokens with q = 0: 0 · −∞ is NaN
            total -= torch.linalg.vecdot(probabilities, logs).sum(dtype=total.dtype)
            if bias is not None:
                total += (probabilities @ bias.to(probabilities.dtype)).sum(dtype=total.dtype)
            accumulated.add(place, probabilities)
            total += (hidden[place] * accumulated.hidden[place]).sum(dtype=total.dtype)
        ctx.save_for_backward(accumulated.hidden, accumulated.weight, accumulated.bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *scaled(gradients[0], *ctx.saved_tensors), None


def softmax_divergence(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return Σ over rows of KL(p‖q) + KL(q‖p), fp32 (fp64 for fp64), of softmax(W h + b) after `first` and `second`.

    first, second: [n, D].  weight: [V, D].  bias: [V].
    """
    divergences: Tensor = _SoftmaxDivergence.apply(torch.cat([first, second]), weight, bias)  # type: ignore[no-untyped-call]  # torch's has no types
    return divergences


class _SoftmaxDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        count = len(hidden) // 2
        rows = min(chunk_rows(weight.size(0)), max(count, 1))
        buffers = [_buffer(hidden, rows, weight.size(0)) for _ in range(2)]
        total = hidden.new_zeros((), dtype=accumulation_dtype(hidden))
        accumulated = LinearGradients(hidden, weight, bias)
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            places = slice(start, stop), slice(count + start, count + stop)
            first, second = (
                _logits(hidden[place], weight, bias, buffer) for place, buffer in zip(places, buffers, strict=True)
            )
            total += _to_gradients(first, second).sum()
            for place, slopes in zip(places, (first, second), strict=True):
                accumulated.add(place, slopes)
        ctx.save_for_backward(accumulated.hidden, accumulated.weight, accumulated.bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return scaled(gradients[0], *ctx.saved_tensors)


def _to_gradients(first: Tensor, second: Tensor) -> Tensor:
    """Return the divergence [n] of the softmaxes of logits [n, V], which are replaced by its gradients in them.

    They are p − q + p (log p/q − KL(p‖q)) and the same with p and q exchanged.
    """
    if library_for(first, second) is not None:
        return divergence(first, second)
    log_p, log_q = (each.to(accumulation_dtype(each)).log_softmax(-1) for each in (first, second))
    p, q, ratio = log_p.exp(), log_q.exp(), log_p - log_q
    from_p, from_q = (p * ratio).sum(-1, keepdim=True), -(q * ratio).sum(-1, keepdim=True)
    first.copy_(p - q + p * (ratio - from_p))
    second.copy_(q - p - q * (ratio + from_q))
    return (from_p + from_q).squeeze(-1)


@dataclass(frozen=True, slots=True)
class SoftmaxLoss:
    """Sums over rows, fp32 (fp64 for fp64): `objective` is differentiable, `nll` is not."""

    objective: Tensor
    nll: Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """exp(l) of a chunk: exponentials [c, V] without the label's, their sums `others` [c], and the label's own.

    Rows of zeros pad the exponentials to `padded_count(c)`. All are divided by exp(shift) [c]; shift is zero unless exp
    overflowed.
    """

    exponentials: Tensor
    others: Tensor
    label: Tensor
    label_logit: Tensor
    shift: Tensor

    @property
    def total(self) -> Tensor:
        return self.others + self.label

    @property
    def lse(self) -> Tensor:
        return self.total.log() + self.shift


def softmax_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, options: LossOptions
) -> SoftmaxLoss:
    """Return the exact cross entropy of labels [n] under softmax(W h + b), with label smoothing, z-loss and teacher.

    hidden: [n, D].  weight: [V, D].  bias: [V].  All three gradients are computed in the forward pass,
    where the exponentials are available.
    """
    gradients = learnt(hidden, weight, bias)
    if on_device(hidden):
        objective, nll = fixed_cross_entropy.softmax_sums(hidden, weight, bias, labels, options, gradients=gradients)
    else:
        objective, nll = _SoftmaxLoss.apply(  # type: ignore[no-untyped-call]  # torch's has no types
            hidden, weight, bias, labels, options, gradients
        )
    if options.teacher_targets is not None:
        objective = objective - options.share * teacher_agreement(hidden, weight, bias, options.teacher_targets)
    return SoftmaxLoss(objective, nll)


def lse_and_label_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return (lse [n], l_y [n]) of logits W h + b, fp32 (fp64 for fp64); the backward pass recomputes the chunks."""
    if on_device(hidden):
        return fixed_cross_entropy.lse_and_label_logits(hidden, weight, bias, labels)
    lse, picked = _LseAndLabelLogits.apply(hidden, weight, bias, labels)  # type: ignore[no-untyped-call]  # torch's has no types
    return lse, picked


def label_log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """Return log p [n] of labels [n] under softmax(W h + b), fp32 (fp64 for fp64)."""
    lse, picked = lse_and_label_logits(hidden, weight, bias, labels)
    return picked - lse


def chunk_rows(vocabulary: int) -> int:
    """Return the number of rows of a chunk."""
    return max(128, CHUNK_ELEMENTS // vocabulary)


def _exponentials(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, buffer: Tensor) -> _Chunk:
    label_logit = label_logits(hidden, weight, bias, labels)
    logits = _logits(hidden, weight, bias, buffer)
    shift = torch.zeros_like(label_logit)
    chunk = _exponentiate(logits, labels, label_logit, shift)
    low, high = UNSHIFTED
    if not bool(((chunk.total > low) & (chunk.total < high)).all()):
        logits = _logits(hidden, weight, bias, buffer)
        # Rounded to the logits' dtype first: all terms must be shifted by the same number.
        narrow = torch.maximum(logits.amax(-1), label_logit.to(logits.dtype))
        chunk = _exponentiate(logits.sub_(narrow[:, None]), labels, label_logit, narrow.to(label_logit.dtype))
    filled = buffer[: padded_count(len(hidden), hidden)]
    filled[len(hidden) :] = 0
    return replace(chunk, exponentials=filled)


def _exponentiate(logits: Tensor, labels: Tensor, label_logit: Tensor, shift: Tensor) -> _Chunk:
    if library_for(logits) is not None:
        others = exponentials(logits, labels)
    else:
        others = logits.exp_().scatter_(1, labels[:, None], 0.0).sum(-1, dtype=accumulation_dtype(logits))
    return _Chunk(logits, others, (label_logit - shift).exp(), label_logit, shift)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, buffer: Tensor) -> Tensor:
    rows, hidden = len(hidden), pad_rows(hidden)
    out = buffer[: len(hidden)]
    if bias is None:
        return torch.mm(hidden, weight.t(), out=out)[:rows]
    return torch.addmm(bias, hidden, weight.t(), out=out)[:rows]


def _buffer(hidden: Tensor, rows: int, vocabulary: int) -> Tensor:
    """Return memory for the logits of up to `rows` rows."""
    return hidden.new_empty(padded_count(rows, hidden), vocabulary)


class _SoftmaxLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
        options: LossOptions, gradients: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        smoothing, z, share = options.label_smoothing, options.z_loss, options.share
        rest = 1.0 - share
        count, vocabulary = hidden.size(0), weight.size(0)
        rows = min(chunk_rows(vocabulary), max(count, 1))
        buffer = _buffer(hidden, rows, vocabulary)
        mean = MeanToken(weight, bias, options.smoothed) if smoothing else None
        objective = hidden.new_zeros((), dtype=accumulation_dtype(hidden))
        nll = objective.clone()
        accumulated = _Gradients(hidden, weight, bias) if gradients else None
        for start in range(0, count, rows):
            part, label = hidden[start : start + rows], labels[start : start + rows]
            chunk = _exponentials(part, weight, bias, label, buffer)
            lse = chunk.lse
            chunk_nll = lse - chunk.label_logit
            nll += chunk_nll.sum()
            objective += rest * chunk_nll.sum()
            if share:
                objective += share * lse.sum()
            if mean is not None:
                objective += rest * smoothing * (chunk.label_logit - mean.logit(part)).sum()
            if z:
                objective += rest * z * lse.square().sum()
            if accumulated is not None:
                slope = share + rest * (1.0 + 2.0 * z * lse)  # of the objective in lse
                accumulated.add_chunk(start, chunk, slope, slope - rest * (1.0 - smoothing), label)
        if accumulated is not None:
            if mean is not None:
                accumulated.add_mean(-rest * smoothing, mean)
            ctx.save_for_backward(accumulated.hidden, accumulated.weight, accumulated.bias)
        ctx.mark_non_differentiable(nll)
        return objective, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *scaled(gradients[0], *ctx.saved_tensors), None, None, None


class _Gradients(LinearGradients):
    """Gradients of a softmax, from exponentials that are not divided by their sums."""

    def add_chunk(self, start: int, chunk: _Chunk, slope: Tensor, own: Tensor, label: Tensor) -> None:
        """Add rows from `start`: the gradient of class v is slope·p_v, of the label own − slope·(1 − p_y)."""
        place = slice(start, start + len(label))
        hidden, weight = self._inputs[place], self._weight
        factor = slope / chunk.total
        label_slope = own - factor * chunk.others
        small = (chunk.exponentials @ weight)[: len(label)].to(self._sum_dtype).mul_(factor[:, None])
        small.addcmul_(weight.index_select(0, label).to(self._sum_dtype), label_slope[:, None])
        self.hidden[place] = small
        weighed = (hidden.to(self._sum_dtype) * factor[:, None]).to(hidden.dtype)
        self._add_product(chunk.exponentials[: len(label)], weighed)
        if self.weight is not None:
            self.weight.index_add_(0, label, hidden.to(self._sum_dtype) * label_slope[:, None])
        if self.bias is not None:
            factors = chunk.exponentials.new_zeros(len(chunk.exponentials))
            factors[: len(label)] = factor
            self.bias += torch.mv(chunk.exponentials.t(), factors)
            self.bias.index_add_(0, label, label_slope)

    def add_mean(self, slope: float, mean: MeanToken) -> None:
        """Add to every row: `slope` spread over the tokens of label smoothing."""
        self.hidden += (slope * mean.row).to(self.hidden.dtype)
        summed = self._inputs.sum(0, dtype=self._sum_dtype) * slope
        if self.weight is not None:
            self.weight += summed / len(self.weight) if mean.share is None else torch.outer(mean.share, summed)
        if self.bias is not None:
            share = 1.0 / len(self.bias) if mean.share is None else mean.share
            self.bias += slope * len(self._inputs) * share


class _LseAndLabelLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:
        rows = min(chunk_rows(weight.size(0)), max(hidden.size(0), 1))
        buffer = _buffer(hidden, rows, weight.size(0))
        lse, picked = (hidden.new_empty(hidden.size(0), dtype=accumulation_dtype(hidden)) for _ in range(2))
        for start in range(0, hidden.size(0), rows):
            place = slice(start, start + rows)
            chunk = _exponentials(hidden[place], weight, bias, labels[place], buffer)
            lse[place], picked[place] = chunk.lse, chunk.label_logit
        ctx.save_for_backward(hidden, weight, bias, labels)
        return lse, picked

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels = ctx.saved_tensors
        by_lse, by_picked = gradients
        rows = min(chunk_rows(weight.size(0)), max(hidden.size(0), 1))
        buffer = _buffer(hidden, rows, weight.size(0))
        accumulated = _Gradients(hidden, weight, bias)
        for start in range(0, hidden.size(0), rows):
            place = slice(start, start + rows)
            chunk = _exponentials(hidden[place], weight, bias, labels[place], buffer)
            slope = by_lse[place]
            accumulated.add_chunk(start, chunk, slope, slope + by_picked[place], labels[place])
        by_weight, by_bias = (
            None if each is None else each.to(weight.dtype) for each in (accumulated.weight, accumulated.bias)
        )
        return accumulated.hidden, by_weight, by_bias, None


class LogitLoss(Protocol):
    """A loss of labels under logits that computes its own gradient."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the losses [c] of labels [c]. Replaces logits [c, V], fp32 or fp64, by their gradients, in place."""


def chunked_loss(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rule: LogitLoss) -> Tensor:
    """Return the sum of a loss of labels [n] under logits W h + b, fp32 (fp64 for fp64), differentiable.

    hidden: [n, D].  weight: [V, D].  bias: [V].
    """
    loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]  # torch's has no types
        hidden, weight, bias, labels, rule, learnt(hidden, weight, bias)
    )
    return loss


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        rule: LogitLoss,
        gradients: bool,
    ) -> Tensor:
        kept = accumulation_dtype(hidden)
        rows = min(chunk_rows(weight.size(0)), max(1, len(hidden)))
        if on_device(hidden):
            rows = fixed_cross_entropy.chunk_rows(len(hidden), len(weight))
        buffer = _buffer(hidden, rows, weight.size(0))
        total = hidden.new_zeros((), dtype=kept)
        accumulated = LinearGradients(hidden, weight, bias) if gradients else None
        for start in range(0, hidden.size(0), rows):
            part, label = hidden[start : start + rows], labels[start : start + rows]
            logits = _logits(part, weight, bias, buffer).to(kept)
            if part.dtype != kept:
                logits.scatter_(1, label[:, None], label_logits(part, weight, bias, label)[:, None])
            total += rule(logits, label).sum()
            if accumulated is not None:
                accumulated.add(slice(start, start + rows), logits)
        if accumulated is not None:
            ctx.save_for_backward(accumulated.hidden, accumulated.weight, accumulated.bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *scaled(gradients[0], *ctx.saved_tensors), None, None, None
