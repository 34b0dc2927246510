"""A decoder layer as a few calls: at one place, of K hypotheses a sentence, without a module between them.

The numbers are those of `model.layers.DecoderLayer`; only the order in which attention reads is another.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.engine.probe import Choice
from translume.model.attention import SelfAttention
from translume.model.layers import DecoderLayer
from translume.model.positions import rotate

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What every layer needs to know of a step.

    place: of the tokens that are read.  width: K.
    unread: [B, 1, K, (place+1)·K], −inf where a hypothesis does not continue what stands there; None where K is 1.
    hidden: [B, 1, 1, S], −inf where no source token stands; None where all do.
    turn: of this place, for rotary positions.
    """

    place: int
    width: int
    unread: Tensor | None
    hidden: Tensor | None
    turn: Tensor | None


class Layer:
    """One layer over buffers: past [2, B, H, capacity, K, d] and cross [2, B, H, S, d]."""

    def __init__(self, layer: DecoderLayer, choice: Choice) -> None:
        """layer: in evaluation mode; its linear maps are packed as `choice` says."""
        attention, cross, forward = layer.self_attention, layer.cross_attention, layer.feed_forward
        assert isinstance(attention, SelfAttention)  # `build_engine` refuses others by name
        self.heads, self.before = cross.heads, layer.around_cross.before
        width = cross.query.weight.size(1)
        self.query_key_value = _scaled(attention.query_key_value, width // self.heads, width, choice)
        self.query = _scaled(cross.query, width // self.heads, width, choice)
        self.mixed, self.looked = _packed(attention.output, choice), _packed(cross.output, choice)
        self.inner, self.outer = _packed(forward.inner, choice), _packed(forward.outer, choice)
        self.activation = _ACTIVATIONS[forward.activation]
        self.norm_self, self.norm_cross = _norm(layer.around_self.norm), _norm(layer.around_cross.norm)
        self.norm_feed_forward = _norm(layer.around_feed_forward.norm)

    def __call__(self, x: Tensor, past: Tensor, cross: Tensor, reading: Reading) -> Tensor:
        """x [B·K, D], which may be overwritten, to the same shape; its keys and values are written into the past."""
        if self.before:
            x = self._attend(self.norm_self(x), past, reading).add_(x)
            x = self._look(self.norm_cross(x), cross, reading).add_(x)
            return self.outer(self.activation(self.inner(self.norm_feed_forward(x)))).add_(x)
        x = self.norm_self(self._attend(x, past, reading).add_(x))
        x = self.norm_cross(self._look(x, cross, reading).add_(x))
        return self.norm_feed_forward(self.outer(self.activation(self.inner(x))).add_(x))

    def _attend(self, x: Tensor, past: Tensor, reading: Reading) -> Tensor:
        """Self-attention: a sentence's K hypotheses read all that any of them wrote, but for what is not theirs."""
        place, width = reading.place, reading.width
        parts = self.query_key_value(x).view(past.size(1), width, 3, self.heads, past.size(5)).permute(2, 0, 3, 1, 4)
        query = parts[0]
        if reading.turn is None:
            past[:, :, :, place] = parts[1:]
        else:
            query = rotate(query, reading.turn)
            past[0, :, :, place] = rotate(parts[1], reading.turn)
            past[1, :, :, place] = parts[2]
        return self.mixed(_mix(query, past[:, :, :, : place + 1].flatten(3, 4), reading.unread))

    def _look(self, x: Tensor, cross: Tensor, reading: Reading) -> Tensor:
        """Cross-attention: the K hypotheses of a sentence are one query of K places."""
        query = self.query(x).view(cross.size(1), reading.width, self.heads, cross.size(4)).transpose(1, 2)
        return self.looked(_mix(query, cross, reading.hidden))


def _mix(query: Tensor, both: Tensor, hidden: Tensor | None) -> Tensor:
    """Softmax(Q Kᵀ) V, [B·K, D], of a scaled query [B, H, K, d] over keys and values [2, B, H, S, d].

    hidden: what is added to the scores, −inf where reading is not allowed.
    """
    keys, values = both.unbind()
    scores = torch.matmul(query, keys.mT)
    if hidden is not None:
        scores.add_(hidden)
    mixed = torch.matmul(scores.softmax(-1), values)
    batch, heads, width, size = query.shape
    if width == 1:
        return mixed.view(batch, heads * size)
    return mixed.transpose(1, 2).reshape(batch * width, heads * size)


def _packed(linear: nn.Linear, choice: Choice) -> Map:
    return choice.pack(linear.weight, linear.bias).forward


def _scaled(linear: nn.Linear, size: int, rows: int, choice: Choice) -> Map:
    """The map packed, its first `rows` outputs, the queries, divided by √size as attention wants them."""
    factor = torch.ones(linear.weight.size(0))
    factor[:rows] = size**-0.5
    bias = None if linear.bias is None else linear.bias.detach().float() * factor
    return choice.pack(linear.weight.detach().float() * factor[:, None], bias).forward


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


_ACTIVATIONS: dict[str, Map] = {"relu": torch.relu_, "gelu": F.gelu, "swiglu": _gated}
