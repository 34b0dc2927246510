"""All layers of an encoder or a decoder as one call of the engine's own kernels."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from translume.engine import native
from translume.engine.native import NativeError, address
from translume.engine.native_linear import LANES, NativeInt8Linear, NativeLinear
from translume.engine.probe import Dtype
from translume.engine.state import Segment
from translume.model.attention import CrossAttention, SelfAttention
from translume.model.layers import DecoderLayer, EncoderLayer, Ssru
from translume.model.layout import Layout
from translume.model.transformer import Decoder, Encoder

ACTIVATIONS = ("relu", "gelu", "swish", "swiglu")
"""In the order of `activation` of stack.h."""
LINEAR: dict[Dtype, type[NativeLinear]] = {"fp32": NativeLinear, "bf16": NativeLinear, "int8": NativeInt8Linear}


def native_layers(part: Encoder | Decoder, dtype: Dtype) -> "NativeLayers | None":
    """The layers as one call; None where the kernels are not there, or have nothing for layers of this kind."""
    try:
        return NativeLayers(part, dtype)
    except NativeError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many layers and attention heads, D, the feed-forward block's width, and whether there are cells."""

    count: int
    heads: int
    width: int
    inner: int
    cells: bool

    @classmethod
    def of(cls, part: Encoder | Decoder) -> "Shape":
        """Raises NativeError where the kernels are not there, or have nothing for layers of this kind."""
        native.kernels()
        layers: list[EncoderLayer | DecoderLayer] = [*part.stack]
        if not layers:
            raise NativeError("no layers")
        first = layers[0]
        mixing = first.self_attention
        heads = first.cross_attention.heads if isinstance(first, DecoderLayer) else first.self_attention.heads
        if isinstance(mixing, SelfAttention) and mixing.rotary:
            raise NativeError("nothing for rotary positions")
        width, inner = first.feed_forward.outer.weight.shape
        if width // heads % LANES or inner % LANES:
            raise NativeError(f"heads and feed-forward blocks are not whole vectors of {LANES}")
        return cls(count=len(layers), heads=heads, width=width, inner=inner, cells=isinstance(mixing, Ssru))

    def __str__(self) -> str:
        cells = " of cells" if self.cells else ""
        return f"{self.width}×{self.inner}, {self.heads} heads, {self.count} layers{cells}"


class NativeLayers:
    """The layers of an encoder or decoder and its last norm, packed; its marks are those of `Layers`."""

    rereads = True
    looks_up = True

    def __init__(self, part: Encoder | Decoder, dtype: Dtype) -> None:
        """Raises NativeError where the kernels are not there, or have nothing for layers of this kind."""
        self._kernels = native.kernels()
        self._linear = LINEAR[dtype]
        halves = dtype != "fp32" and self._kernels.halves
        self._kept: list[object] = []
        self.shape = Shape.of(part)
        # Cells are made of those before them, so that an error would grow.
        self.keeps = torch.float16 if halves and not self.shape.cells else torch.float32
        layers: list[EncoderLayer | DecoderLayer] = [*part.stack]
        forward, around = layers[0].feed_forward, layers[0].around_feed_forward
        norm = around.norm
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        self._layers = (native.Layer * len(layers))(*map(self._layer, layers))
        self._stack = native.Stack(
            width=self.shape.width,
            heads=self.shape.heads,
            layers=self.shape.count,
            before=around.before,
            cells=self.shape.cells,
            activation=ACTIVATIONS.index(forward.activation),
            root_mean_square=isinstance(norm, nn.RMSNorm),
            inner=self.shape.inner,
            epsilon=norm.eps,
            layer=self._layers,
            last=self._norm(part.norm),
        )
        self.address = ctypes.addressof(self._stack)

    def __deepcopy__(self, memo: dict[int, object]) -> "NativeLayers":
        """Itself: it holds addresses, and nothing writes to what stands there."""
        return self

    def _layer(self, layer: EncoderLayer | DecoderLayer) -> native.Layer:
        mixing, forward = layer.self_attention, layer.feed_forward
        packed = native.Layer(
            inner=self._map(forward.inner),
            outer=self._map(forward.outer),
            around_feed_forward=self._norm(layer.around_feed_forward.norm),
        )
        if isinstance(mixing, Ssru):
            packed.query_key_value = self._map(_joined(mixing.forget, mixing.update))
        else:
            packed.query_key_value = self._map(mixing.query_key_value, divide=_size(mixing))
            packed.mixed = self._map(mixing.output)
        if isinstance(layer, EncoderLayer):
            packed.around_self = self._norm(layer.around_attention.norm)
            return packed
        packed.around_self, packed.around_cross = (
            self._norm(layer.around_self.norm),
            self._norm(layer.around_cross.norm),
        )
        packed.query = self._map(layer.cross_attention.query, divide=_size(layer.cross_attention))
        packed.looked = self._map(layer.cross_attention.output)
        return packed

    def _map(self, linear: nn.Linear, divide: int = 0) -> native.Linear:
        """A map packed; divide: its queries, the first outputs, are divided by the root of so much."""
        weight = linear.weight.detach().float()
        bias = None if linear.bias is None else linear.bias.detach().float()
        if divide:
            factor = torch.ones(weight.size(0))
            factor[: weight.size(1)] = divide**-0.5
            weight, bias = weight * factor[:, None], None if bias is None else bias * factor
        packed = self._linear(weight, bias)
        self._kept.append(packed)
        return packed.map

    def _norm(self, norm: nn.Module) -> native.Norm:
        if isinstance(norm, nn.Identity):
            return native.Norm(None, None)
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        weight = norm.weight.detach().float().contiguous()
        bias = getattr(norm, "bias", None)
        bias = None if bias is None else bias.detach().float().contiguous()
        self._kept.append((weight, bias))
        return native.Norm(address(weight), address(bias))

    def room(self, rows: int, longest: int, each: int) -> Tensor:
        """What a call works in; each: rows that read the same keys and values."""
        return torch.empty(self._kernels.library.translume_room(self.address, rows, longest, each), dtype=torch.uint8)

    def encode(self, x: Tensor, layout: Layout) -> Tensor:
        """x [n, D], the embedded tokens of a layout, which is overwritten, to the same shape."""
        begins = torch.zeros(layout.mask.size(0) + 1, dtype=torch.int64)
        begins[1:] = layout.mask.sum(1).cumsum(0)
        longest, x = layout.mask.size(1), x.float().contiguous()
        room = self.room(x.size(0), longest, 1)
        self._kernels.library.translume_encode(
            self.address,
            begins.data_ptr(),
            layout.mask.size(0),
            longest,
            x.data_ptr(),
            room.data_ptr(),
        )
        return x

    def read(self, x: Tensor, segment: Segment) -> Tensor:
        """x [N, D], embedded target tokens, which is overwritten, to the same shape."""
        x = x.float().contiguous()
        # The kernels read this memory, so it must live until the call has returned.
        reach = None if segment.reach is None else segment.reach.contiguous()
        one = reading(segment, reach)
        longest = max(segment.end, segment.state.buffers.cross.size(3))
        room = self.room(x.size(0), longest, segment.state.width * segment.count)
        self._kernels.library.translume_step(self.address, ctypes.addressof(one), 1, x.data_ptr(), room.data_ptr())
        return x


def reading(segment: Segment, reach: Tensor | None) -> native.Reading:
    """A segment as the kernels know it."""
    state = segment.state
    past, cross = state.buffers.past, state.buffers.cross
    return native.Reading(
        past.data_ptr(),
        *past.stride()[:4],
        cross.data_ptr(),
        *cross.stride()[:3],
        address(state.buffers.hidden),
        address(reach),
        address(state.slots),
        state.sentences,
        state.width,
        segment.count,
        state.position,
        cross.size(3),
        past.dtype == torch.float16,
    )


def _size(attention: SelfAttention | CrossAttention) -> int:
    """What a head's vectors have numbers."""
    return int(attention.output.weight.size(0)) // attention.heads


def _joined(one: nn.Linear, other: nn.Linear) -> nn.Linear:
    """Both maps as one, the outputs of the first before those of the other."""
    maps = (one, other)
    joined = nn.Linear(one.in_features, sum(each.out_features for each in maps))
    shifts: list[Tensor] = [
        each.weight.new_zeros(each.out_features) if each.bias is None else each.bias for each in maps
    ]
    with torch.no_grad():
        joined.weight.copy_(torch.cat((one.weight, other.weight)))
        joined.bias.copy_(torch.cat(shifts))
    return joined
