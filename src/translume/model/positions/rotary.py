"""Rotary positions: queries and keys are rotated by their position (Su et al. 2021)."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from translume.config import ModelSettings
from translume.model.positions import AttentionPositions, PositionEncoding


def rotation(places: Tensor, head_width: int) -> Tensor:
    """Return cosines and sines [2, *places.shape, head_width] for rotating component pairs (Su et al. 2021, eq. 34)."""
    exponent = torch.arange(0, head_width, 2, device=places.device) / head_width
    angles = places[..., None] * torch.exp(-math.log(10_000) * exponent)
    angles = torch.cat([angles, angles], -1)
    return torch.stack([angles.cos(), angles.sin()])


class Rotary(PositionEncoding):
    """The score of a query and a key depends on their content and on the distance between their positions."""

    in_attention = True
    kernels = True
    ctranslate2: ClassVar[Mapping[str, object]] = {"rotary_dim": 0, "rotary_interleave": False}

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self._head_width = settings.size_per_head

    def for_attention(self, start: int, count: int, *, causal: bool, device: torch.device) -> AttentionPositions:
        places = torch.arange(start, start + count, device=device)
        return AttentionPositions(rotation=rotation(places, self._head_width))
