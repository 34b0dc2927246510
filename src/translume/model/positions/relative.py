"""Relative position biases in buckets of distances, as in T5 (Raffel et al. 2020, section 2.1)."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.positions import AttentionPositions, PositionEncoding


def distance_buckets(distances: Tensor, count: int, furthest: int, *, causal: bool) -> Tensor:
    """Return the bucket, 0 … count−1, of each distance, which is the key's position minus the query's.

    Half of the buckets hold one distance each, the others logarithmically growing ranges up to `furthest`; the last one
    holds everything beyond. If `causal`, keys after the query share bucket 0; if not, they have half of the buckets.
    """
    buckets = torch.zeros_like(distances)
    if causal:
        distances = -distances.clamp(max=0)
    else:
        count //= 2
        buckets = (distances > 0) * count
        distances = distances.abs()
    exact = count // 2
    ranges = torch.log(distances.clamp(min=1).float() / exact) / math.log(furthest / exact) * (count - exact)
    far = (exact + ranges.long()).clamp(max=count - 1)
    return buckets + torch.where(distances < exact, distances, far)


class RelativeBias(PositionEncoding):
    """A learned bias for each attention head and bucket of distances, shared by all layers of a stack."""

    in_attention = True
    kernels = True
    ctranslate2: ClassVar[Mapping[str, object]] = {"relative_attention_bias": True}
    huggingface = frozenset({"T5ForConditionalGeneration", "MT5ForConditionalGeneration"})

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self._furthest = settings.relative_max_distance
        self.reach = min(self.reach, self._furthest)
        self.bias = nn.Parameter(torch.empty(settings.relative_buckets, settings.attention_heads))
        nn.init.normal_(self.bias, std=settings.width**-0.5)

    def for_attention(self, start: int, count: int, *, causal: bool, device: torch.device) -> AttentionPositions:
        keys = torch.arange(start + count, device=device)
        distances = keys - torch.arange(start, start + count, device=device)[:, None]
        buckets = distance_buckets(distances, len(self.bias), self._furthest, causal=causal)
        return AttentionPositions(bias=F.embedding(buckets, self.bias).permute(2, 0, 1))
