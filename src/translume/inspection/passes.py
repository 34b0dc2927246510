"""One parallel pass over a finished target, with everything on the way written down.

What layers read by is given to them as a function (`DecoderLayer.forward`), so a pass that writes down is one that
gives them other functions. Nothing is hooked onto modules: threads that share the model go on translating.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from translume.model.attention import CrossAttention, SelfAttention
from translume.model.layout import Layout
from translume.model.state import Selectable
from translume.model.transformer import Decoder, Encoder, Transformer

SubLayer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A source [S] and the target's labels [t], ids with their end marks on the device, and the target's start mark."""

    source: Tensor
    labels: Tensor
    bos: int

    @property
    def given(self) -> Tensor:
        """[t]: what the decoder reads, the start mark first."""
        return torch.cat([self.labels.new_tensor([self.bos]), self.labels[:-1]])


@dataclass(frozen=True, slots=True)
class Seen:
    """What a pass over B sentences wrote down, by layer.

    encoder: [B, H, S, S].  decoder: [B, H, t, t], None where a layer has no self-attention.  cross: [B, H, t, S].
    states: [n, D] after each decoder layer, before the decoder's last norm.
    """

    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor | None] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pass:
    """One sentence read: memory [1, S, D], hidden states [t, D], the head's context of t rows, and what was seen."""

    memory: Tensor
    hidden: Tensor
    context: Selectable | None
    seen: Seen


def read(model: Transformer, sentence: Sentence, *, attention: bool = False) -> Pass:
    """The pass over one sentence, with the states of its decoder layers; with `attention` the weights as well."""
    source, target = sentence.source[None], sentence.given[None]
    mask = torch.ones_like(source, dtype=torch.bool)
    source_layout, layout = Layout.of(mask), Layout.of(torch.ones_like(target, dtype=torch.bool))
    seen = Seen()
    embedded = model.encoder.embed(source, source_layout)
    memory = encode(model.encoder, embedded, source_layout, seen if attention else None)
    hidden = decode(model.decoder, target, layout, memory, source_layout, seen=seen, attention=attention)
    grid = source_layout.unpack(memory)
    context = context_of(model, (source, mask, grid), torch.zeros_like(sentence.labels))
    return Pass(grid, hidden, context, seen)


def context_of(model: Transformer, sources: tuple[Tensor, Tensor, Tensor], owners: Tensor) -> Selectable | None:
    """What the head makes of sources, their masks [B, S] and memories [B, S, D], for rows of the sentences `owners`."""
    context = model.head.begin(*sources) if model.head.reads_source else None
    return None if context is None else context.select(owners)


def encode(encoder: Encoder, x: Tensor, layout: Layout, seen: Seen | None = None) -> Tensor:
    """Memory [n, D] of embedded sources [n, D], as `Encoder.packed` gives it; `seen` gets the attention weights."""
    for layer in encoder.stack:
        attend: SubLayer = partial(layer.self_attention.packed, layout=layout, causal=False)
        if seen is not None:
            weigh = partial(_weights, attention=layer.self_attention, layout=layout, causal=False)
            attend = _watched(attend, weigh, seen.encoder)
        x = layer(x, attend)
    result: Tensor = encoder.norm(x)
    return result


def decode(
    decoder: Decoder,
    target: Tensor,
    layout: Layout,
    memory: Tensor,
    memory_layout: Layout,
    *,
    seen: Seen | None = None,
    attention: bool = False,
) -> Tensor:
    """Hidden states [n, D] of targets [B, t] over memories [m, D], as `Decoder.packed` gives them.

    seen: gets the layers' states; with `attention` their attention weights as well.
    """
    x = decoder.embedding(layout.pack(target), layout.places)
    grid = memory_layout.unpack(memory) if seen is not None and attention else None
    for layer in decoder.stack:
        attend: SubLayer = partial(layer.self_attention.packed, layout=layout, causal=True)
        look: SubLayer = partial(
            layer.cross_attention.packed, memory=memory, layout=layout, memory_layout=memory_layout
        )
        if seen is not None and grid is not None:
            if isinstance(layer.self_attention, SelfAttention):
                weigh = partial(_weights, attention=layer.self_attention, layout=layout, causal=True)
                attend = _watched(attend, weigh, seen.decoder)
            else:
                seen.decoder.append(None)
            weigh = partial(
                _cross_weights, attention=layer.cross_attention, layout=layout, memory=(grid, memory_layout)
            )
            look = _watched(look, weigh, seen.cross)
        x = layer(x, attend, look)
        if seen is not None:
            seen.states.append(x)
    result: Tensor = decoder.norm(x)
    return result


def _weights(x: Tensor, attention: SelfAttention, layout: Layout, causal: bool) -> Tensor:
    return attention.weights(layout.unpack(x), layout.mask, causal=causal)


def _cross_weights(x: Tensor, attention: CrossAttention, layout: Layout, memory: tuple[Tensor, Layout]) -> Tensor:
    grid, memory_layout = memory
    return attention.weights(layout.unpack(x), attention.read(grid), memory_layout.mask)


def _watched(sublayer: SubLayer, look: SubLayer, found: list[Tensor] | list[Tensor | None]) -> SubLayer:
    """The sub-layer, which first adds to `found` what `look` makes of its input."""

    def watched(x: Tensor) -> Tensor:
        found.append(look(x))
        return sublayer(x)

    return watched
