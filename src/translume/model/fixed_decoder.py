"""The decoder and the head over caches of fixed shapes, for searches on a GPU: nothing is moved, and nothing read back.

A search keeps B slots of K hypotheses. Keys and values of the target are written once. A hypothesis reads those of its
ancestors: at each place of the target, one of the K hypotheses that the sentence had there. So a layer attends in one
call, with the K hypotheses of a sentence as queries over all K·T keys, and a mask. A beam is reordered by changing the
table of ancestors.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from translume.belief import Logits
from translume.model.attention import CrossAttention, SelfAttention, attend, rotate
from translume.model.layers import Ssru
from translume.model.positions import NO_POSITIONS
from translume.model.state import Cells, DecoderState, KeyValue, Past
from translume.model.transformer import Transformer

ON_DEVICES = ("attention_cap", "rotary_base", "rotary_scale", "late_positions", "final_transform", "shared_layers")
"""Modern settings that a `FixedDecoder` has, beside those of projections."""


def unsupported_by_fixed_decoder(model: Transformer) -> str:
    """Return why a model cannot be run by a `FixedDecoder`; empty if it can."""
    embedding, head = model.decoder.embedding, model.head
    if type(embedding.table) is not nn.Embedding or embedding.table.num_embeddings < head.vocabulary:
        return "the target embedding is not one table with all tokens of the head"
    if unknown := set(model.settings.modern()) - {"encoder", "key_value_heads", "query_key_norm", *ON_DEVICES}:
        return f"model.{min(unknown)} is set"
    if embedding.positions.in_attention and not embedding.positions.kernels:
        return f"the positions are {type(embedding.positions).__name__}"
    if not head.reads_source:
        with torch.inference_mode():
            hidden = torch.zeros_like(embedding.table.weight[:1])
            if type(head.next_token(hidden, None)) is Logits:
                return ""
    return f"the head is a {type(head).__name__}"


def bytes_per_slot(model: Transformer, *, width: int, source: int, target: int) -> int:
    """Return the memory of a slot of a `FixedDecoder` with these arguments, in bytes, its masks included."""
    layers, weight = list(model.decoder.stack), model.decoder.embedding.table.weight
    mixer, cached, mask = layers[0].self_attention, 0, 0
    if isinstance(mixer, SelfAttention):
        cached += 2 * (target + 1) * width * mixer.heads * mixer.head_size
        mask = 2 * width * width * target * (mixer.heads if model.decoder.embedding.positions.in_attention else 1)
    if layers[0].crosses:
        cached += 2 * source * layers[0].cross_attention.heads * layers[0].cross_attention.head_size
    return (len(layers) * cached + mask) * weight.element_size()


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers need in a step. B slots, K hypotheses each, T' places that are read.

    rows: [B·K], where new keys and values are written in the cache of a layer.
    bias: [B, 1 or H, K, T'·K], added to the scores: −inf for keys that a hypothesis does not read.
    rotation: [2, B, 1, 1, d], or None.  reach: T'.
    """

    rows: Tensor
    bias: Tensor
    rotation: Tensor | None
    reach: int


class _SlotCells(Cells):
    """The cells of one recurrent unit after the last token, [B·K, D]."""

    def select(self, rows: Tensor, length: int) -> "_SlotCells":
        return _SlotCells(self.cells.index_select(0, rows))

    def read(self, length: int) -> Tensor:
        return self.cells

    def write(self, cells: Tensor, place: int) -> None:
        self.cells.copy_(cells[:, 0])


class FixedDecoder:
    """The decoder and the head of a model for B slots of K hypotheses, sources of S positions and targets of T tokens.

    The model must be in evaluation mode, and pass `unsupported_by_fixed_decoder`. A slot holds one sentence at a time.
    Place T of a target is for slots without a sentence: it is written and never read.
    """

    def __init__(self, model: Transformer, *, slots: int, width: int, source: int, target: int) -> None:
        """slots: B.  width: K.  source: S, a multiple of 8 where speed matters.  target: T."""
        self._model, self._decoder = model, model.decoder
        self._slots, self._width, self._target = slots, width, target
        embedding, layers = self._decoder.embedding, list(self._decoder.stack)
        weight, positions = embedding.table.weight, embedding.positions
        zeros = partial(torch.zeros, dtype=weight.dtype, device=weight.device)
        self._past, self._cells = zeros(len(layers), 0), zeros(len(layers), 0)
        mixer = layers[0].self_attention
        if isinstance(mixer, SelfAttention):
            self._past = zeros(len(layers), slots, target + 1, width, 2, mixer.heads, mixer.head_size)
        else:
            cell_dtype = torch.promote_types(weight.dtype, torch.float32)
            self._cells = zeros(len(layers), slots, width, weight.size(1), dtype=cell_dtype)
        self._cross = zeros(0, 2, slots, 1, source, 1)
        if layers[0].crosses:
            cross = layers[0].cross_attention
            self._cross = zeros(len(layers), 2, slots, cross.heads, source, cross.head_size)
        self._source_bias = zeros(slots, 1, 1, source)
        self._zero, self._own = zeros(()), torch.arange(width, device=weight.device)
        self._last = min(target, target if positions.table is None else positions.table.size(0)) - 1
        # A bias depends on the distance alone, a rotation on the place alone: see `PositionEncoding.kernels`.
        last = positions.for_attention(target - 1, 1, causal=True, device=weight.device)
        self._by_distance = None if last.bias is None else last.bias[:, 0].flip(-1).T.to(weight.dtype).contiguous()
        self._rotation: Tensor | None = None
        if last.rotation is not None:
            every = positions.for_attention(0, target, causal=True, device=weight.device).rotation
            self._rotation = None if every is None else every.to(weight.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self._zero.dtype

    def logits(self, tokens: Tensor, places: Tensor, rows: Tensor, ancestors: Tensor, reach: int) -> Tensor:
        """Read one token of each hypothesis; return the logits [B·K, V] of the next ones, in the model's dtype or fp32.

        tokens: [B, K].  places: [B], of these tokens in the target; T for slots without a sentence.
        rows: [B·K], (b·(T + 1) + place)·K + k for hypothesis k of slot b.
        ancestors: [B, K, T + 1], the hypothesis that wrote what each reads at each place, itself at its own; −1: none.
        reach: T', above all places but T.
        """
        decoder, places = self._decoder, places.clamp(max=self._last)
        x = decoder.embedding(tokens, places[:, None]).view(tokens.numel(), -1)
        step = self._step(places, rows, ancestors, reach)
        for number, layer in enumerate(decoder.stack):
            mix = partial(self._mix, mixer=layer.self_attention, number=number, step=step)
            look = partial(self._look, attention=layer.cross_attention, number=number) if layer.crosses else None
            x = layer(x, mix, look)
        hidden = decoder.drop(decoder.norm(x))
        if plain := self._model.head.plain():  # without the copy in fp32
            return nn.functional.linear(hidden, plain["weight"], plain.get("bias"))
        belief = self._model.head.next_token(hidden, None)
        assert isinstance(belief, Logits)
        return belief.logits

    def _step(self, places: Tensor, rows: Tensor, ancestors: Tensor, reach: int) -> _Step:
        if not self._past.size(1):
            return _Step(rows, self._zero, None, reach)
        other = ancestors[:, :, :reach, None] != self._own  # [B, K, T', K]
        if self._by_distance is None:
            bias = self._zero.expand_as(other).masked_fill(other, -math.inf)[:, None]
        else:
            distances = (places[:, None] - torch.arange(reach, device=places.device)).clamp_(min=0)
            biases = self._by_distance[distances].mT[:, :, None, :, None]  # [B, H, 1, T', 1]
            bias = biases.expand(-1, -1, *other.shape[1:]).masked_fill(other[:, None], -math.inf)
        rotation = None if self._rotation is None else self._rotation[:, places][:, :, None, None]
        return _Step(rows, bias.flatten(3), rotation, reach)

    def _mix(self, x: Tensor, mixer: SelfAttention | Ssru, number: int, step: _Step) -> Tensor:
        """Map x [B·K, D] to the same shape, and write its keys and values, or its cells."""
        if isinstance(mixer, Ssru):
            return mixer.cached(x[:, None], _SlotCells(self._cells[number].flatten(0, 1)), 0, NO_POSITIONS)[:, 0]
        slots, width, size = self._slots, self._width, mixer.heads * mixer.head_size
        every = mixer.project(x)  # [B·K, 3·H·d]
        past = self._past[number].view(-1, 2 * size)
        if step.rotation is None:
            query = every[:, :size]
            past.index_copy_(0, step.rows, every[:, size:])
        else:
            turned = rotate(every[:, : 2 * size].view(slots, width, -1, mixer.head_size), step.rotation)
            query, keys = turned.view(-1, 2 * size).chunk(2, -1)
            past[:, :size].index_copy_(0, step.rows, keys)
            past[:, size:].index_copy_(0, step.rows, every[:, 2 * size :])
        keys, values = self._past[number, :, : step.reach].flatten(1, 2).transpose(1, 3).unbind(2)
        return self._attended(mixer, query, keys, values, step.bias)

    def _look(self, x: Tensor, attention: CrossAttention, number: int) -> Tensor:
        """Map x [B·K, D] to the same shape, reading the memory."""
        keys, values = self._cross[number]
        return self._attended(attention, attention.queries(x), keys, values, self._source_bias)

    def _attended(
        self, attention: SelfAttention | CrossAttention, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> Tensor:
        """Return the output [B·K, D] of attention from queries [B·K, H·d] over keys and values [B, H, …, d]."""
        queries = query.view(self._slots, self._width, attention.heads, -1).transpose(1, 2)
        mixed = attend(queries, keys, values, bias, cap=attention.cap).transpose(1, 2).reshape(query.shape)
        result: Tensor = attention.output(mixed)
        return result

    def reorder(self, origin: Tensor) -> None:
        """Let hypothesis k of slot b continue hypothesis origin[b, k], [B, K]. Only recurrent units move anything."""
        if self._cells.size(1):
            places = origin[None, :, :, None].expand_as(self._cells)
            self._cells.copy_(self._cells.gather(2, places))

    def enter(self, slots: Tensor, state: DecoderState, rows: slice, prompts: Tensor) -> None:
        """Put sentences in `slots` [n], int64: those at `rows` of a state before its first token, of width 1.

        prompts: [n, P], read without their last tokens, by hypothesis 0. Then its places 0 … P−2 are written.
        """
        mask = state.memory_mask[rows]
        bias = self._source_bias.new_full((len(mask), *self._source_bias.shape[1:]), -math.inf)
        bias[..., : mask.size(1)].masked_fill_(mask[:, None, None], 0.0)
        self._source_bias.index_copy_(0, slots, bias)
        if state.cross:
            parts = [part[rows] for each in state.cross for part in each.read(each.length)]  # [n, H, S', d] each
            cross = self._cross.flatten(0, 1)[..., : parts[0].size(2), :]
            cross.index_copy_(1, slots, torch.stack(parts))
        if self._cells.size(1):
            self._cells.index_fill_(1, slots, 0)
        if prompts.size(1) > 1:
            self._enter_prompts(slots, state, rows, prompts[:, :-1])

    def _enter_prompts(self, slots: Tensor, state: DecoderState, rows: slice, prompts: Tensor) -> None:
        memory = state.memory[rows]
        begun = replace(
            state,
            memory=memory,
            memory_mask=state.memory_mask[rows],
            cross=tuple(KeyValue(each.keys[rows], each.values[rows], each.length) for each in state.cross),
            past=Past([layer.self_attention.begin(memory) for layer in self._decoder.stack]),
            generation=0,
        )
        count = prompts.size(1)
        for number, past in enumerate(self._decoder(prompts, begun)[1].past.layers):
            if isinstance(past, KeyValue):
                written = torch.stack(past.read(count), 2).transpose(1, 3)  # [n, P − 1, 2, H, d]
                self._past[number, :, :count, 0].index_copy_(0, slots, written)
            elif isinstance(past, Cells):
                self._cells[number].index_copy_(0, slots, past.read(count)[:, None].expand(-1, self._width, -1))

    def clear(self, slots: Tensor) -> None:
        """Forget the sentences in `slots` [n]. Needed after a NaN: what a mask hides is multiplied by 0."""
        for cache, dim in ((self._past, 1), (self._cells, 1), (self._cross, 2)):
            if cache.numel():
                cache.index_fill_(dim, slots, 0)

    def copy_from(self, smaller: "FixedDecoder") -> None:
        """Take over all sentences of a decoder of the same model and width, with fewer slots or shorter targets."""
        slots, source = smaller._slots, smaller._source_bias.size(3)
        if self._past.numel():
            self._past[:, :slots, : smaller._target].copy_(smaller._past[:, :, :-1])
        else:
            self._cells[:, :slots].copy_(smaller._cells)
        self._cross[:, :, :slots, :, :source].copy_(smaller._cross)
        self._source_bias[:slots, ..., :source].copy_(smaller._source_bias)
        self._source_bias[:slots, ..., source:] = -math.inf
