"""Token ids to vectors: a table, positions and, for a source, segment types."""

import math

import torch
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.dropout import Dropout
from translume.model.positions import Positions


class Embedding(nn.Module):
    """E[id]·√D + position (+ segment), dropped; √D only with `scale_embeddings`.

    separators: [V], how often each token holds the character that ends a segment; there only with segments.
    frozen: [V], True for rows of the table that keep their values in training; there only with `freezable`.
    """

    separators: Tensor
    frozen: Tensor | None

    def __init__(self, size: int, settings: ModelSettings, *, segments: int = 0, freezable: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(size, settings.width)
        nn.init.normal_(self.table.weight, std=settings.width**-0.5)
        self.scale = math.sqrt(settings.width) if settings.scale_embeddings else 1.0
        self.positions = Positions(settings)
        self.segments = nn.Embedding(segments, settings.width) if segments else None
        if self.segments is not None:
            nn.init.normal_(self.segments.weight, std=settings.width**-0.5)
            self.register_buffer("separators", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("frozen", torch.zeros(size, dtype=torch.bool) if freezable else None)
        self.drop = Dropout(settings.dropout)

    def keep_frozen(self) -> None:
        """From now on the table's gradients are zero where `frozen` says so. To be called once, after tying."""
        if self.frozen is not None:
            self.table.weight.register_hook(self._without_frozen)  # type: ignore[no-untyped-call]  # torch's has no types

    def _without_frozen(self, gradient: Tensor) -> Tensor:
        return gradient if self.frozen is None else gradient.masked_fill(self.frozen[:, None], 0.0)

    def segments_of(self, ids: Tensor) -> Tensor | None:
        """The segment of each id of [B, S]: how many separators stand before it, the last one for all beyond."""
        if self.segments is None:
            return None
        counts = self.separators[ids]
        return (counts.cumsum(1) - counts).clamp_(max=self.segments.num_embeddings - 1)

    def forward(self, ids: Tensor, places: Tensor, segments: Tensor | None = None) -> Tensor:
        """ids, places and segments of one shape [...] to vectors [..., D]."""
        x = self.table(ids)
        if self.scale != 1.0:
            x = x * self.scale
        if self.segments is not None and segments is not None:
            x = x + self.segments(segments)
        result: Tensor = self.drop(self.positions(x, places))
        return result
