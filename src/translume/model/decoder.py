"""The decoder: target ids and an encoded source to hidden states."""

from collections.abc import Iterable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.embedding import Embedding
from translume.model.layers import DecoderLayer, SubLayer, norm_of
from translume.model.layout import Layout
from translume.model.state import DecoderState, Past, Selectable


class Decoder(nn.Module):
    """A stack of layers over the target that also read the memory; with norm "pre" a last norm over their sum."""

    def __init__(self, settings: ModelSettings, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.decoder_layers))
        self.norm = norm_of(settings) if settings.norm == "pre" else nn.Identity()

    @property
    def stack(self) -> Iterable[DecoderLayer]:
        """The layers, first to last."""
        return cast(Iterable[DecoderLayer], self.layers)

    def start(self, memory: Tensor, mask: Tensor, context: Selectable | None = None) -> DecoderState:
        """The state before any target token is read, over memory [B, S, D] and its mask [B, S]."""
        cross = tuple(layer.cross_attention.read(memory) for layer in self.stack)
        past = Past([layer.self_attention.begin(memory) for layer in self.stack])
        return DecoderState(memory, mask, cross, past, position=0, context=context)

    def forward(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next t target ids [N, t]: hidden states [N, t, D] and the state after them.

        Any split of a target into such calls gives the same hidden states. Raises StaleStateError for a state that
        was used before.
        """
        state.check()
        start, count = state.position, target.size(1)
        places = torch.arange(start, start + count, device=target.device).expand(target.shape)
        asked: list[Tensor] = []
        x = self.embedding(target, places)
        for layer, past, cross in zip(self.stack, state.past.layers, state.cross, strict=True):
            attend = partial(layer.self_attention.cached, past=past, place=start)
            look = partial(layer.cross_attention.cached, memory=cross, mask=state.memory_mask)
            x = layer(x, attend, look if state.attention is None else partial(_noted, look=look, asked=asked))
        return self.norm(x), state.advanced(count, self._attention(asked[-1], state) if asked else None)

    def _attention(self, asked: Tensor, state: DecoderState) -> Tensor:
        """[N, S], how the last of tokens [N, t, D], as the last layer's cross-attention got them, sees the source."""
        query = asked[:, -1].view(state.memory.size(0), -1, asked.size(2))  # [B, K, D]
        attention = list(self.stack)[-1].cross_attention
        weights = attention.weights(query, state.cross[-1], state.memory_mask)  # [B, H, K, S]
        return weights.float().mean(1).flatten(0, 1)

    def packed(self, target: Tensor, layout: Layout, memory: Tensor, memory_layout: Layout) -> Tensor:
        """What `forward` gives for whole targets [B, T], but for their tokens alone, [n, D], and with no state.

        target: ids [B, T] laid out by `layout`, bos first, padding last.  memory: [m, D] laid out by `memory_layout`.
        """
        x = self.embedding(layout.pack(target), layout.places)
        for layer in self.stack:
            attend = partial(layer.self_attention.packed, layout=layout, causal=True)
            look = partial(layer.cross_attention.packed, memory=memory, layout=layout, memory_layout=memory_layout)
            x = layer(x, attend, look)
        result: Tensor = self.norm(x)
        return result


def _noted(x: Tensor, look: SubLayer, asked: list[Tensor]) -> Tensor:
    """What `look` makes of x, which is written down."""
    asked.append(x)
    return look(x)
