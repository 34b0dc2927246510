"""A position encoding: a penalty on attention that is linear in the distance (ALiBi; Press et al. 2022)."""

from typing import ClassVar

import torch
from torch import Tensor

from translume.config import ModelSettings
from translume.model.positions import AttentionPositions, PositionEncoding
from translume.parts import part


@part("position", "my_part", interface=1)
class MyPart(PositionEncoding):
    """Subtract m·|i − j| from the score of query i and key j; each attention head has its own slope m."""

    in_attention: ClassVar[bool] = True
    slopes: Tensor

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        heads = settings.attention_heads
        self.register_buffer("slopes", 2.0 ** (-8 * torch.arange(1, heads + 1) / heads), persistent=False)

    def for_attention(self, start: int, count: int, *, causal: bool, device: torch.device) -> AttentionPositions:
        """Return the bias [H, count, start + count]."""
        keys = torch.arange(start + count, device=device)
        distances = (keys - torch.arange(start, start + count, device=device)[:, None]).abs()
        return AttentionPositions(bias=-self.slopes[:, None, None] * distances)
