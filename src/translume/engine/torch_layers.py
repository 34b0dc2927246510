"""The layers of a decoder computed by torch, for K hypotheses per sentence, without a module call per operation.

The numbers are those of `model.layers.DecoderLayer`, except for the order in which attention reads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.engine.packing import scaled_queries
from translume.engine.probe import Choice
from translume.engine.state import StepInput
from translume.model.attention import SelfAttention, rotate
from translume.model.layers import DecoderLayer, Ssru
from translume.model.transformer import Decoder

Function = Callable[[Tensor], Tensor]


class TorchLayers:
    """The layers of a decoder and its final norm, packed; attributes as in `Layers`."""

    indirect_slots = False
    cache_dtype = torch.float32

    def __init__(self, decoder: Decoder, choice: Choice) -> None:
        self._decoder = decoder
        self._layers = [_Layer(layer, choice) for layer in decoder.stack]
        self.reads_blocks = all(isinstance(layer.mixer, _SelfAttention) for layer in self._layers)

    def read(self, x: Tensor, step: StepInput) -> Tensor:
        """Run the layers over embedded target tokens x [N, D], which may be overwritten."""
        x = self._decoder.embedding.norm(x)
        state, count, ancestors = step.state, step.count, step.ancestors
        past, cross, position = state.cache.past, state.cache.cross, state.position
        positions = self._decoder.embedding.positions.for_attention(position, count, causal=True, device=x.device)
        unread = _causal_bias(position, count, x) if ancestors is None else _ancestor_bias(ancestors, state.width)
        if positions.bias is not None:
            bias = positions.bias.repeat_interleave(state.width, -1)  # the K keys of a position are next to each other
            unread = bias if unread is None else bias + unread
        masks = _Masks(
            position=position,
            width=state.width,
            count=count,
            unread=unread,
            origin=None if ancestors is None or position == 0 else ancestors[:, :, position - 1],
            source_bias=state.cache.source_bias,
            rotation=positions.rotation,
        )
        for number, layer in enumerate(self._layers):
            x = layer(x, past[2 * number : 2 * number + 2], cross[2 * number : 2 * number + 2], masks)
        result: Tensor = self._decoder.norm(x)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Masks:
    """Values that all layers share in a step.

    position: of the first token read.  width: K.  count: tokens read per hypothesis, t; 1 unless K is 1.
    unread: [B, 1, K, (position+1)·K], −inf except at ancestors; if K is 1, the causal mask [t, position+t];
        None if K and t are 1. A position bias is added to it.
    origin: [B, K], the hypothesis at the previous position that each continues; None if K is 1 or at the first one.
    source_bias: [B, 1, 1, S], −inf at padding; None without padding.
    rotation: of these positions, if the position encoding rotates.
    """

    position: int
    width: int
    count: int
    unread: Tensor | None
    origin: Tensor | None
    source_bias: Tensor | None
    rotation: Tensor | None


class _Layer:
    """One layer over a cache: past [2, B, H, capacity, K, d] and cross [2, B, H, S, d]."""

    def __init__(self, layer: DecoderLayer, choice: Choice) -> None:
        mixer, forward = layer.self_attention, layer.feed_forward
        self.crosses, self.pre_norm = layer.crosses, layer.around_self.before
        self.mixer = _SsruCells(mixer, choice) if isinstance(mixer, Ssru) else _SelfAttention(mixer, choice)
        if layer.crosses:
            cross = layer.cross_attention
            self.heads = cross.heads
            queries = scaled_queries(cross.query, cross.query.out_features, cross.head_size)
            self.cross_query = choice.pack(*queries).forward
            self.cross_output = _pack(cross.output, choice)
            self.norm_cross = _norm(layer.around_cross.norm)
        self.inner, self.outer = _pack(forward.inner, choice), _pack(forward.outer, choice)
        self.activation = _ACTIVATIONS[forward.activation]
        self.norm_self = _norm(layer.around_self.norm)
        self.norm_feed_forward = _norm(layer.around_feed_forward.norm)

    def __call__(self, x: Tensor, past: Tensor, cross: Tensor, masks: _Masks) -> Tensor:
        """Map x [B·K·t, D], which may be overwritten, to the same shape; write its keys and values to `past`."""
        if self.pre_norm:
            x = self.mixer(self.norm_self(x), past, masks).add_(x)
            if self.crosses:
                x = self._cross_attention(self.norm_cross(x), cross, masks).add_(x)
            return self.outer(self.activation(self.inner(self.norm_feed_forward(x)))).add_(x)
        x = self.norm_self(self.mixer(x, past, masks).add_(x))
        if self.crosses:
            x = self.norm_cross(self._cross_attention(x, cross, masks).add_(x))
        return self.norm_feed_forward(self.outer(self.activation(self.inner(x))).add_(x))

    def _cross_attention(self, x: Tensor, cross: Tensor, masks: _Masks) -> Tensor:
        """Return x plus cross-attention. The K·t rows of a sentence are the queries of one product."""
        queries = masks.width * masks.count
        query = self.cross_query(x).view(cross.size(1), queries, self.heads, cross.size(4)).transpose(1, 2)
        return self.cross_output(_attend(query, cross, masks.source_bias))


class _SelfAttention:
    """Self-attention: each hypothesis reads the cache of its sentence, with entries of other hypotheses masked."""

    def __init__(self, attention: SelfAttention, choice: Choice) -> None:
        self.heads = attention.heads
        queries = scaled_queries(attention.query_key_value, attention.output.in_features, attention.head_size)
        self.query_key_value = choice.pack(*queries).forward
        self.output = _pack(attention.output, choice)

    def __call__(self, x: Tensor, past: Tensor, masks: _Masks) -> Tensor:
        """Map x [B·K·t, D] to the same shape; write its keys and values to `past`."""
        position, count = masks.position, masks.count
        shape = (past.size(1), masks.width * count, 3, self.heads, past.size(5))
        parts = self.query_key_value(x).view(shape).permute(2, 0, 3, 1, 4)
        query = parts[0]
        new = past[:, :, :, position] if count == 1 else past[:, :, :, position : position + count, 0]
        if masks.rotation is None:
            new[:] = parts[1:]
        else:
            query = rotate(query, masks.rotation)
            new[0] = rotate(parts[1], masks.rotation)
            new[1] = parts[2]
        return self.output(_attend(query, past[:, :, :, : position + count].flatten(3, 4), masks.unread))


class _SsruCells:
    """The cells of an SSRU (Kim et al. 2019) in fp32, stored in place of keys."""

    def __init__(self, unit: Ssru, choice: Choice) -> None:
        self.forget, self.update = _pack(unit.forget, choice), _pack(unit.update, choice)

    def __call__(self, x: Tensor, past: Tensor, masks: _Masks) -> Tensor:
        """Map x [B·K, D] to the same shape; write its cells to `past`."""
        batch, heads, _, width, size = past[0].shape
        gate, new = (part.view(batch, width, heads, size) for part in (self.forget(x).sigmoid_(), self.update(x)))
        if masks.position == 0:
            cells = new - new * gate
        else:
            before = past[0, :, :, masks.position - 1].transpose(1, 2)  # [B, K, H, d]
            if masks.origin is not None:
                before = before.gather(1, masks.origin[..., None, None].expand(-1, -1, heads, size))
            cells = torch.lerp(new, before, gate)
        past[0, :, :, masks.position] = cells.transpose(1, 2)
        return cells.view(batch * width, heads * size).relu()


def _attend(query: Tensor, key_value: Tensor, bias: Tensor | None) -> Tensor:
    """Return softmax(Q Kᵀ + bias) V, [B·K, D], of scaled queries [B, H, K, d], and keys and values [2, B, H, S, d]."""
    keys, values = key_value.unbind()
    scores = torch.matmul(query, keys.mT)
    if bias is not None:
        scores.add_(bias)
    mixed = torch.matmul(scores.softmax(-1), values)
    batch, heads, width, size = query.shape
    if width == 1:
        return mixed.view(batch, heads * size)
    return mixed.transpose(1, 2).reshape(batch * width, heads * size)


def _causal_bias(position: int, count: int, x: Tensor) -> Tensor | None:
    """Return [t, position + t], −inf after each of t tokens from `position` on; None for one token, which reads all."""
    if count == 1:
        return None
    return torch.full((count, position + count), -math.inf, dtype=x.dtype, device=x.device).triu_(position + 1)


def _ancestor_bias(ancestors: Tensor, width: int) -> Tensor:
    """Return [B, 1, K, t·K] from ancestors [B, K, t]: −inf at cache entries that a hypothesis does not continue."""
    own = torch.arange(width, device=ancestors.device) == ancestors[..., None]  # [B, K, t, K]
    zeros = torch.zeros(own.shape, device=ancestors.device)
    return zeros.masked_fill_(~own, -math.inf).flatten(2)[:, None]


def _pack(linear: nn.Linear, choice: Choice) -> Function:
    return choice.pack(linear.weight, linear.bias).forward


def _norm(norm: nn.Module) -> Function:
    """Return the norm as one call."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, bias, epsilon = list(norm.normalized_shape), norm.weight.float(), norm.bias, norm.eps
        shift = None if bias is None else bias.float()
        return lambda x: torch.layer_norm(x, shape, weight, shift, epsilon)
    if isinstance(norm, nn.RMSNorm):
        size, scale, small = list(norm.normalized_shape), norm.weight.float(), norm.eps
        return lambda x: torch.rms_norm(x, size, scale, small)
    return lambda x: x


def _swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return F.silu(gate).mul_(value)


def _geglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return F.gelu(gate, approximate="tanh").mul_(value)


_ACTIVATIONS: dict[str, Function] = {
    "relu": torch.relu_, "gelu": F.gelu, "swish": F.silu, "swiglu": _swiglu, "geglu": _geglu,
}  # fmt: skip
