"""A parallel forward pass over a finished target that records attention weights and layer states.

Layers receive their attention as a function (`DecoderLayer.forward`), so a recording pass passes in other functions.
It registers no hooks on modules: other threads can translate with the same model at the same time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from translume.model.attention import CrossAttention, SelfAttention
from translume.model.embedding import Embedding, SegmentEmbedding
from translume.model.frames import FrameEmbedding
from translume.model.layout import Layout
from translume.model.state import Selectable
from translume.model.transformer import Decoder, Encoder, Transformer
from translume.translator.planning import NO_TAGS, Tags

SubLayer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Sentence:
    """What the encoder reads and target labels [t], on the device; bos: the target's start mark.

    source: ids [S] with the end mark, or frames [L, F].
    tags: of the languages; a text begins with its own, and the decoder reads the target's after the start mark.
    """

    source: Tensor
    labels: Tensor
    bos: int
    tags: Tags = NO_TAGS

    @property
    def given(self) -> Tensor:
        """The decoder's input [tags + t], the start mark first."""
        return torch.cat([self.labels.new_tensor([self.bos, *self.tags.target]), self.labels[:-1]])

    def blank(self, encoder: Encoder) -> Tensor:
        """Return an empty source: the ids of tags and end mark, or as many frames that say nothing."""
        if isinstance(encoder.embedding, FrameEmbedding):
            return encoder.embedding.neutral(self.source)
        return torch.cat([self.source[: len(self.tags.source)], self.source[-1:]])


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """Records of a pass over B sentences, by layer.

    encoder: [B, H, S, S].  decoder: [B, H, t, t], None for a layer without self-attention.  cross: [B, H, t, S].
    states: [n, D] after each decoder layer, before the decoder's last norm.
    Positions t are those of the labels; the start mark's column of `decoder` includes the tags after it.
    """

    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor | None] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    def without_tags(self, count: int) -> "LayerRecord":
        """Return the records of one sentence without the positions of `count` tags after the start mark."""
        if not count:
            return self
        begin = [None if each is None else each[:, :, count:] for each in self.decoder]
        return LayerRecord(
            encoder=self.encoder,
            decoder=[None if each is None else _folded(each, count) for each in begin],
            cross=[each[:, :, count:] for each in self.cross],
            states=[each[count:] for each in self.states],
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over one sentence: memory [1, S, D], hidden states [t, D], the head's context of t rows, layer records."""

    memory: Tensor
    hidden: Tensor
    context: Selectable | None
    layers: LayerRecord


def forward(model: Transformer, sentence: Sentence, *, attention: bool = False) -> Pass:
    """Run one sentence through the model and record decoder states; with `attention` also attention weights."""
    target = sentence.given[None]
    source, mask = front(model.encoder, sentence.source[None])
    source_layout, layout = Layout.of(mask), Layout.of(torch.ones_like(target, dtype=torch.bool))
    record = LayerRecord()
    embedded = model.encoder.embed(source, source_layout)
    memory = encode(model.encoder, embedded, source_layout, record if attention else None)
    hidden = decode(model.decoder, target, layout, memory, source_layout, record=record, attention=attention)
    hidden, record = hidden[model.target_tags :], record.without_tags(model.target_tags)
    grid = source_layout.unpack(memory)
    context = context_of(model, (source, mask, grid), torch.zeros_like(sentence.labels))
    return Pass(grid, hidden, context, record)


def front(encoder: Encoder, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Return positions [B, S] or [B, S, C] and their mask [B, S], of sources [B, S] or [B, L, F] without padding."""
    return encoder.front(sources, torch.ones(sources.shape[:2], dtype=torch.bool, device=sources.device))


def positions_in(encoder: Encoder, source: Tensor) -> Tensor:
    """Return the position, from 0, that each id of a text [S] belongs to: its own, or that of its segment."""
    assert isinstance(encoder.embedding, Embedding)
    return encoder.embedding.positions_in(source)


def separators_in(encoder: Encoder, source: Tensor) -> Tensor:
    """Return whether each id of a text [S] ends a segment that is one position."""
    if isinstance(encoder.embedding, SegmentEmbedding):
        return encoder.embedding.separators[source] > 0
    return torch.zeros_like(source, dtype=torch.bool)


def _folded(weights: Tensor, count: int) -> Tensor:
    """Return weights [..., t + count] with the columns of `count` tags added to the start mark's."""
    return torch.cat([weights[..., : 1 + count].sum(-1, keepdim=True), weights[..., 1 + count :]], -1)


def context_of(model: Transformer, sources: tuple[Tensor, Tensor, Tensor], owners: Tensor) -> Selectable | None:
    """Return the head's context of (sources, masks [B, S], memories [B, S, D]) for the rows of sentences `owners`."""
    context = model.head.begin(*sources) if model.head.reads_source else None
    return None if context is None else context.select(owners)


def encode(encoder: Encoder, x: Tensor, layout: Layout, record: LayerRecord | None = None) -> Tensor:
    """Return the memory [n, D] of embedded sources [n, D], as `Encoder.packed`; `record` gets attention weights."""
    positions = encoder.positions(layout)
    for layer in encoder.stack:
        attend: SubLayer = partial(layer.self_attention.packed, layout=layout, positions=positions, causal=False)
        if record is not None:
            weigh = partial(_weights, attention=layer.self_attention, layout=layout, encoding=encoder, causal=False)
            attend = _recorded(attend, weigh, record.encoder)
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
    record: LayerRecord | None = None,
    attention: bool = False,
) -> Tensor:
    """Return hidden states [n, D] of targets [B, t] over memories [m, D], as `Decoder.packed`.

    record: gets the layers' states; with `attention` also their attention weights.
    """
    x, positions = decoder.embedding(layout.pack(target), layout.places), decoder.positions(layout)
    grid = memory_layout.unpack(memory) if record is not None and attention else None
    for layer in decoder.stack:
        attend: SubLayer = partial(layer.self_attention.packed, layout=layout, positions=positions, causal=True)
        cross_attend: SubLayer | None = None
        if layer.crosses:
            cross_attend = partial(
                layer.cross_attention.packed, memory=memory, layout=layout, memory_layout=memory_layout
            )
        if record is not None and grid is not None:
            if isinstance(layer.self_attention, SelfAttention):
                weigh = partial(_weights, attention=layer.self_attention, layout=layout, encoding=decoder, causal=True)
                attend = _recorded(attend, weigh, record.decoder)
            else:
                record.decoder.append(None)
            if cross_attend is not None:
                weigh = partial(
                    _cross_weights, attention=layer.cross_attention, layout=layout, memory=(grid, memory_layout)
                )
                cross_attend = _recorded(cross_attend, weigh, record.cross)
        x = layer(x, attend, cross_attend)
        if record is not None:
            record.states.append(x)
    result: Tensor = decoder.norm(x)
    return result


def _weights(x: Tensor, attention: SelfAttention, layout: Layout, encoding: Encoder | Decoder, causal: bool) -> Tensor:
    count = layout.mask.size(1)  # the grid of `positions` may be wider
    positions = encoding.embedding.positions.for_attention(0, count, causal=causal, device=x.device)
    return attention.weights(layout.unpack(x), layout.mask, positions, causal=causal)


def _cross_weights(x: Tensor, attention: CrossAttention, layout: Layout, memory: tuple[Tensor, Layout]) -> Tensor:
    grid, memory_layout = memory
    return attention.weights(layout.unpack(x), attention.read(grid), memory_layout.mask)


def _recorded(sublayer: SubLayer, weights: SubLayer, record: list[Tensor] | list[Tensor | None]) -> SubLayer:
    """Extend a sub-layer to append `weights(x)` to `record` before it runs."""

    def recorded(x: Tensor) -> Tensor:
        record.append(weights(x))
        return sublayer(x)

    return recorded
