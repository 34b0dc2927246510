"""Multi-head attention (Vaswani et al. 2017, section 3.2): packed batches in training, a cache in decoding."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.dropout import keep_mask, rounded
from translume.model.layout import Layout
from translume.model.positions import rotate, rotate_back, rotation
from translume.model.state import KeyValue, LayerPast

AttentionBackend = Literal["plain", "fused"]
"""How attention is computed: matrix products and a softmax written out, or torch's scaled_dot_product_attention."""


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """How tokens are mixed. causal: each reads those up to itself.  rate: of dropout on the weights.

    turn: [2, G, D/H], rotary positions, or None.
    """

    heads: int
    form: AttentionBackend = "plain"
    rate: float = 0.0
    causal: bool = False
    turn: Tensor | None = None


def packed_attention(
    first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], mixing: AttentionOptions
) -> Tensor:
    """[n, D] from queries, keys and values [n, 3D] of one sequence, or queries [n, D], keys and values [m, 2D] of two.

    layouts: of the queries, and of the keys and values.
    """
    if mixing.form == "fused":
        return _fused(first, second, layouts, mixing)
    result: Tensor = _Plain.apply(first, second, layouts, mixing)  # type: ignore[no-untyped-call]  # torch's has no types
    return result


def _fused(first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], mixing: AttentionOptions) -> Tensor:
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
        ctx: Any, first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], mixing: AttentionOptions
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


class SelfAttention(nn.Module):
    """Softmax(Q Kᵀ / √d) V with H heads, of a sequence over itself."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.width
        self.heads, self.dropout = settings.attention_heads, settings.attention_dropout
        self.rotary = settings.positions == "rotary"
        self.form: AttentionBackend = "plain"
        self.query_key_value = nn.Linear(width, 3 * width, settings.bias)
        self.output = nn.Linear(width, width, settings.bias)
        initialise(self.query_key_value, parts=3)
        initialise(self.output)

    def packed(self, x: Tensor, layout: Layout, causal: bool) -> Tensor:
        """x [n, D], the tokens of a layout, to the same shape; causal: each reads those up to itself."""
        turn = None
        if self.rotary:
            turn = rotation(torch.arange(layout.grid.size(1), device=x.device), x.size(-1) // self.heads)
        mixing = AttentionOptions(self.heads, self.form, self.dropout if self.training else 0.0, causal, turn)
        mixed = packed_attention(self.query_key_value(x), None, (layout, layout), mixing)
        result: Tensor = self.output(mixed)
        return result

    def begin(self, memory: Tensor) -> KeyValue:
        """What `cached` needs before the first token, for the sentences of a memory [B, S, D]."""
        none = memory.new_empty(memory.size(0), self.heads, 0, memory.size(2) // self.heads)
        return KeyValue(none, none, 0)

    def cached(self, x: Tensor, past: LayerPast, place: int) -> Tensor:
        """x [N, t, D] at places `place` … to the same shape; their keys and values are added to the past."""
        assert isinstance(past, KeyValue)
        query, keys, values = self._heads(x, place)
        past.write(keys, values, place)
        keys, values = past.read(place + x.size(1))
        mixed = attend(query, keys, values, causal_mask(x.size(1), place, x.device))
        result: Tensor = self.output(_merge(mixed))
        return result

    def weights(self, x: Tensor, mask: Tensor, *, causal: bool) -> Tensor:
        """The attention weights [N, H, t, t] that `packed` and `cached` never show; mask [N, t]."""
        query, keys, _ = self._heads(x, 0)
        allowed = mask[:, None, None]
        if causal:
            allowed = allowed & torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()
        return attention_weights(query, keys, allowed)

    def _heads(self, x: Tensor, place: int) -> tuple[Tensor, Tensor, Tensor]:
        query, keys, values = (_split(part, self.heads) for part in self.query_key_value(x).chunk(3, -1))
        if self.rotary:
            turn = rotation(torch.arange(place, place + x.size(1), device=x.device), query.size(-1))
            query, keys = rotate(query, turn), rotate(keys, turn)
        return query, keys, values


class CrossAttention(nn.Module):
    """Softmax(Q Kᵀ / √d) V with H heads, of the target over the memory."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.width
        self.heads, self.dropout = settings.attention_heads, settings.attention_dropout
        self.form: AttentionBackend = "plain"
        self.query = nn.Linear(width, width, settings.bias)
        self.key_value = nn.Linear(width, 2 * width, settings.bias)
        self.output = nn.Linear(width, width, settings.bias)
        initialise(self.query)
        initialise(self.key_value, parts=2)
        initialise(self.output)

    def read(self, memory: Tensor) -> KeyValue:
        """Keys and values of a memory [B, S, D], made once a sentence."""
        keys, values = (_split(part, self.heads) for part in self.key_value(memory).chunk(2, -1))
        return KeyValue(keys, values, memory.size(1))

    def packed(self, x: Tensor, memory: Tensor, layout: Layout, memory_layout: Layout) -> Tensor:
        """x [n, D] and memory [m, D], the tokens of two layouts with the same rows, to [n, D]."""
        mixing = AttentionOptions(self.heads, self.form, self.dropout if self.training else 0.0)
        mixed = packed_attention(self.query(x), self.key_value(memory), (layout, memory_layout), mixing)
        result: Tensor = self.output(mixed)
        return result

    def cached(self, x: Tensor, memory: KeyValue, mask: Tensor) -> Tensor:
        """x [B·K, t, D] over the memory of B sentences, mask [B, S], to the shape of x.

        The K rows of a sentence are read as one long query, so that its keys are not copied K times.
        """
        batch, length = mask.size(0), x.size(1)
        query = self.query(x).view(batch, -1, x.size(2))  # [B, K·t, D]
        allowed = None if bool(mask.all()) else mask[:, None, None]
        mixed = _merge(attend(_split(query, self.heads), memory.keys, memory.values, allowed))
        result: Tensor = self.output(mixed.view(-1, length, x.size(2)))
        return result

    def weights(self, x: Tensor, memory: KeyValue, mask: Tensor) -> Tensor:
        """The attention weights [B, H, t, S] that `packed` and `cached` never show."""
        return attention_weights(_split(self.query(x), self.heads), memory.keys, mask[:, None, None])


def attend(query: Tensor, keys: Tensor, values: Tensor, allowed: Tensor | None) -> Tensor:
    """query [N, H, t, d] over keys and values [N, H, S, d]; allowed is True where reading is, and broadcasts.

    A query that may read nothing gets zeros.
    """
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=allowed)


def attention_weights(query: Tensor, keys: Tensor, allowed: Tensor) -> Tensor:
    """The weights [N, H, t, S] behind `attend`; zeros for a query that may read nothing."""
    scores = query @ keys.mT / math.sqrt(query.size(-1))
    return scores.masked_fill(~allowed, -math.inf).softmax(-1).masked_fill(~allowed, 0.0)


def causal_mask(count: int, place: int, device: torch.device) -> Tensor | None:
    """[count, place + count]: what the tokens at `place` … may read; None for a single one, which reads all."""
    if count == 1:
        return None
    return torch.ones(count, place + count, dtype=torch.bool, device=device).tril(place)


def initialise(linear: nn.Linear, parts: int = 1) -> None:
    """Xavier's uniform weights (Glorot and Bengio 2010) for each of `parts` maps stacked in one; biases zero."""
    for weight in linear.weight.data.chunk(parts):
        nn.init.xavier_uniform_(weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def _merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)
