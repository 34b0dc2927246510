"""The encoder-decoder Transformer, and the decoder alone as a language model."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from translume.belief import NextToken
from translume.config import ModelSettings
from translume.model import compiled
from translume.model.attention import causal_bias, padding_mask
from translume.model.ctc import Ctc
from translume.model.dropout import Dropout
from translume.model.embedding import Embedding
from translume.model.feed_forward import routings, with_balance
from translume.model.frames import FrameEmbedding
from translume.model.head import Head, HeadLoss, LossOptions, TeacherTargets
from translume.model.layers import DecoderLayer, EncoderLayer, SubLayer, Transform, final_norm_of
from translume.model.layout import Layout
from translume.model.local_attention import LocalAttention
from translume.model.penalties import with_penalties
from translume.model.positions import AttentionPositions
from translume.model.state import DecoderState, Past, Selectable


def layers_of(settings: ModelSettings, count: int, make: Callable[[int], nn.Module]) -> nn.ModuleList:
    """Return `count` layers; if they share their weights, one module repeated.  make: creates the layer of a number."""
    return nn.ModuleList([make(0)] * count if settings.shared_layers else map(make, range(count)))


class Encoder(nn.Module):
    """A stack of self-attention layers over the source; with norm "pre" or `final_norm` a final norm."""

    def __init__(self, settings: ModelSettings, embedding: Embedding | FrameEmbedding) -> None:
        super().__init__()
        self.embedding, self.has_experts = embedding, bool(settings.experts)
        self.limited = self.has_experts and settings.expert_capacity > 0
        self.layers = layers_of(settings, settings.encoder_layers, partial(EncoderLayer, settings))
        self.norm = final_norm_of(settings)
        self.drop = Dropout(settings.final_dropout)

    @property
    def stack(self) -> Iterable[EncoderLayer]:
        """The layers, first to last."""
        return cast(Iterable[EncoderLayer], self.layers)

    def front(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions that the layers read, and their mask [B, S], for a source and its mask.

        Ids [B, S] of a text are returned as they are; frames [B, L, F] become vectors [B, S, C] of fewer positions. The
        other methods take the positions.
        """
        return self.embedding.front(source, mask)

    def forward(self, source: Tensor, mask: Tensor) -> Tensor:
        """Return the memory [B, S, D], zero at padding, of the positions of a source with mask [B, S]; see `front`."""
        if compiled.on_device(source) and not (self.has_experts and self.training):
            return self.padded(source, mask).masked_fill(~mask[..., None], 0.0)
        layout = Layout.from_mask(mask)
        return layout.unpack(self.packed(source, layout))

    def packed(self, source: Tensor, layout: Layout) -> Tensor:
        """Return the memory [n, D] of the tokens of a layout, packed."""
        x, positions = self.embed(source, layout), self.positions(layout)
        sources = self.sources(layout)
        for layer in self.stack:
            attend = partial(layer.self_attention.packed, layout=layout, positions=positions, causal=False)
            x = layer(x, attend, sources)
        result: Tensor = self.drop(self.norm(x))
        return result

    def padded(self, source: Tensor, mask: Tensor) -> Tensor:
        """As `forward`, without shapes that depend on data: on GPUs and for exporters. Padding is undefined."""
        length = source.size(1)
        places = torch.arange(length, device=source.device)
        x = self.embedding(source, places, self.embedding.segments_of(source))
        positions = self.positions_for(length, source.device)
        allowed = padding_mask(mask, x.dtype, positions.bias)
        sources = torch.arange(len(source), device=source.device).repeat_interleave(length) if self.limited else None
        for layer in self.stack:
            x = layer(x, partial(layer.self_attention.padded, mask=allowed, positions=positions), sources)
        result: Tensor = self.drop(self.norm(x))
        return result

    def positions(self, layout: Layout) -> AttentionPositions:
        """Return what `SelfAttention.packed` of every layer is given about positions."""
        return self.positions_for(layout.grid.size(1), layout.grid.device)

    def positions_for(self, count: int, device: torch.device) -> AttentionPositions:
        """Return what every layer is given about the positions of sources of `count` tokens."""
        local = {isinstance(each.self_attention, LocalAttention) for each in self.stack}
        read = self.embedding.positions
        windows = read.for_windows(count, device=device) if True in local else None
        if windows is not None and False not in local:
            return windows
        whole = read.for_attention(0, count, causal=False, device=device)
        return whole if windows is None else replace(whole, near=windows.near)

    def sources(self, layout: Layout) -> Tensor | None:
        """Return the source [n] of each token, if experts read a limited number of a source's tokens."""
        return layout.tokens // layout.mask.size(1) if self.limited else None

    def embedded(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input [n, D] of the first layer, and the mask [B, S] of its positions, for a source."""
        source, mask = self.front(source, mask)
        return self.embed(source, Layout.from_mask(mask)), mask

    def embed(self, source: Tensor, layout: Layout, *, without_tokens: bool = False) -> Tensor:
        """Return the input [n, D] of the first layer, for positions [B, S] or [B, S, C] and their layout."""
        segments = self.embedding.segments_of(source)
        types = None if segments is None else layout.pack(segments)
        result: Tensor = self.embedding(layout.pack(source), layout.places, types, without_tokens=without_tokens)
        return result


class EmptyEncoder(Encoder):
    """The encoder of a language model, whose decoder reads no source: no weights, and a memory of zeros.

    embedding: the decoder's.
    """

    def __init__(self, settings: ModelSettings, embedding: Embedding) -> None:
        nn.Module.__init__(self)
        self.width, self.has_experts, self.limited = settings.width, False, False
        self.layers, self.norm = nn.ModuleList(), nn.Identity()
        self._of_decoder = (embedding,)  # in a tuple, so that its weights belong to the decoder only

    @property
    def embedding(self) -> Embedding:  # type: ignore[override]  # an attribute of `Encoder`
        return self._of_decoder[0]

    def packed(self, source: Tensor, layout: Layout) -> Tensor:
        return next(self.embedding.parameters()).new_zeros(len(layout.tokens), self.width)

    def padded(self, source: Tensor, mask: Tensor) -> Tensor:
        return next(self.embedding.parameters()).new_zeros(*mask.shape, self.width)


class Decoder(nn.Module):
    """A stack of layers over the target, with cross-attention over the memory; a final norm as in the encoder.

    crosses: whether the layers have cross-attention; a language model's have none.
    """

    def __init__(self, settings: ModelSettings, embedding: Embedding, *, crosses: bool = True) -> None:
        super().__init__()
        self.settings, self.embedding, self.crosses = settings, embedding, crosses
        self.layers = layers_of(settings, settings.decoder_layers, partial(DecoderLayer, settings, crosses=crosses))
        self.norm = Transform(settings) if settings.final_transform else final_norm_of(settings)
        self.drop = Dropout(settings.final_dropout)

    @property
    def stack(self) -> Iterable[DecoderLayer]:
        """The layers, first to last."""
        return cast(Iterable[DecoderLayer], self.layers)

    def start(self, memory: Tensor, mask: Tensor, context: Selectable | None = None) -> DecoderState:
        """Return the state before the first target token, for a memory [B, S, D] and its mask [B, S]."""
        readers = [layer.merged or (layer.cross_attention if layer.crosses else None) for layer in self.stack]
        cross = tuple(reader.read(memory) for reader in readers if reader is not None)
        past = Past([layer.self_attention.begin(memory) for layer in self.stack])
        return DecoderState(memory, mask, cross, past, position=0, context=context)

    def forward(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Read the next t target ids [N, t]; return hidden states [N, t, D] and the new state.

        Hidden states do not depend on how a target is split into calls. Raises StaleStateError for a state that was
        used before.
        """
        state.check()
        start, count = state.position, target.size(1)
        places = torch.arange(start, start + count, device=target.device).expand(target.shape)
        cross_inputs: list[Tensor] = []
        merged: list[Tensor] | None = None if state.attention is None else []
        x = self.embedding(target, places)
        positions = self.embedding.positions.for_attention(start, count, causal=True, device=x.device)
        for index, (layer, past) in enumerate(zip(self.stack, state.past.layers, strict=True)):
            attend: SubLayer = partial(layer.self_attention.cached, past=past, place=start, positions=positions)
            if layer.merged is not None:
                attend = partial(
                    layer.merged.merged, memory=state.cross[index], mask=state.memory_mask, positions=positions,
                    past=past, place=start, attended=merged,
                )  # fmt: skip
            if not layer.crosses:
                x = layer(x, attend, None)
                continue
            look = partial(layer.cross_attention.cached, memory=state.cross[index], mask=state.memory_mask)
            if state.attention is not None:
                look = partial(_recorded, sublayer=look, inputs=cross_inputs)
            x = layer(x, attend, look)
        attention = self._attention(cross_inputs[-1], state) if cross_inputs else None
        if merged:
            attention = merged[-1][:, :, -1, start + count :].float().mean(1)
        return self.drop(self.norm(x)), state.advanced(count, attention)

    def positions(self, layout: Layout) -> AttentionPositions:
        """Return what `SelfAttention.packed` of every layer is given about positions."""
        return self.positions_for(layout.grid.size(1), layout.grid.device)

    def positions_for(self, count: int, device: torch.device) -> AttentionPositions:
        """Return what every layer is given about the positions of targets of `count` tokens."""
        return self.embedding.positions.for_attention(0, count, causal=True, device=device)

    def _attention(self, inputs: Tensor, state: DecoderState) -> Tensor:
        """Return the cross-attention [N, S] of the last token, averaged over heads, from its inputs [N, t, D]."""
        query = inputs[:, -1].view(state.memory.size(0), -1, inputs.size(2))  # [B, K, D]
        attention = list(self.stack)[-1].cross_attention
        weights = attention.weights(query, state.cross[-1], state.memory_mask)  # [B, H, K, S]
        return weights.float().mean(1).flatten(0, 1)

    def packed(self, target: Tensor, layout: Layout, memory: Tensor, memory_layout: Layout) -> Tensor:
        """Return hidden states [n, D] of the tokens of whole targets [B, T], without a state.

        target: ids [B, T] laid out by `layout`, bos first, padding last.  memory: [m, D] laid out by `memory_layout`.
        """
        x, positions = self.embedding(layout.pack(target), layout.places), self.positions(layout)
        for layer in self.stack:
            attend: SubLayer = partial(layer.self_attention.packed, layout=layout, positions=positions, causal=True)
            if layer.merged is not None:
                merged = partial(layer.merged.merged_packed, memory=memory, memory_layout=memory_layout)
                attend = partial(merged, layout=layout, positions=positions)
            if not layer.crosses:
                x = layer(x, attend, None)
                continue
            look = partial(layer.cross_attention.packed, memory=memory, layout=layout, memory_layout=memory_layout)
            x = layer(x, attend, look)
        result: Tensor = self.drop(self.norm(x))
        return result

    def padded(self, target: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """Return hidden states [B, T, D] of whole targets [B, T], BOS first, without shapes that depend on data.

        Padding at the end of a target is read by itself only; its states are undefined.
        memory: [B, S, D], read where memory_mask [B, S] is True.
        """
        length = target.size(1)
        x = self.embedding(target, torch.arange(length, device=target.device))
        positions = self.positions_for(length, target.device)
        earlier = None if positions.bias is None else causal_bias(positions.bias, x.dtype)
        allowed = padding_mask(memory_mask, x.dtype)
        for layer in self.stack:
            attend: SubLayer = partial(
                layer.self_attention.padded, mask=earlier, positions=positions, causal=positions.bias is None
            )
            if layer.merged is not None:
                read = layer.merged.read(memory)
                attend = partial(layer.merged.merged, memory=read, mask=memory_mask, positions=positions)
            look = partial(layer.cross_attention.padded, memory=memory, mask=allowed) if layer.crosses else None
            x = layer(x, attend, look)
        result: Tensor = self.drop(self.norm(x))
        return result


def _recorded(x: Tensor, sublayer: SubLayer, inputs: list[Tensor]) -> Tensor:
    """Apply a sub-layer to x and append x to `inputs`."""
    inputs.append(x)
    return sublayer(x)


PLAIN = LossOptions()
"""The nll only."""


class TeacherForced(NamedTuple):
    """A pass over whole targets.

    hidden: [n, D], hidden states of the predicted tokens.  layout: theirs.  context: the head's, of their sentences.
    memory: [B, S, D], with mask `memory_mask` [B, S]; None where neither head nor CTC reads it.
    """

    hidden: Tensor
    layout: Layout
    context: Selectable | None
    memory: Tensor | None
    memory_mask: Tensor


class Transformer(nn.Module):
    """The encoder-decoder Transformer (Vaswani et al. 2017); a language model has an `EmptyEncoder`."""

    def __init__(self, encoder: Encoder, decoder: Decoder, head: Head, *, target_tags: int = 0) -> None:
        """target_tags: the number of tokens after bos that are given in every target; see `predicted`."""
        super().__init__()
        self.encoder, self.decoder, self.head, self.target_tags = encoder, decoder, head, target_tags
        self.ctc: Ctc | None = None
        """A second output at the encoder, if the model was trained with one."""

    @property
    def settings(self) -> ModelSettings:
        """The architecture."""
        return self.decoder.settings

    @property
    def has_experts(self) -> bool:
        """Whether layers have mixtures of experts, which training gives tokens without padding."""
        return self.encoder.has_experts or bool(self.settings.experts)

    def partly_frozen(self) -> list[Tensor]:
        """Return parameters with rows that training and weight decay must not change; see `Embedding.frozen`."""
        embeddings = (self.encoder.embedding, self.decoder.embedding)
        return [embedding.table.weight for embedding in embeddings if embedding.frozen is not None]

    def predicted(self, target_mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return target_mask [B, T] with False at labels that are given: the tags of languages, and context.

        labels: [B, T], negative at those of context; None: there are none.
        """
        if labels is not None:
            target_mask = target_mask & (labels >= 0)
        if not self.target_tags:
            return target_mask
        return target_mask & (torch.arange(target_mask.size(1), device=target_mask.device) >= self.target_tags)

    def start(self, source: Tensor, mask: Tensor) -> DecoderState:
        """Encode source ids [B, S], or frames [B, L, F], where the mask is True; return the state before the target."""
        source, mask = self.encoder.front(source, mask)
        memory = self.encoder(source, mask)
        return self.decoder.start(memory, mask, self.head.begin(source, mask, memory))

    def start_with_attention(self, source: Tensor, mask: Tensor) -> DecoderState:
        """As `start`, but this state and its successors have `DecoderState.attention`."""
        state = self.start(source, mask)
        return replace(state, attention=(~state.memory_mask).float())

    def step(self, prefix: Tensor, state: DecoderState) -> tuple[NextToken, DecoderState]:
        """Return the distribution of the token after prefix [N, t]. Computes only tokens that are not in the state."""
        hidden, state = self.decoder(prefix[:, state.position :], state)
        return self.head.next_token(hidden[:, -1], state.context), state

    def loss(
        self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor,
        options: LossOptions = PLAIN, *, tokens: int | None = None,
    ) -> HeadLoss:  # fmt: skip
        """Return the summed loss of labels [B, T] given the decoder input target [B, T], where target_mask is True.

        tokens: the number of labels that count, if the caller knows it; else it is read back from the device.
        Here and in the methods below, labels that are not `predicted` do not count.
        """
        if compiled.on_device(source) and self.has_fixed_shapes(options):
            return self._padded_loss(source, source_mask, target, labels, target_mask, options, tokens)
        if options.r_drop:
            source, source_mask, target, labels, target_mask = (
                torch.cat([each, each]) for each in (source, source_mask, target, labels, target_mask)
            )
            tokens = None if tokens is None else 2 * tokens
        with routings() as routed:
            forced = self._teacher_forced(source, source_mask, target, target_mask, tokens, labels)
        hidden, layout, context = forced[:3]
        complete = options.with_teacher_targets(source, source_mask, target, target_mask)
        given = complete if self.head.blends_teacher_loss else options
        loss = given.loss(self.head, hidden, layout.pack(labels), context)
        loss = with_penalties(self.head, loss, hidden, context, complete)
        if self.ctc is not None and options.ctc_weight:
            assert forced.memory is not None
            aligned = self.ctc.loss(forced.memory, forced.memory_mask, target, target_mask)
            if options.r_drop:
                aligned = aligned / 2  # the mean of both passes, as the other losses
            both = torch.lerp(loss.objective, aligned.to(loss.objective.dtype), options.ctc_weight)
            loss = replace(loss, objective=both)
        return with_balance(loss, routed)

    def has_fixed_shapes(self, options: LossOptions) -> bool:
        """Return whether `loss` with these options computes the same operations for all batches of a shape on a GPU."""
        return self.head.weighs_rows and not options.has_penalties and self.ctc is None and not self.has_experts

    def _padded_loss(
        self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor,
        options: LossOptions, tokens: int | None,
    ) -> HeadLoss:  # fmt: skip
        """As `loss`, of all rows, those of padding with weight 0."""
        source, source_mask = self.encoder.front(source, source_mask)
        hidden = self.decoder.padded(target, self.encoder.padded(source, source_mask), source_mask)
        counted = self.predicted(target_mask, labels)
        weighted = replace(options, weights=counted.flatten())
        loss = weighted.loss(self.head, hidden.flatten(0, 1), labels.clamp(min=0).flatten(), None)
        return replace(loss, tokens=int(counted.sum()) if tokens is None else tokens)

    @torch.no_grad()
    def teacher_targets(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> TeacherTargets:
        """Return the model's distributions for the labels of target [B, T] where target_mask is True."""
        hidden, _, context, *_ = self._teacher_forced(source, source_mask, target, target_mask)

        def predict(rows: Tensor) -> NextToken:
            return self.head.next_token(hidden[rows], None if context is None else context.select(rows))

        return TeacherTargets(predict)

    @torch.no_grad()
    def score(self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor) -> Tensor:
        """Return [B, T], fp32: the log-probabilities of labels [B, T], zero where target_mask is False."""
        hidden, layout, context, *_ = self._teacher_forced(source, source_mask, target, target_mask)
        return layout.unpack(self.head.score(hidden, layout.pack(labels), context))

    @torch.no_grad()
    def beliefs(
        self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor,
        rows: int,
    ) -> Iterator[tuple[NextToken, Tensor]]:  # fmt: skip
        """Yield distributions for labels [B, T] where target_mask is True, with these labels [m], in order.

        At most `rows` at a time, so that n×V elements are never in memory.
        """
        hidden, layout, context, *_ = self._teacher_forced(source, source_mask, target, target_mask, labels=labels)
        packed_labels = layout.pack(labels)
        for start in range(0, len(packed_labels), rows):
            chosen = torch.arange(start, min(start + rows, len(packed_labels)), device=packed_labels.device)
            part = None if context is None else context.select(chosen)
            yield self.head.next_token(hidden[chosen], part), packed_labels[chosen]

    def _teacher_forced(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor, tokens: int | None = None,
        labels: Tensor | None = None,
    ) -> TeacherForced:  # fmt: skip
        source, source_mask = self.encoder.front(source, source_mask)
        if compiled.on_device(source) and not self.has_experts:
            return self._padded_teacher_forced(source, source_mask, target, target_mask, tokens, labels)
        source_layout, layout = Layout.from_mask(source_mask), Layout.from_mask(target_mask)
        memory = self.encoder.packed(source, source_layout)
        hidden = self.decoder.packed(target, layout, memory, source_layout)
        if labels is not None and not bool((labels < 0).any()):
            labels = None
        predicted = self.predicted(target_mask, labels)
        if predicted is not target_mask:
            hidden, layout = hidden[predicted[target_mask]], Layout.from_mask(predicted)
        grid = source_layout.unpack(memory) if self.head.reads_source or self.ctc is not None else None
        context = None if grid is None else self.head.begin(source, source_mask, grid)
        if context is not None:
            context = context.select(layout.tokens // target.size(1))
        return TeacherForced(hidden, layout, context, grid, source_mask)

    def _padded_teacher_forced(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor, tokens: int | None,
        labels: Tensor | None,
    ) -> TeacherForced:  # fmt: skip
        """As `_teacher_forced`, of padded batches, whose padding is removed at the end.  source: from `front`."""
        memory = self.encoder.padded(source, source_mask)
        layout = Layout.from_mask(self.predicted(target_mask, labels), tokens)
        hidden = layout.pack(self.decoder.padded(target, memory, source_mask))
        context = None
        if self.head.reads_source:
            context = self.head.begin(source, source_mask, memory.masked_fill(~source_mask[..., None], 0.0))
        if context is not None:
            context = context.select(layout.tokens // target.size(1))
        return TeacherForced(hidden, layout, context, memory, source_mask)
