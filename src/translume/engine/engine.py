"""The fast step: a model's weights packed for this machine, and attention that moves nothing."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from translume.belief import Logits, NextToken
from translume.decoding import Rule, Strategy
from translume.engine.layers import chosen_layers
from translume.engine.linear import PackedLinear
from translume.engine.native_layers import native_layers
from translume.engine.native_linear import LANES, Sharpener, summary
from translume.engine.native_search import NativeSearch, Parts, Plain
from translume.engine.probe import Choice
from translume.engine.state import Buffers, EngineState, Segment
from translume.model import Transformer
from translume.model.allocator import keep_freed_memory
from translume.model.layout import Layout
from translume.model.state import GROWTH

LARGEST_HALF = 65504.0
"""What is beyond has no fp16."""


class Engine:
    """A step over the weights of a model that it was made of, and a start; nothing of the model is changed.

    Beliefs are fp32 whatever the weights are packed in. States are written in place: only the newest may be used.
    """

    def __init__(self, model: Transformer, choice: Choice) -> None:
        """choice: how to pack each linear map."""
        keep_freed_memory()  # buffers of a batch are asked for again by the next one
        self.choice = choice
        self.dtype = choice.dtype
        self.decoder = chosen_layers(model.decoder, choice)
        kernels = self.decoder.looks_up  # the kernels were chosen, so they read the encoder's layers and logits, too
        self.encoder = native_layers(model.encoder, choice.dtype) if kernels else None
        self.model = _packed(model, choice, encoder=self.encoder is None)
        embedding = model.decoder.embedding
        self._embedding = (embedding.table.weight, embedding.scale, embedding.positions.table)
        plain = model.head.plain()
        self.head = choice.pack(plain["weight"], plain.get("bias")) if plain else None
        coarse = kernels and self.head is not None and self.head.kind.startswith("int8")
        whole = coarse and plain["weight"].size(1) % LANES == 0
        self.sharpener = Sharpener(plain["weight"], plain.get("bias")) if whole else None

    @torch.inference_mode()
    def start(self, source: Tensor, mask: Tensor) -> EngineState:
        """Encode source ids [B, S] where mask [B, S] is True; the state before the first target token."""
        encoder, decoder, head = self.model.encoder, self.model.decoder, self.model.head
        layout = Layout.of(mask)
        if self.encoder is None:
            packed = encoder.packed(source, layout)
        else:
            packed = self.encoder.encode(encoder.embed(source, layout), layout)
        memory = layout.unpack(packed)
        layers = list(decoder.stack)
        heads = layers[0].cross_attention.heads
        grid, width = layout.grid.shape, memory.size(2) // heads
        keeps = self.decoder.keeps
        cross = memory.new_empty(2 * len(layers), grid[0], heads, grid[1], width, dtype=keeps)
        for number, layer in enumerate(layers):
            key_value = layer.cross_attention.key_value(packed)
            if keeps == torch.float16:
                key_value = key_value.clamp_(-LARGEST_HALF, LARGEST_HALF)
            cross[2 * number : 2 * number + 2] = layout.split(key_value, 2, heads)
        past = memory.new_empty(2 * len(layers), grid[0], heads, GROWTH, 1, width, dtype=keeps)
        hidden = layout.bias(memory.dtype)
        buffers = Buffers(past, cross, hidden, looked_up=self.decoder.looks_up)
        return EngineState(buffers, position=0, context=head.begin(source, mask, memory))

    @torch.inference_mode()
    def step(self, prefix: Tensor, state: EngineState) -> tuple[NextToken, EngineState]:
        """The belief about the token after prefix [N, t]; reads only what the state has not read yet."""
        hidden, state = self._behind(prefix, state)
        if self.head is not None:
            return self._belief(self.head(hidden[:, -1]), hidden[:, -1]), state
        return self.model.head.next_token(hidden[:, -1], state.context), state

    @torch.inference_mode()
    def whole_search(
        self, state: EngineState, *, bos: int, eos: int, strategy: Strategy, limits: Tensor, rules: Sequence[Rule]
    ) -> NativeSearch | None:
        """See `Searcher`: greedy and plain beam search, where the kernels read the layers and give the logits."""
        state.check()
        parts = Parts.of(self.decoder, self.head, self.model.decoder.embedding, self.sharpener)
        if parts is None or not parts.suit(state, limits):
            return None
        plain = Plain.of(strategy, rules, eos, parts.head.outputs)
        return None if plain is None else NativeSearch(parts, plain, state, bos=bos, eos=eos, limits=limits)

    def rows_are_independent(self) -> bool:
        """Return whether every part claims a sentence's numbers to be the same, bit for bit, alone and in a batch."""
        if self.encoder is None or not self.decoder.looks_up or self.head is None:
            return False
        key_values = [cast(PackedLinear, layer.cross_attention.key_value) for layer in self.model.decoder.stack]
        return all(each.rows_are_independent() for each in (self.head, *key_values))

    def _belief(self, logits: Tensor, hidden: Tensor) -> Logits:
        """Of logits [N, V] that were made of hidden states [N, D]."""
        fit = self.decoder.looks_up and logits.dtype == torch.float32 and logits.is_contiguous()
        if self.sharpener is None or not fit:
            return Logits(logits, summary(logits) if fit else None)
        hidden = hidden.contiguous()
        return Logits(logits, summary(logits, self.sharpener.origin(hidden)))

    def _behind(self, prefix: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """The hidden states [N, t, D] of what the state has not read yet of a prefix, and the state that has."""
        if state.width == 1 and self.decoder.rereads:
            return self.read(prefix[:, state.position :], state)
        hidden = []
        for place in range(state.position, prefix.size(1)):
            one, state = self.read(prefix[:, place : place + 1], state)
            hidden.append(one)
        return torch.cat(hidden, 1), state

    def _embedded(self, ids: Tensor, place: int) -> Tensor:
        """[N, t, D], what the first layer reads for target ids [N, t] from a place on, in few calls."""
        table, scale, added = self._embedding
        x = table.index_select(0, ids.flatten()).view(*ids.shape, table.size(1))
        if scale != 1.0:
            x.mul_(scale)
        return x.add_(added[place : place + ids.size(1)]) if added.numel() else x

    def read(self, ids: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """Read t more target tokens a row, ids [N, t]: hidden states [N, t, D] and the state after them.

        t is 1 where there are several hypotheses a sentence, or cells instead of self-attention.
        """
        segment = _segment(ids, state)
        rows = _rows(segment.state)
        if rows is not None:
            ids = torch.empty_like(ids).index_copy_(0, rows, ids)
        x = self._embedded(ids, state.position).flatten(0, 1)
        return _closed(self.decoder.read(x, segment), segment)


def _segment(ids: Tensor, state: EngineState) -> Segment:
    """What of a state is read with ids [N, t], with room for them in its buffers."""
    state.check()
    if ids.size(0) != state.sentences * state.width:  # the kernels would read behind their end
        raise ValueError(f"found {ids.size(0)} rows, wanted those of the state: {state.sentences * state.width}")
    buffers, place, count = state.buffers, state.position, ids.size(1)
    if buffers.grow(place + count - 1, state.slots if buffers.looked_up else None):
        state = replace(state, slots=None, generation=buffers.changed())
    reach = state.reach
    if state.width > 1:
        own = torch.arange(state.width, device=ids.device)[None, :, None].expand(state.sentences, -1, 1)
        reach = own if reach is None else torch.cat([reach, own], 2)
    return Segment(state, count, reach)


def _closed(x: Tensor, segment: Segment) -> tuple[Tensor, EngineState]:
    """The hidden states [N, t, D] of what stands behind the layers, x [B·K·t, D], and the state that has read it."""
    hidden, rows = x.view(-1, segment.count, x.size(-1)), _rows(segment.state)
    if rows is not None:
        hidden = hidden.index_select(0, rows)
    return hidden, segment.state.advanced(segment.count, segment.reach)


def _rows(state: EngineState) -> Tensor | None:
    """[B·K], where each row stands in the buffers' order; None where that is asked slot by slot, or they are in it."""
    if state.slots is None or state.buffers.looked_up:
        return None
    return (state.slots[:, None] * state.width + torch.arange(state.width, device=state.slots.device)).flatten()


def _packed(model: Transformer, choice: Choice, *, encoder: bool) -> Transformer:
    """A copy of the model in evaluation mode with its cross-attention packed, and the `encoder` if so wanted.

    Other parameters are shared with it.
    """
    kept = {id(each): each for each in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, kept).eval()
    crossing = [layer.cross_attention for layer in twin.decoder.stack]
    for part in (*([twin.encoder] if encoder else []), *crossing):
        for module in list(part.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    packed: PackedLinear = choice.pack(child.weight, child.bias)
                    setattr(module, name, packed)
    return twin
