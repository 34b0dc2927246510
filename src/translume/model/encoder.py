"""The encoder: source ids to memory."""

from collections.abc import Iterable
from functools import partial
from typing import cast

from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.embedding import Embedding
from translume.model.layers import EncoderLayer, norm_of
from translume.model.layout import Layout


class Encoder(nn.Module):
    """A stack of self-attention layers over the source; with norm "pre" a last norm over their sum."""

    def __init__(self, settings: ModelSettings, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.encoder_layers))
        self.norm = norm_of(settings) if settings.norm == "pre" else nn.Identity()

    @property
    def stack(self) -> Iterable[EncoderLayer]:
        """The layers, first to last."""
        return cast(Iterable[EncoderLayer], self.layers)

    def forward(self, source: Tensor, mask: Tensor) -> Tensor:
        """Source ids and mask [B, S] to memory [B, S, D], zero where no token stands."""
        layout = Layout.of(mask)
        return layout.unpack(self.packed(source, layout))

    def packed(self, source: Tensor, layout: Layout) -> Tensor:
        """The same for the tokens of a layout alone, [n, D]."""
        x = self.embed(source, layout)
        for layer in self.stack:
            x = layer(x, partial(layer.self_attention.packed, layout=layout, causal=False))
        result: Tensor = self.norm(x)
        return result

    def embed(self, source: Tensor, layout: Layout) -> Tensor:
        """What the first layer reads: [n, D] for ids [B, S] and their layout."""
        segments = self.embedding.segments_of(source)
        types = None if segments is None else layout.pack(segments)
        result: Tensor = self.embedding(layout.pack(source), layout.places, types)
        return result
