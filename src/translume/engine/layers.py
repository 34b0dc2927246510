"""Choose whether the kernels or torch compute a decoder's layers."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from translume.engine.native_layers import NativeLayers, Shape, native_layers
from translume.engine.probe import LAYER_BACKENDS, ROWS, Choice, measure
from translume.engine.state import EngineState, KVCache, StepInput
from translume.engine.torch_layers import TorchLayers
from translume.kernels.loading import NativeError
from translume.model.state import GROWTH
from translume.model.transformer import Decoder

POSITION, SOURCE_LENGTH = 11, 16
"""Position of the token that the probe reads, and the source length."""
PROBED_LAYERS = 2
"""Layers that the probe times."""


class Layers(Protocol):
    """The layers of a decoder.

    reads_blocks: whether several tokens of a hypothesis can be read at once.
    indirect_slots: whether cache slots are looked up by index, so that no data moves when other sentences finish.
    cache_dtype: of keys and values: fp32 or fp16.
    """

    reads_blocks: bool
    indirect_slots: bool
    cache_dtype: torch.dtype

    def read(self, x: Tensor, step: StepInput) -> Tensor:
        """Run the embedding's norm and the layers over embedded target tokens x [N, D].

        Writes their keys and values into the cache.
        """


def choose_layers(decoder: Decoder, choice: Choice) -> Layers:
    """Return the faster implementation: the one chosen for this shape, or the one that a probe finds now."""
    try:
        shape = f"decoder {Shape.of(decoder)}"
    except NativeError:
        return TorchLayers(decoder, choice)
    if shape not in choice.kinds and choice.prefers_kernels(next(iter(decoder.stack)).feed_forward.inner.weight):
        choice.kinds[shape] = "native"
    if shape not in choice.kinds:
        few = _first_layers(decoder)
        native = native_layers(few, choice.dtype)
        if native is None:
            return TorchLayers(decoder, choice)
        times = measure(partial(_steps, TorchLayers(few, choice), native), repeats=1)
        choice.microseconds[shape] = dict(zip(LAYER_BACKENDS, times, strict=True))
        shares = [ours / theirs for theirs, ours in zip(*times, strict=True)]
        choice.kinds[shape] = "native" if sum(shares) <= len(ROWS) else "torch"
    native = native_layers(decoder, choice.dtype) if choice.kinds[shape] == "native" else None
    return native or TorchLayers(decoder, choice)


def _first_layers(decoder: Decoder) -> Decoder:
    """Return a decoder with the first of its layers: all are alike, and packing all of them twice takes memory."""
    few = copy.copy(decoder)
    few._modules = {**decoder._modules, "layers": nn.ModuleList([*decoder.stack][:PROBED_LAYERS])}
    return few


def _steps(plain: TorchLayers, native: NativeLayers, rows: int) -> list[Callable[[], Tensor]]:
    """Return functions that run a step of `rows` sentences with each implementation."""
    count, heads, size, width = native.shape.count, native.shape.heads, native.shape.head_size, native.shape.width

    def state_for(layers: Layers) -> EngineState:
        past = torch.zeros(2 * count, rows, heads, GROWTH, 1, size, dtype=layers.cache_dtype)
        cross = torch.zeros(2 * count, rows, heads, SOURCE_LENGTH, size, dtype=layers.cache_dtype)
        return EngineState(KVCache(past, cross, None), position=POSITION)

    def read(layers: Layers, state: EngineState) -> Tensor:
        return layers.read(torch.ones(rows, width), StepInput(state))

    return [partial(read, layers, state_for(layers)) for layers in (plain, native)]
