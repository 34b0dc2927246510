"""Attention of whole sequences whose tokens stand side by side, as training and scoring have them."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from translume.model.dropout import keep_mask, rounded
from translume.model.layout import Layout
from translume.model.positions import rotate, rotate_back

Form = Literal["plain", "fused"]
"""How attention is computed: matrix products and a softmax written out, or torch's scaled_dot_product_attention."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """How tokens are mixed. causal: each reads those up to itself.  rate: of dropout on the weights.

    turn: [2, G, D/H], rotary positions, or None.
    """

    heads: int
    form: Form = "plain"
    rate: float = 0.0
    causal: bool = False
    turn: Tensor | None = None


def packed_attention(first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], mixing: Mixing) -> Tensor:
    """[n, D] from queries, keys and values [n, 3D] of one sequence, or queries [n, D], keys and values [m, 2D] of two.

    layouts: of the queries, and of the keys and values.
    """
    if mixing.form == "fused":
        return _fused(first, second, layouts, mixing)
    result: Tensor = _Plain.apply(first, second, layouts, mixing)  # type: ignore[no-untyped-call]  # torch's has no types
    return result


def _fused(first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], mixing: Mixing) -> Tensor:
    layout, memory_layout = layouts
    if second is None:
        query, keys, values = layout.split(first, 3, mixing.heads).unbind(0)
    else:
        (query,) = layout.split(first, 1, mixing.heads).unbind(0)
        keys, values = memory_layout.split(second, 2, mixing.heads).unbind(0)
    if mixing.turn is not None:
        query, keys = rotate(query, mixing.turn), rotate(keys, mixing.turn)
    allowed = None if mixing.causal or memory_layout.grid.all() else memory_layout.grid[:, None, None]
    mixed = F.scaled_dot_product_attention(
        query, keys, values, attn_mask=allowed, dropout_p=mixing.rate, is_causal=mixing.causal
    )
    return layout.join(mixed.contiguous()[None])


class _Plain(torch.autograd.Function):
    """softmax(Q Kᵀ) V written out, with a backward pass that makes one gradient for all parts of its input."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], mixing: Mixing
    ) -> Tensor:
        heads, causal, turn, rate = mixing.heads, mixing.causal, mixing.turn, mixing.rate
        layout, memory_layout = layouts
        if second is None:
            query, keys, values = layout.split(first, 3, heads).unbind(0)  # each [B, H, G, d]
        else:
            (query,) = layout.split(first, 1, heads).unbind(0)
            keys, values = memory_layout.split(second, 2, heads).unbind(0)
        if turn is not None:
            query, keys = rotate(query, turn), rotate(keys, turn)
        scale = query.size(-1) ** -0.5
        query = query.mul(scale)
        weights = _matmul(query, keys.mT)  # [B, H, G, S]
        if causal:
            future = torch.full(weights.shape[-2:], -math.inf, dtype=weights.dtype, device=weights.device).triu_(1)
            weights += future
        bias = memory_layout.bias(weights.dtype)
        if bias is not None and not causal:  # padding stands at the end, where no real token of a causal row looks
            weights += bias
        weights = torch.softmax(weights, -1)
        if memory_layout.empty_rows:
            weights = weights.nan_to_num(0.0)
        mask, kept = None, weights
        if rate > 0.0:
            threshold, factor = rounded(rate)
            mask = keep_mask(weights.shape, threshold, weights.device)
            kept = mask.to(weights.dtype).mul_(weights).mul_(factor)
            ctx.factor = factor
        ctx.save_for_backward(query, keys, values, weights, mask, turn)
        ctx.layouts, ctx.two, ctx.scale = layouts, second is not None, scale
        return layout.join(_matmul(kept, values)[None])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, weights, mask, turn = ctx.saved_tensors
        layout, memory_layout = ctx.layouts
        (grown,) = layout.split(gradients[0].contiguous(), 1, query.size(1)).unbind(0)
        layout.clear_padding(grown)
        kept, grown_weights = weights, _matmul(grown, values.mT)
        if mask is not None:
            scaled = mask.to(weights.dtype).mul_(ctx.factor)
            kept = weights * scaled
            grown_weights *= scaled
        grown_scores = _through_softmax(grown_weights, weights)
        both = query.new_empty(2 if ctx.two else 3, *keys.shape)  # (queries,) keys, values in one grid, for one `join`
        grown_query = query.new_empty(query.shape) if ctx.two else both[0]
        grown_keys, grown_values = both[-2], both[-1]
        _matmul(grown_scores, keys, grown_query)
        grown_query.mul_(ctx.scale)
        _matmul(grown_scores.mT, query, grown_keys)
        _matmul(kept.mT, grown, grown_values)
        if turn is not None:
            grown_query.copy_(rotate_back(grown_query, turn))
            grown_keys.copy_(rotate_back(grown_keys, turn))
        if ctx.two:
            first, second = layout.join(grown_query[None]), memory_layout.join(both)
            return first, second, None, None
        return layout.join(both), None, None, None


def _through_softmax(grown: Tensor, weights: Tensor) -> Tensor:
    """The gradient in the scores [B, H, T, S] whose softmax is `weights`, in the place of that in the weights."""
    grown.mul_(weights)
    return grown.addcmul_(weights, grown.sum(-1, keepdim=True), value=-1.0)


def _matmul(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Batched product of [B, H, T, x] and [B, H, x, S], written to `out` if there is one."""
    batch, heads, rows, _ = left.shape
    flat = None if out is None else out.view(batch * heads, rows, -1)
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1), out=flat).view(batch, heads, rows, -1)
