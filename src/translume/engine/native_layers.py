"""All layers of an encoder or a decoder in one call of the compiled kernels."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from translume.engine.packing import LANES, NativeBfloat16Linear, NativeInt8Linear, NativeLinear, scaled_queries
from translume.engine.probe import Dtype
from translume.engine.state import KVCache, StepInput
from translume.kernels import loading
from translume.kernels.loading import NativeError, address
from translume.model.attention import SelfAttention
from translume.model.layers import DecoderLayer, EncoderLayer, Ssru
from translume.model.layout import Layout
from translume.model.positions import PositionEncoding
from translume.model.transformer import Decoder, Encoder

ACTIVATIONS = ("relu", "gelu", "swish", "swiglu", "geglu")
"""In the order of `activation` of stack.h."""
LINEAR: dict[Dtype, type[NativeLinear]] = {"fp32": NativeLinear, "bf16": NativeBfloat16Linear, "int8": NativeInt8Linear}


def cache_heads(layer: DecoderLayer) -> int:
    """Return the number of heads in the KV cache of a decoder layer: 1 for cells without cross-attention."""
    if layer.crosses:
        return layer.cross_attention.heads
    return layer.self_attention.heads if isinstance(layer.self_attention, SelfAttention) else 1


def native_layers(part: Encoder | Decoder, dtype: Dtype) -> "NativeLayers | None":
    """Return the layers for the kernels; None if the kernels are not available or do not support these layers."""
    try:
        return NativeLayers(part, dtype)
    except NativeError:
        return None


def unsupported(part: Encoder | Decoder) -> str:
    """Return why the kernels do not compute the layers of a stack; empty if they do."""
    try:
        Shape.of(part)
    except NativeError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Number of layers and attention heads, D, the inner width of the feed-forward block, and whether it has SSRUs.

    head_size: of queries, keys and values.  crosses: whether the layers have cross-attention.
    """

    count: int
    heads: int
    head_size: int
    width: int
    inner: int
    ssru: bool
    crosses: bool

    @classmethod
    def of(cls, part: Encoder | Decoder) -> "Shape":
        """Return the shape of a stack. Raises NativeError if the kernels are not available or do not support it."""
        loading.kernels()
        layers: list[EncoderLayer | DecoderLayer] = [*part.stack]
        if not layers:
            raise NativeError("no layers")
        first = layers[0]
        mixer = first.self_attention
        heads = cache_heads(first) if isinstance(first, DecoderLayer) else first.self_attention.heads
        crosses = isinstance(first, DecoderLayer) and first.crosses
        positions = part.embedding.positions
        if isinstance(mixer, SelfAttention) and positions.in_attention and not positions.kernels:
            raise NativeError(f"model.positions: the kernels have no {type(positions).__name__}")
        if first.feed_forward.activation not in ACTIVATIONS:
            raise NativeError(f"model.activation: the kernels have no {first.feed_forward.activation!r}")
        width, inner = first.feed_forward.outer.weight.shape
        head_size = mixer.head_size if isinstance(mixer, SelfAttention) else width // heads
        if width % LANES or head_size % LANES or inner % LANES:
            raise NativeError(f"the widths of layers, heads and feed-forward blocks must be multiples of {LANES}")
        return cls(
            count=len(layers),
            heads=heads,
            head_size=head_size,
            width=width,
            inner=inner,
            ssru=isinstance(mixer, Ssru),
            crosses=crosses,
        )

    def __str__(self) -> str:
        cells = " of cells" if self.ssru else ""
        alone = "" if self.crosses else " without cross-attention"
        size = "" if self.heads * self.head_size == self.width else f" of {self.head_size}"
        return f"{self.width}×{self.inner}, {self.heads} heads{size}, {self.count} layers{cells}{alone}"


class NativeLayers:
    """The layers of an encoder or decoder and its final norm, packed; attributes as in `Layers`.

    longest: maximum number of tokens, if attention reads tables of positions; None: any number.
    """

    reads_blocks = True
    indirect_slots = True
    longest: int | None = None

    def __init__(self, part: Encoder | Decoder, dtype: Dtype) -> None:
        """Raises NativeError if the kernels are not available or do not support these layers."""
        self._kernels = loading.kernels()
        self._linear = LINEAR[dtype]
        self._kept: list[object] = []  # owns the memory that the structures point to
        self.shape = Shape.of(part)
        # Each SSRU cell is computed from the one before, so that rounding errors would accumulate in fp16.
        fp16 = dtype != "fp32" and self._kernels.fp16 and not self.shape.ssru
        self.cache_dtype = torch.float16 if fp16 else torch.float32
        layers: list[EncoderLayer | DecoderLayer] = [*part.stack]
        forward, around = layers[0].feed_forward, layers[0].around_feed_forward
        norm = around.norm
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        self._layers = (loading.Layer * len(layers))(*map(self._layer, layers))
        self._stack = loading.Stack(
            width=self.shape.width,
            heads=self.shape.heads,
            head_size=self.shape.head_size,
            layers=self.shape.count,
            pre_norm=around.before,
            ssru=self.shape.ssru,
            activation=ACTIVATIONS.index(forward.activation),
            rms_norm=isinstance(norm, nn.RMSNorm),
            inner=self.shape.inner,
            epsilon=norm.eps,
            layer=self._layers,
            first_norm=self._norm(part.embedding.norm),
            final_norm=self._norm(part.norm),
            **self._positions(part),
        )
        self.address = ctypes.addressof(self._stack)

    def __deepcopy__(self, memo: dict[int, object]) -> "NativeLayers":
        """Return itself: it holds addresses of tensors that are never written to."""
        return self

    def _layer(self, layer: EncoderLayer | DecoderLayer) -> loading.Layer:
        mixer, forward = layer.self_attention, layer.feed_forward
        packed = loading.Layer(
            inner=self._pack(forward.inner),
            outer=self._pack(forward.outer),
            norm_feed_forward=self._norm(layer.around_feed_forward.norm),
        )
        if isinstance(mixer, Ssru):
            packed.query_key_value = self._pack(_concatenate(mixer.forget, mixer.update))
        else:
            queries, size = mixer.output.in_features, mixer.head_size
            packed.query_key_value = self._pack_scaled(mixer.query_key_value, queries, size)
            packed.self_output = self._pack(mixer.output)
        if isinstance(layer, EncoderLayer):
            packed.norm_self = self._norm(layer.around_attention.norm)
            return packed
        packed.norm_self = self._norm(layer.around_self.norm)
        if not layer.crosses:
            return packed
        packed.norm_cross = self._norm(layer.around_cross.norm)
        cross = layer.cross_attention
        packed.cross_query = self._pack_scaled(cross.query, cross.query.out_features, cross.head_size)
        packed.cross_output = self._pack(cross.output)
        return packed

    def _pack(self, linear: nn.Linear) -> loading.Linear:
        return self._keep(self._linear(linear.weight, linear.bias))

    def _pack_scaled(self, linear: nn.Linear, queries: int, head_size: int) -> loading.Linear:
        """Pack a layer whose first outputs are queries; see `scaled_queries`."""
        return self._keep(self._linear(*scaled_queries(linear, queries, head_size)))

    def _keep(self, packed: NativeLinear) -> loading.Linear:
        self._kept.append(packed)
        return packed.struct

    def _norm(self, norm: nn.Module) -> loading.Norm:
        if isinstance(norm, nn.Identity):
            return loading.Norm(None, None)
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        weight = norm.weight.detach().float().contiguous()
        bias = getattr(norm, "bias", None)
        bias = None if bias is None else bias.detach().float().contiguous()
        self._kept.append((weight, bias))
        return loading.Norm(address(weight), address(bias))

    @torch.no_grad()
    def _positions(self, part: Encoder | Decoder) -> dict[str, Any]:
        """Return the fields of `stack` with what attention applies; see `position_tables`."""
        positions, causal = part.embedding.positions, isinstance(part, Decoder)
        if self.shape.ssru or not positions.in_attention:
            return {}
        self.longest = positions.longest
        rotation, bias = position_tables(positions, causal=causal)
        self._kept.append((rotation, bias))
        distances = 0 if bias is None else bias.size(1)
        return {"rotation": address(rotation), "bias": address(bias), "reach": positions.reach, "distances": distances}

    def _check_positions(self, end: int) -> None:
        """Raise ValueError if the kernels would read beyond the tables of positions."""
        if self.longest is not None and end > self.longest:
            raise ValueError(f"found {end} positions, expected at most model.max_positions, {self.longest}")

    def workspace(self, rows: int, longest: int, rows_per_sentence: int) -> Tensor:
        """Allocate the memory that a call works in. rows_per_sentence: rows that read the same keys and values."""
        size = self._kernels.library.translume_workspace(self.address, rows, longest, rows_per_sentence)
        return torch.empty(size, dtype=torch.uint8)

    def encode(self, x: Tensor, layout: Layout) -> Tensor:
        """Run the encoder over embedded tokens x [n, D] of a layout, which is overwritten."""
        begins = torch.zeros(layout.mask.size(0) + 1, dtype=torch.int64)
        begins[1:] = layout.mask.sum(1).cumsum(0)
        longest, x = layout.mask.size(1), x.float().contiguous()
        self._check_positions(longest)
        memory = torch.empty(
            self._kernels.library.translume_encode_workspace(self.address, x.size(0), longest), dtype=torch.uint8
        )
        self._kernels.library.translume_encode(
            self.address, begins.data_ptr(), layout.mask.size(0), longest, x.data_ptr(), memory.data_ptr()
        )
        return x

    def read(self, x: Tensor, step: StepInput) -> Tensor:
        """Run the layers over embedded target tokens x [N, D], which is overwritten."""
        self._check_positions(step.end)
        x = x.float().contiguous()
        state = step.state
        # The kernels read this memory, so it must live until the call has returned.
        ancestors = None if step.ancestors is None else step.ancestors.contiguous()
        view = cache_struct(state.cache)
        lanes = structures(
            loading.Lane,
            state.sentences,
            {
                "cache": ctypes.addressof(view),
                "slot": np.arange(state.sentences) if state.slots is None else state.slots.numpy(),
                "position": state.position,
                "beam": state.width,
                "ancestors": 0 if ancestors is None else addresses(ancestors),
            },
        )
        pointers = addresses(lanes)
        attention, source = step.attention, state.cache.cross.size(3)
        struct = loading.StepInput(pointers.ctypes.data, state.sentences, step.count, address(attention), source)
        longest = max(step.end, state.cache.cross.size(3))
        memory = self.workspace(x.size(0), longest, state.width * step.count)
        self._kernels.library.translume_step(self.address, ctypes.addressof(struct), x.data_ptr(), memory.data_ptr())
        return x


def position_tables(positions: PositionEncoding, *, causal: bool) -> tuple[Tensor | None, Tensor | None]:
    """Return the tables of `stack`: rotations [longest, 2, d] and biases by distance [H, distances], or None.

    causal: whether no query reads later keys; then the biases are those of distances −reach … 0, otherwise −reach …
    reach.
    """
    device = torch.device("cpu")
    if positions.for_attention(0, 1, causal=causal, device=device).rotation is not None:
        turns = positions.for_attention(0, positions.longest, causal=causal, device=device).rotation
        return (None if turns is None else turns.transpose(0, 1).float().contiguous()), None
    reach = positions.reach
    first = reach if causal else 0
    bias = positions.for_attention(first, reach + 1 - first, causal=causal, device=device).bias
    if bias is None:
        return None, None
    later = bias[:, 0, 1:] if not causal else bias[:, 0, :0]
    return None, torch.cat([bias[:, -1], later], 1).float().contiguous()


def cache_struct(cache: KVCache) -> loading.KeyValueCache:
    """Return the kernels' view of a cache."""
    return loading.KeyValueCache(
        cache.past.data_ptr(),
        *cache.past.stride()[:4],
        cache.cross.data_ptr(),
        *cache.cross.stride()[:3],
        address(cache.source_bias),
        cache.cross.size(3),
        cache.past.size(3),
        cache.past.dtype == torch.float16,
    )


def structures(kind: type[ctypes.Structure], count: int, fields: Mapping[str, NDArray[np.int64] | int]) -> Tensor:
    """Return `count` structures [count, fields], whose fields are int64 or addresses. Other fields are 0.

    kind: may begin with a lane, whose fields count as its own.  fields: the value of each structure [count], or of all.
    """
    made = np.zeros((count, ctypes.sizeof(kind) // 8), np.int64)  # NumPy writes a few numbers faster than torch
    for name, values in fields.items():
        made[:, field_place(kind, name)] = values
    return torch.from_numpy(made)


@cache
def field_place(kind: type[ctypes.Structure], name: str) -> int:
    """Return the column of a field in `structures`."""
    return int(getattr(kind if hasattr(kind, name) else loading.Lane, name).offset) // 8


def addresses(tensor: Tensor) -> NDArray[np.int64]:
    """Return the address [B] of each row of a contiguous tensor [B, …]."""
    size = tensor.stride(0) * tensor.element_size()
    return tensor.data_ptr() + size * np.arange(tensor.size(0))


def _concatenate(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """Return one layer with the outputs of both."""
    parts = (first, second)
    joined = nn.Linear(first.in_features, sum(each.out_features for each in parts))
    biases: list[Tensor] = [
        each.weight.new_zeros(each.out_features) if each.bias is None else each.bias for each in parts
    ]
    with torch.no_grad():
        joined.weight.copy_(torch.cat((first.weight, second.weight)))
        joined.bias.copy_(torch.cat(biases))
    return joined
