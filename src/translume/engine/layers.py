"""The layers of an encoder or decoder, packed and computed by the compiled kernels."""

import ctypes
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.config import ModelSettings
from translume.config.model import GATED
from translume.engine.network import IN_ATTENTION, Array, Linear, Network
from translume.engine.packing import LANES, LINEAR, Dtype, padded_heads, scaled_queries
from translume.engine.state import KVCache, StepInput
from translume.kernels import loading
from translume.kernels.loading import NativeError, address, aligned, empty

ACTIVATIONS = ("relu", "gelu", "swish", "swiglu", "geglu")
"""In the order of `activation` of stack.h."""
SUPPORTED = ("encoder", "key_value_heads", "rotary_base", "rotary_scale", "rotary_width", "shared_layers")
"""Modern settings that are in the packed weights and tables."""


def check_parts(settings: ModelSettings) -> None:
    """Raise NativeError if the kernels lack a part of the layers, or do not support their widths."""
    unsupported = {name: getattr(settings, name) for name in settings.modern() if name not in SUPPORTED}
    unsupported |= {"norm": "both"} if settings.norm == "both" else {}
    unsupported |= {} if settings.activation in ACTIVATIONS else {"activation": settings.activation}
    for name, value in unsupported.items():
        raise NativeError(f"model.{name}: found {value!r}, which the kernels do not have")
    widths = {"width": settings.width, "feed_forward": settings.feed_forward}
    if settings.decoder_mixing == "ssru":  # whose cells fill the heads of the cache
        widths["head_width"] = settings.size_per_head
    for name, width in widths.items():
        if width % LANES:
            raise NativeError(f"model.{name}: found {width}, the kernels need a multiple of {LANES}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Number of layers and attention heads, d, D, and whether layers have SSRUs and cross-attention.

    heads: in the KV cache, 1 for cells without cross-attention.  head_size: see `padded_heads`.
    """

    count: int
    heads: int
    head_size: int
    width: int
    ssru: bool
    crosses: bool

    @classmethod
    def from_network(cls, network: Network, side: str) -> "Shape":
        """Return the shape of a side, "encoder" or "decoder"."""
        settings, decodes = network.settings, side == "decoder"
        ssru, crosses = decodes and settings.decoder_mixing == "ssru", decodes and network.crosses
        alone = ssru and not crosses
        return cls(
            count=settings.decoder_layers if decodes else settings.encoder_layers,
            heads=1 if alone else settings.attention_heads,
            head_size=settings.width if alone else -(-settings.size_per_head // LANES) * LANES,
            width=settings.width,
            ssru=ssru,
            crosses=crosses,
        )


class Layers:
    """The layers of an encoder or decoder, the norm of its embedding and its final norm.

    cache_dtype: of keys and values: fp32 or fp16.
    longest: maximum number of tokens, if attention reads tables of positions; None: any number.
    """

    def __init__(self, network: Network, side: str, dtype: Dtype) -> None:
        """side: "encoder" or "decoder".  Raises NativeError if there are no kernels, or not for the layers."""
        self._kernels = loading.kernels()
        network = network.encoder if side == "encoder" else network
        settings = network.settings
        check_parts(settings)
        self._network, self._kind = network, LINEAR[dtype]
        self._kept: list[object] = []  # owns the memory that the structures point to
        self.shape = Shape.from_network(network, side)
        added = f"{side}.embedding.positions.table" in network.weights  # positions that a source has in any model
        inside = settings.positions in IN_ATTENTION and not added and not self.shape.ssru
        self.longest = settings.max_positions if inside else None
        # Each SSRU cell is computed from the one before, so that rounding errors would accumulate in fp16.
        fp16 = dtype != "fp32" and self._kernels.fp16 and not self.shape.ssru
        self.cache_dtype = np.dtype(np.float16 if fp16 else np.float32)
        count = self.shape.count
        normed = settings.embedding_norm and (side == "decoder" or network.reads_ids)
        own = min(count, 1) if settings.shared_layers else count
        layers = [self._layer(f"{side}.layers.{number}") for number in range(own)]
        self._layers = (loading.Layer * count)(*(layers * count if settings.shared_layers else layers))
        self._stack = loading.Stack(
            width=self.shape.width,
            heads=self.shape.heads,
            head_size=self.shape.head_size,
            layers=count,
            pre_norm=settings.norm == "pre",
            ssru=self.shape.ssru,
            activation=ACTIVATIONS.index(settings.activation),
            rms_norm=settings.normalization == "rms",
            inner=settings.feed_forward,
            epsilon=settings.norm_epsilon,
            layer=self._layers,
            first_norm=self._norm(f"{side}.embedding.norm", there=normed),
            final_norm=self._norm(f"{side}.norm", there=settings.ends_normed),
            **self._positions(side),
        )
        self.address = ctypes.addressof(self._stack)

    def __deepcopy__(self, memo: dict[int, object]) -> "Layers":
        """Return itself: it holds addresses of arrays that are never written to."""
        return self

    def _layer(self, name: str) -> loading.Layer:
        network = self._network
        settings = network.settings
        width, inner, attended = settings.width, settings.feed_forward, settings.attention_width
        gates = 2 if settings.activation in GATED else 1
        own, cross = f"{name}.self_attention", f"{name}.cross_attention"
        packed = loading.Layer(
            inner=self._linear(f"{name}.feed_forward.inner", gates * inner, width),
            outer=self._linear(f"{name}.feed_forward.outer", width, inner),
            norm_feed_forward=self._norm(f"{name}.around_feed_forward.norm"),
        )
        if self.shape.ssru:
            packed.query_key_value = self._pack(
                f"{own}.forget",
                lambda: _concatenated(
                    network.linear(f"{own}.forget", width, width),
                    network.linear(f"{own}.update", width, width, biased=False),
                ),
            )
        else:
            read = partial(network.projection, f"{own}.query_key_value", attended, width)
            packed.query_key_value = self._queries(f"{own}.query_key_value", read)
            packed.self_output = self._output(f"{own}.output")
        decodes = name.startswith("decoder")
        packed.norm_self = self._norm(f"{name}.{'around_self' if decodes else 'around_attention'}.norm")
        if self.shape.crosses:
            packed.norm_cross = self._norm(f"{name}.around_cross.norm")
            packed.cross_query = self._queries(
                f"{cross}.query", partial(network.linear, f"{cross}.query", attended, width)
            )
            packed.cross_output = self._output(f"{cross}.output")
        return packed

    def _linear(self, name: str, outputs: int, inputs: int) -> loading.Linear:
        return self._pack(name, lambda: self._network.linear(name, outputs, inputs))

    def _queries(self, name: str, make: Callable[[], Linear]) -> loading.Linear:
        """Return a map whose first outputs are queries."""
        settings = self._network.settings
        width, size = settings.attention_width, settings.size_per_head
        return self._pack(name, lambda: self.padded(scaled_queries(make(), width, size)))

    def padded(self, linear: Linear) -> Linear:
        """Return a map to queries, keys or values with the size of a head that the kernels read."""
        weight, bias = linear
        size = self._network.settings.size_per_head
        return padded_heads(weight, size), None if bias is None else padded_heads(bias, size)

    def _output(self, name: str) -> loading.Linear:
        """Return the map of the values of all heads."""
        settings = self._network.settings

        def make() -> Linear:
            weight, bias = self._network.linear(name, settings.width, settings.attention_width)
            return padded_heads(weight.T, settings.size_per_head).T, bias

        return self._pack(name, make)

    def _pack(self, name: str, make: Callable[[], Linear]) -> loading.Linear:
        kind = self._kind
        packed = kind(self._network.keep(f"{name}|{kind.format}", lambda: kind.pack(*make())))
        self._kept.append(packed)
        return packed.struct

    def _norm(self, name: str, *, there: bool = True) -> loading.Norm:
        """Return the gain and the bias of a norm; none where there is no norm."""
        norm = self._network.norm(name) if there else (None, None)
        weight, bias = (None if each is None else aligned(each) for each in norm)
        self._kept.append((weight, bias))
        return loading.Norm(address(weight), address(bias))

    def _positions(self, side: str) -> dict[str, Any]:
        """Return the fields of `stack` with what attention applies."""
        rotation, bias = self._network.rotation(self.shape.head_size), self._network.distance_biases(side)
        if self.longest is None:  # SSRUs do not use the biases that their model has
            return {}
        self._kept.append((rotation, bias))
        distances = 0 if bias is None else bias.shape[1]
        reach = self._network.reach
        return {"rotation": address(rotation), "bias": address(bias), "reach": reach, "distances": distances}

    def without_last(self) -> "Layers":
        """Return these layers without the last one, but the only one."""
        shorter = copy(self)
        shorter._stack = loading.Stack.from_buffer_copy(self._stack)
        shorter._stack.layers = max(1, self.shape.count - 1)
        shorter.address = ctypes.addressof(shorter._stack)
        return shorter

    def _check_positions(self, end: int) -> None:
        """Raise ValueError if the kernels would read beyond the tables of positions."""
        if self.longest is not None and end > self.longest:
            raise ValueError(f"found {end} positions, expected at most model.max_positions, {self.longest}")

    def workspace(self, rows: int, longest: int, rows_per_sentence: int) -> Array:
        """Allocate the memory that a call works in. rows_per_sentence: rows that read the same keys and values."""
        size = self._kernels.library.translume_workspace(self.address, rows, longest, rows_per_sentence)
        return empty([size], np.uint8)

    def encode(self, x: Array, lengths: Array) -> Array:
        """Run the encoder over the embedded tokens x [n, D] of sentences of `lengths` [B]; return [n, D]."""
        begins = np.zeros(len(lengths) + 1, np.int64)
        lengths.cumsum(out=begins[1:])
        longest, x = int(lengths.max(initial=0)), _own(x)
        self._check_positions(longest)
        library = self._kernels.library
        memory = empty([library.translume_encode_workspace(self.address, len(x), longest)], np.uint8)
        library.translume_encode(self.address, address(begins), len(lengths), longest, address(x), address(memory))
        return x

    def read(self, x: Array, step: StepInput) -> Array:
        """Run the layers over embedded target tokens x [N, D]; write their keys and values into the cache."""
        self._check_positions(step.end)
        x, state = _own(x), step.state
        # The kernels read this memory, so it must live until the call has returned.
        ancestors = None if step.ancestors is None else np.ascontiguousarray(step.ancestors)
        view = cache_struct(state.cache)
        lanes = structures(
            loading.Lane,
            state.sentences,
            {
                "cache": ctypes.addressof(view),
                "slot": np.arange(state.sentences) if state.slots is None else state.slots,
                "position": state.position,
                "beam": state.width,
                "ancestors": 0 if ancestors is None else addresses(ancestors),
            },
        )
        pointers = addresses(lanes)
        attention, source = step.attention, state.cache.cross.shape[3]
        struct = loading.StepInput(pointers.ctypes.data, state.sentences, step.count, address(attention), source)
        memory = self.workspace(len(x), max(step.end, source), state.width * step.count)
        self._kernels.library.translume_step(self.address, ctypes.addressof(struct), address(x), address(memory))
        return x


def _own(x: Array) -> Array:
    """Return a copy of x, fp32, which the kernels may overwrite."""
    copied = empty(x.shape)
    copied[...] = x
    return copied


def _concatenated(first: Linear, second: Linear) -> Linear:
    """Return weight and bias of one layer with the outputs of both."""
    biases = (np.zeros(len(weight), np.float32) if bias is None else bias for weight, bias in (first, second))
    return np.concatenate([first[0], second[0]]), np.concatenate([*biases])


def cache_struct(cache: KVCache) -> loading.KeyValueCache:
    """Return the kernels' view of a cache."""
    past, cross = cache.past, cache.cross
    return loading.KeyValueCache(
        address(past),
        *(stride // past.itemsize for stride in past.strides[:4]),
        address(cross),
        *(stride // cross.itemsize for stride in cross.strides[:3]),
        address(cache.source_bias),
        cross.shape[3],
        past.shape[3],
        past.dtype == np.float16,
    )


def structures(kind: type[ctypes.Structure], count: int, fields: Mapping[str, NDArray[np.int64] | int]) -> Array:
    """Return `count` structures [count, fields], whose fields are int64 or addresses. Other fields are 0.

    kind: may begin with a lane, whose fields count as its own.  fields: the value of each structure [count], or of all.
    """
    filled = np.zeros((count, ctypes.sizeof(kind) // 8), np.int64)
    for name, values in fields.items():
        filled[:, field_place(kind, name)] = values
    return filled


@cache
def field_place(kind: type[ctypes.Structure], name: str) -> int:
    """Return the column of a field in `structures`."""
    return int(getattr(kind if hasattr(kind, name) else loading.Lane, name).offset) // 8


def addresses(array: Array) -> NDArray[np.int64]:
    """Return the address [B] of each row of a contiguous array [B, …]."""
    return array.ctypes.data + array.strides[0] * np.arange(len(array))
