"""Whether a decoder's layers are read by the engine's own kernels or by torch: what is faster here."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from translume.engine.native import NativeError
from translume.engine.native_layers import NativeLayers, Shape, native_layers
from translume.engine.probe import ROWS, WAYS, Choice, times
from translume.engine.state import Buffers, EngineState, Segment
from translume.engine.torch_layers import TorchLayers
from translume.model.state import GROWTH
from translume.model.transformer import Decoder

PLACE, SOURCE = 11, 16
"""The place of the token that is read by a probe, and the length of what stands beside it."""


class Layers(Protocol):
    """The layers of a decoder.

    rereads: whether several tokens of a hypothesis can be read at once.
    looks_up: whether a sentence's slot in the buffers is looked up, so that nothing moves when others leave.
    keeps: the dtype of keys and values in the buffers: fp32, or fp16.
    """

    rereads: bool
    looks_up: bool
    keeps: torch.dtype

    def read(self, x: Tensor, segment: Segment) -> Tensor:
        """x [N, D], embedded target tokens, to the same shape; their keys and values are written into the state."""


def chosen_layers(decoder: Decoder, choice: Choice) -> Layers:
    """The faster way, as was chosen for this shape, or as a probe finds now."""
    try:
        shape = f"decoder {Shape.of(decoder)}"
    except NativeError:
        return TorchLayers(decoder, choice)
    native = native_layers(decoder, choice.dtype) if choice.kinds.get(shape) != "torch" else None
    if native is None or choice.kinds.get(shape) == "native":
        return native or TorchLayers(decoder, choice)
    plain = TorchLayers(decoder, choice)
    found = times(partial(_steps, plain, native), calls=1)
    choice.microseconds[shape] = dict(zip(WAYS, found, strict=True))
    shares = [ours / theirs for theirs, ours in zip(*found, strict=True)]
    choice.kinds[shape] = "native" if sum(shares) <= len(ROWS) else "torch"
    return native if choice.kinds[shape] == "native" else plain


def _steps(plain: TorchLayers, native: NativeLayers, rows: int) -> list[Callable[[], Tensor]]:
    """A step of so many sentences by each way."""
    count, heads, width = native.shape.count, native.shape.heads, native.shape.width

    def kept(way: Layers) -> EngineState:
        past = torch.zeros(2 * count, rows, heads, GROWTH, 1, width // heads, dtype=way.keeps)
        cross = torch.zeros(2 * count, rows, heads, SOURCE, width // heads, dtype=way.keeps)
        return EngineState(Buffers(past, cross, None), position=PLACE)

    def read(way: Layers, state: EngineState) -> Tensor:
        return way.read(torch.ones(rows, width), Segment(state))

    return [partial(read, way, kept(way)) for way in (plain, native)]
