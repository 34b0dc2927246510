"""Loss terms for any head, from its distributions: confidence penalty, R-Drop, distillation.

All are computed in chunks of rows, which the backward pass recomputes, so that n×V is never held. On devices other than
CPUs nothing is read back: where logits are not finite, the head's own loss shows it.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from translume.belief import unchecked
from translume.model.compiled import on_device
from translume.model.head import Head, HeadLoss, LossOptions, TeacherTargets
from translume.model.state import Selectable

CHUNK_ELEMENTS, DEVICE_CHUNK_ELEMENTS = 1 << 22, 1 << 25
"""Probabilities held at a time on a CPU, whose caches are small, and on other devices, which need many to be busy."""


Contexts = tuple[Selectable | None, Selectable | None]


def with_penalties(
    head: Head, loss: HeadLoss, hidden: Tensor, context: Selectable | None, options: LossOptions
) -> HeadLoss:
    """Add the penalties of `options` to a head's loss after hidden states [n, D].

    Teacher: (1−λ)·(loss without teacher) + λ·KL(q‖p) with the teacher's distribution q (Kim and Rush 2016, section 3.1;
    including the entropy of q, which has no gradient).
    R-Drop: the rows of two passes over the same sentences follow each other; the result is the mean of both passes (Wu
    et al. 2021, eq. 4, halved).
    """
    objective, nll, tokens = loss.objective, loss.nll, loss.tokens
    rest = 1.0 - options.share
    if options.teacher_targets is not None and not head.blends_teacher_loss:
        objective = rest * objective + options.share * distance(head, hidden, context, options.teacher_targets)
    if options.confidence_penalty:
        objective = objective - rest * options.confidence_penalty * entropy(head, hidden, context)
    if options.r_drop:
        first, second = hidden.chunk(2)
        rows = torch.arange(len(hidden), device=hidden.device).chunk(2)
        contexts = (None, None) if context is None else (context.select(rows[0]), context.select(rows[1]))
        objective = objective / 2 + rest * options.r_drop / 4 * divergence(head, first, second, contexts)
        nll, tokens = None if nll is None else nll / 2, tokens // 2
    return HeadLoss(objective, nll, tokens)


def entropy(head: Head, hidden: Tensor, context: Selectable | None) -> Tensor:
    """Return Σ over rows of H(p) = −Σ_v p_v log p_v, in nats, after hidden states [n, D]."""

    def term(rows: Tensor, hidden: Tensor) -> Tensor:
        log_probs = _log_probs(head, hidden, context, rows)
        return -_product(log_probs.exp(), log_probs).sum()

    return _summed(term, head, hidden)


def divergence(head: Head, hidden: Tensor, other: Tensor, contexts: Contexts = (None, None)) -> Tensor:
    """Return Σ over rows of KL(p‖q) + KL(q‖p), in nats, for distributions after states `hidden` and `other` [n, D].

    contexts: the head's context for each of the two.
    By the head itself if it can. Else computed as Σ_v (p_v − q_v)(log p_v − log q_v), so that probabilities that
    underflow in both contribute nothing.
    """
    if (own := head.divergence(hidden, other)) is not None:
        return own

    def term(rows: Tensor, hidden: Tensor, other: Tensor) -> Tensor:
        pairs = zip((hidden, other), contexts, strict=True)
        first, second = (_log_probs(head, each, context, rows) for each, context in pairs)
        total: Tensor = _Divergence.apply(first, second)  # type: ignore[no-untyped-call]  # torch's has no types
        return total

    return _summed(term, head, hidden, other)


def distance(head: Head, hidden: Tensor, context: Selectable | None, targets: TeacherTargets) -> Tensor:
    """Return Σ over rows of KL(q‖p) = Σ_v q_v (log q_v − log p_v), in nats; q: the teacher's, p: after `hidden` [n, D].

    Tokens with q_v = 0 contribute nothing.
    """

    def term(rows: Tensor, hidden: Tensor) -> Tensor:
        teacher = targets(rows)
        return _product(teacher.exp(), teacher - _log_probs(head, hidden, context, rows)).sum()

    return _summed(term, head, hidden)


class _Divergence(torch.autograd.Function):
    """Σ (p − q)(log p − log q) of log-probabilities [n, V], with both gradients computed in few passes."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        p, q, ratio = first.exp(), second.exp(), first - second
        difference = p - q
        ctx.save_for_backward(torch.addcmul(difference, p, ratio), torch.addcmul(difference, q, ratio).neg_())
        return (difference * ratio).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        first, second = ctx.saved_tensors
        return first * gradients[0], second * gradients[0]


def _log_probs(head: Head, hidden: Tensor, context: Selectable | None, rows: Tensor) -> Tensor:
    return head.next_token(hidden, None if context is None else context.select(rows)).log_probs()


def _product(probabilities: Tensor, logs: Tensor) -> Tensor:
    """Return probability · log, 0 where the probability is 0 and its logarithm infinite."""
    return torch.where(logs.isfinite(), probabilities * logs.nan_to_num(0.0, 0.0, 0.0), 0.0)


def _summed(term: Callable[..., Tensor], head: Head, *hidden: Tensor) -> Tensor:
    def computed(*arguments: Tensor) -> Tensor:
        with unchecked() if on_device(hidden[0]) else nullcontext():
            result: Tensor = term(*arguments)
            return result

    total = hidden[0].new_zeros((), dtype=torch.promote_types(hidden[0].dtype, torch.float32))
    for rows in _chunks(hidden[0], head.vocabulary):
        parts = (each.index_select(0, rows) for each in hidden)
        total = total + checkpoint(computed, rows, *parts, use_reentrant=False, preserve_rng_state=False)
    return total


def _chunks(hidden: Tensor, vocabulary: int) -> Iterator[Tensor]:
    size = max(1, (DEVICE_CHUNK_ELEMENTS if on_device(hidden) else CHUNK_ELEMENTS) // vocabulary)
    for start in range(0, len(hidden), size):
        yield torch.arange(start, min(start + size, len(hidden)), device=hidden.device)
