"""All layers of a decoder by calls of torch, one after another."""

import math

import torch
from torch import Tensor

from translume.engine.layer import Layer
from translume.engine.mixing import Attention, Reading
from translume.engine.probe import Choice
from translume.engine.state import Segment
from translume.model.attention import SelfAttention
from translume.model.positions import rotation
from translume.model.transformer import Decoder


class TorchLayers:
    """The layers of a decoder and its last norm, packed; its marks are those of `Layers`."""

    looks_up = False
    keeps = torch.float32

    def __init__(self, decoder: Decoder, choice: Choice) -> None:
        self._decoder = decoder
        self._layers = [Layer(layer, choice) for layer in decoder.stack]
        self.rereads = all(isinstance(layer.mix, Attention) for layer in self._layers)

    def read(self, x: Tensor, segment: Segment) -> Tensor:
        """x [N, D], embedded target tokens, which may be overwritten, to the same shape."""
        state, count, reach = segment.state, segment.count, segment.reach
        past, cross, place, width = state.buffers.past, state.buffers.cross, state.position, state.width
        reading = Reading(
            place=place,
            width=width,
            count=count,
            unread=_later(place, count, x) if reach is None else _unread(reach, width),
            origin=None if reach is None or place == 0 else reach[:, :, place - 1],
            hidden=state.buffers.hidden,
            turn=self._turn(place, count, x),
        )
        for number, layer in enumerate(self._layers):
            x = layer(x, past[2 * number : 2 * number + 2], cross[2 * number : 2 * number + 2], reading)
        result: Tensor = self._decoder.norm(x)
        return result

    def _turn(self, place: int, count: int, x: Tensor) -> Tensor | None:
        """How far rotary positions turn queries and keys at some places; None for other positions."""
        attention = next(iter(self._decoder.stack)).self_attention
        if not isinstance(attention, SelfAttention) or not attention.rotary:
            return None
        return rotation(torch.arange(place, place + count, device=x.device), x.size(-1) // attention.heads)


def _later(place: int, count: int, x: Tensor) -> Tensor | None:
    """[t, place + t], −inf after the own place of each of t tokens from `place` on; None for one, which reads all."""
    if count == 1:
        return None
    return torch.full((count, place + count), -math.inf, dtype=x.dtype, device=x.device).triu_(place + 1)


def _unread(reach: Tensor, width: int) -> Tensor:
    """[B, 1, K, t·K], −inf where hypothesis k does not continue what hypothesis j wrote at a place, from [B, K, t]."""
    own = torch.arange(width, device=reach.device) == reach[..., None]  # [B, K, t, K]
    zeros = torch.zeros(own.shape, device=reach.device)
    return zeros.masked_fill_(~own, -math.inf).flatten(2)[:, None]
