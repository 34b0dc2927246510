"""Whether a decoder's layers are read by the engine's own kernels or by torch: what is faster here."""

import time
from typing import Protocol

import torch
from torch import Tensor

from translume.engine.native_layers import NativeLayers, native_layers
from translume.engine.probe import ROUNDS, ROWS, Choice
from translume.engine.state import Buffers, EngineState
from translume.engine.torch_layers import TorchLayers
from translume.model.decoder import Decoder
from translume.model.state import GROWTH

PLACE, SOURCE = 11, 16
"""The place of the token that is read by a probe, and the length of what stands beside it."""


class Layers(Protocol):
    """The layers of a decoder.

    rereads: whether several tokens of a hypothesis can be read at once.
    """

    rereads: bool

    def read(self, x: Tensor, state: EngineState, count: int, reach: Tensor | None) -> Tensor:
        """x [B·K·t, D], embedded target tokens, to the same shape; their keys and values are written into the state."""


def chosen_layers(decoder: Decoder, choice: Choice) -> Layers:
    """The faster way, as was chosen for this shape, or as a probe finds now."""
    native = native_layers(decoder, choice.dtype)
    if native is None:
        return TorchLayers(decoder, choice)
    shape = f"decoder {native.shape}"
    if shape not in choice.kinds:
        plain = TorchLayers(decoder, choice)
        times = _times([plain, native], native)
        choice.microseconds[shape] = {"torch": tuple(times[0]), "native": tuple(times[1])}
        shares = [ours / theirs for theirs, ours in zip(*times, strict=True)]
        choice.kinds[shape] = "native" if sum(shares) <= len(ROWS) else "torch"
        if choice.kinds[shape] == "torch":
            return plain
    return native if choice.kinds[shape] == "native" else TorchLayers(decoder, choice)


@torch.inference_mode()
def _times(ways: list[Layers], of: NativeLayers) -> list[list[float]]:
    """For each way the microseconds of a step of as many sentences as ROWS, the best of some rounds taken by turns."""
    best = [[float("inf")] * len(ROWS) for _ in ways]
    for place, rows in enumerate(ROWS):
        past = torch.zeros(2 * of.count, rows, of.heads, GROWTH, 1, of.width // of.heads)
        cross = torch.zeros(2 * of.count, rows, of.heads, SOURCE, of.width // of.heads)
        state = EngineState(Buffers(past, cross, None), position=PLACE)
        for _ in range(ROUNDS):
            for number, way in enumerate(ways):
                x = torch.ones(rows, of.width)
                start = time.perf_counter()
                way.read(x, state, 1, None)
                best[number][place] = min(best[number][place], (time.perf_counter() - start) * 1e6)
    return best
