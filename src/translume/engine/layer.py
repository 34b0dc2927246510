"""A decoder layer as a few calls: at one place, of K hypotheses a sentence, without a module between them.

The numbers are those of `model.layers.DecoderLayer`; only the order in which attention reads is another.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.engine.mixing import Attention, Cells, Map, Reading, attended, packed, scaled
from translume.engine.probe import Choice
from translume.model.layers import DecoderLayer, Ssru


class Layer:
    """One layer over buffers: past [2, B, H, capacity, K, d] and cross [2, B, H, S, d]."""

    def __init__(self, layer: DecoderLayer, choice: Choice) -> None:
        """layer: in evaluation mode; its linear maps are packed as `choice` says."""
        mixing, cross, forward = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.heads, self.before = cross.heads, layer.around_cross.before
        self.mix = Cells(mixing, choice) if isinstance(mixing, Ssru) else Attention(mixing, choice)
        width = cross.query.weight.size(1)
        self.query, self.looked = scaled(cross.query, width // self.heads, width, choice), packed(cross.output, choice)
        self.inner, self.outer = packed(forward.inner, choice), packed(forward.outer, choice)
        self.activation = _ACTIVATIONS[forward.activation]
        self.norm_self, self.norm_cross = _norm(layer.around_self.norm), _norm(layer.around_cross.norm)
        self.norm_feed_forward = _norm(layer.around_feed_forward.norm)

    def __call__(self, x: Tensor, past: Tensor, cross: Tensor, reading: Reading) -> Tensor:
        """x [B·K·t, D], which may be overwritten, to the same shape; its keys and values are written into the past."""
        if self.before:
            x = self.mix(self.norm_self(x), past, reading).add_(x)
            x = self._look(self.norm_cross(x), cross, reading).add_(x)
            return self.outer(self.activation(self.inner(self.norm_feed_forward(x)))).add_(x)
        x = self.norm_self(self.mix(x, past, reading).add_(x))
        x = self.norm_cross(self._look(x, cross, reading).add_(x))
        return self.norm_feed_forward(self.outer(self.activation(self.inner(x))).add_(x))

    def _look(self, x: Tensor, cross: Tensor, reading: Reading) -> Tensor:
        """Cross-attention: the K hypotheses of a sentence, or their t tokens, are one query of so many places."""
        queries = reading.width * reading.count
        query = self.query(x).view(cross.size(1), queries, self.heads, cross.size(4)).transpose(1, 2)
        return self.looked(attended(query, cross, reading.hidden))


def _norm(norm: nn.Module) -> Map:
    """The norm as one call."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, bias, epsilon = list(norm.normalized_shape), norm.weight.float(), norm.bias, norm.eps
        shift = None if bias is None else bias.float()
        return lambda x: torch.layer_norm(x, shape, weight, shift, epsilon)
    if isinstance(norm, nn.RMSNorm):
        size, scale, small = list(norm.normalized_shape), norm.weight.float(), norm.eps
        return lambda x: torch.rms_norm(x, size, scale, small)
    return lambda x: x


def _gated(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return F.silu(gate).mul_(value)


_ACTIVATIONS: dict[str, Map] = {"relu": torch.relu_, "gelu": F.gelu, "swish": F.silu, "swiglu": _gated}
