"""The engine: a model's weights packed for this machine, behind the interface of the plain model."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from translume.belief import Logits, NextToken
from translume.decoding import CompleteSearch, ForbidTokens, MinimumLength, Rule, Sampling, Strategy
from translume.engine.layers import choose_layers
from translume.engine.logits import CopyKernels, CopySources, LogitRefiner, summarize_logits
from translume.engine.native_layers import NativeLayers, cache_heads, native_layers
from translume.engine.packing import LANES
from translume.engine.probe import CANDIDATES, Choice, Dtype, load_choice, save_choice
from translume.engine.rules import forced_sentences
from translume.engine.search import IdleSearches, KernelSearchSettings, NativeSearch, SearchModel
from translume.engine.sources import SourceKernels
from translume.engine.state import EngineState, KVCache, StepInput
from translume.errors import SettingsError, nearest
from translume.heads.copy import CopyHead
from translume.model import Transformer
from translume.model.allocator import keep_freed_memory
from translume.model.attention import SelfAttention
from translume.model.layout import Layout
from translume.model.state import GROWTH, Selectable
from translume.model.transformer import EmptyEncoder

FP16_MAX = 65504.0


class EngineError(SettingsError):
    """There is no engine for this model or machine. The plain model has the same functions."""


def build_engine(model: Transformer, dtype: Dtype = "fp32") -> "Engine":
    """Return the engine of a model, its weights packed as "fp32", "bf16" or "int8".

    The packings chosen by a probe are stored in the user's cache and reused by later runs.
    Raises EngineError if the model or its device has no engine.
    """
    if dtype not in CANDIDATES:
        raise EngineError(f"engine: dtype: found '{dtype}'{nearest(dtype, CANDIDATES)}")
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise EngineError(f"engine: found a model on {device}, expected one on the CPU")
    other = next((each.dtype for each in model.parameters() if each.dtype != torch.float32), None)
    if other is not None:
        raise EngineError(f"engine: found a model in {other}, expected torch.float32 (load it with dtype fp32)")
    choice = load_choice(dtype)
    before = dict(choice.kinds)
    engine = Engine(model, choice)
    if choice.kinds != before:
        save_choice(choice)
    return engine


class Engine:
    """A `Stepper` over the packed weights of a model, which is not changed.

    Logits are fp32 for every packing. States are written in place: only the newest may be used.

    key_values: the packed key and value projections of each layer's cross-attention; none in a language model.
    head: the packed output head, or None if the head is not one linear layer.
    copying: what a copy head adds to the logits of `head`, if the kernels compute both.
    """

    def __init__(self, model: Transformer, choice: Choice) -> None:
        """choice: how to pack each linear layer; shapes that it lacks are probed and added."""
        keep_freed_memory()  # every batch allocates buffers of similar sizes
        self.choice = choice
        self.dtype = choice.dtype
        self.decoder = choose_layers(model.decoder, choice)
        kernels = self.decoder.indirect_slots  # the kernels were chosen, so they compute the encoder and logits too
        self.encoder = native_layers(model.encoder, choice.dtype) if kernels else None
        self.model = _shallow_copy(model)
        if self.encoder is None:
            _pack_linears(self.model.encoder, choice)
        projections = [layer.cross_attention.key_value for layer in model.decoder.stack if layer.crosses]
        self.key_values = [choice.pack(each.weight, each.bias) for each in projections]
        embedding = model.decoder.embedding
        self._embedding = (embedding.table.weight, embedding.scale, embedding.positions.table)
        copy_head = model.head if kernels and isinstance(model.head, CopyHead) else None
        plain = model.head.plain() if copy_head is None else copy_head.softmax.plain()
        self.head = choice.pack(plain["weight"], plain.get("bias")) if plain else None
        self.copying = None if copy_head is None else CopyKernels(copy_head)
        quantized = kernels and self.head is not None and self.head.kind.startswith("int8")
        refined = quantized and plain["weight"].size(1) % LANES == 0
        self.refiner = LogitRefiner(plain["weight"], plain.get("bias")) if refined else None
        self._sources: SourceKernels | None = None
        if plain and copy_head is None:  # the head does not need the memory
            self._sources = SourceKernels.of(self.encoder, self.decoder, self.model, self.key_values)
        self._searchable: tuple[object, object, SearchModel | None, IdleSearches] | None = None
        self._last_settings: tuple[Strategy, Sequence[Rule], KernelSearchSettings] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which begins without idle searches."""
        return {**self.__dict__, "_searchable": None, "_last_settings": None}

    @torch.inference_mode()
    def start(self, source: Tensor, mask: Tensor) -> EngineState:
        """Encode source ids [B, S], or frames [B, L, F], where the mask is True; return the state before the target."""
        encoder, decoder, head = self.model.encoder, self.model.decoder, self.model.head
        if self._sources is not None and (cache := self._sources.read(source, mask)) is not None:
            return EngineState(cache, position=0)
        source, mask = encoder.front(source, mask)
        layout = Layout.of(mask)
        if self.encoder is None:
            packed = encoder.packed(source, layout)
        else:
            packed = self.encoder.encode(encoder.embed(source, layout), layout)
        memory = layout.unpack(packed)
        first = next(iter(decoder.stack))
        heads = cache_heads(first)
        mixer = first.self_attention
        grid, width = (
            layout.grid.shape,
            mixer.head_size if isinstance(mixer, SelfAttention) else memory.size(2) // heads,
        )
        dtype, layers = self.decoder.cache_dtype, len(decoder.layers)
        cross = memory.new_empty(2 * layers, grid[0], heads, grid[1], width, dtype=dtype)
        for number, project in enumerate(self.key_values):
            key_value = project(packed)
            if dtype == torch.float16:
                key_value = key_value.clamp_(-FP16_MAX, FP16_MAX)
            cross[2 * number : 2 * number + 2] = layout.split(key_value, 2, heads)
        past = memory.new_empty(2 * layers, grid[0], heads, GROWTH, 1, width, dtype=dtype)
        cache = KVCache(past, cross, layout.bias(memory.dtype), indirect=self.decoder.indirect_slots)
        begin = head.begin if self.copying is None else self.copying.begin
        state = EngineState(cache, position=0, context=begin(source, mask, memory))
        return state if self.model.ctc is None else replace(state, memory=memory, memory_mask=mask)

    @property
    def reports_attention(self) -> bool:
        """Whether `start_with_attention` is supported: if the kernels compute layers that read a source."""
        return isinstance(self.decoder, NativeLayers) and self.decoder.shape.crosses

    def start_with_attention(self, source: Tensor, mask: Tensor) -> EngineState:
        """As `start`, but this state and its successors have `EngineState.attention`; see `reports_attention`."""
        if not self.reports_attention:
            raise ValueError("the engine reports no attention for these layers, only the plain model does")
        state = self.start(source, mask)
        bias, shape = state.cache.source_bias, state.cache.cross.shape  # of the encoder's positions, not the source's
        padding = torch.zeros(shape[1], shape[3]) if bias is None else (bias[:, 0, 0] < 0).float()
        return replace(state, attention=padding)

    @torch.inference_mode()
    def step(self, prefix: Tensor, state: EngineState) -> tuple[NextToken, EngineState]:
        """Return the distribution of the token after prefix [N, t]. Reads only tokens that are not in the state."""
        hidden, state = self._read_rest(prefix, state)
        if self.head is not None:
            return self._next_token(self.head(hidden[:, -1]), hidden[:, -1], state.context), state
        return self.model.head.next_token(hidden[:, -1], state.context), state

    @torch.inference_mode()
    def complete_search(
        self,
        state: EngineState,
        *,
        prompts: Tensor,
        eos: int,
        strategy: Strategy,
        limits: Tensor,
        rules: Sequence[Rule],
        running: CompleteSearch | None = None,
    ) -> tuple[NativeSearch, Sequence[int]] | None:
        """See `CompleteSearcher`. Supports greedy and beam search and sampling if the kernels compute all of a step."""
        state.check()
        model, idle = self._search_model()
        if model is None or not model.fits(state, prompts, limits):
            return None
        settings = self._kernel_settings(strategy, rules, eos, model.head.outputs)
        forced = forced_sentences(rules, limits)
        if settings is None or forced is None:
            return None
        if settings.coverage and (state.attention is None or prompts.size(1) > 1):
            return None
        search = running or idle.take(settings) or NativeSearch(model, settings, eos, idle)
        if not isinstance(search, NativeSearch) or search.settings != settings:
            return None
        if prompts.size(1) > 1:
            state = replace(state, cache=state.cache.copy(1, 0))
            state = self.read(prompts[:, :-1], state)[1]
        keys = strategy.keys if isinstance(strategy, Sampling) else None
        return search, search.enter(state, prompts[:, -1], limits, forced, keys)

    def _search_model(self) -> tuple[SearchModel | None, IdleSearches]:
        """Return what the kernels read in a search, kept until the head or the embedding changes; None: not all."""
        table, found = self.model.decoder.embedding.table.weight, self._searchable
        if found is None or found[0] is not self.head or found[1] is not table.dtype:
            model = SearchModel.of(self.decoder, self.head, self.model.decoder.embedding, self.refiner, self.copying)
            found = self._searchable = self.head, table.dtype, model, IdleSearches()
        return found[2:]

    def _kernel_settings(
        self, strategy: Strategy, rules: Sequence[Rule], eos: int, size: int
    ) -> KernelSearchSettings | None:
        """Return `KernelSearchSettings.of`. The last ones are kept, if they do not depend on the sentences."""
        last = self._last_settings
        if last is not None and last[0] is strategy and last[1] == rules and last[2].rules.struct.eos == eos:
            return last[2]
        settings = KernelSearchSettings.of(strategy, rules, eos, size)
        if settings is not None and all(isinstance(each, ForbidTokens | MinimumLength) for each in rules):
            self._last_settings = strategy, rules, settings
        return settings

    def rows_are_independent(self) -> bool:
        """Return whether every part guarantees that results are the same, bit for bit, alone and in a batch."""
        encodes = self.encoder is not None or isinstance(self.model.encoder, EmptyEncoder)
        if not encodes or not self.decoder.indirect_slots or self.head is None:
            return False
        return all(each.rows_are_independent() for each in (self.head, *self.key_values))

    def read(self, ids: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """Read t more target tokens per row, ids [N, t]: return hidden states [N, t, D] and the state after them.

        t must be 1 with several hypotheses per sentence, and where `Layers.reads_blocks` is False.
        """
        step = _prepare_step(ids, state)
        rows = _cache_rows(step.state)
        if rows is not None:
            ids = torch.empty_like(ids).index_copy_(0, rows, ids)
        x = self.decoder.read(self._embed(ids, state.position).flatten(0, 1), step)
        hidden = x.view(-1, step.count, x.size(-1))
        if rows is not None:
            hidden = hidden.index_select(0, rows)
        return hidden, step.state.advance(step.count, step.ancestors, step.attention)

    def _next_token(self, logits: Tensor, hidden: Tensor, context: Selectable | None) -> Logits:
        """Return the distribution for logits [N, V], computed from hidden states [N, D].  context: of the head."""
        if not self.decoder.indirect_slots:
            return Logits(logits)
        logits, hidden = logits.contiguous(), hidden.contiguous()
        summary = summarize_logits(logits, None if self.refiner is None else self.refiner.inputs(hidden))
        if isinstance(context, CopySources) and self.copying is not None:
            summary = self.copying.add(logits, summary, hidden, context)
        return Logits(logits, summary)

    def _read_rest(self, prefix: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """Read the tokens of a prefix that are not in the state; return hidden states [N, t, D] and the new state."""
        if state.width == 1 and self.decoder.reads_blocks:
            return self.read(prefix[:, state.position :], state)
        hidden = []
        for position in range(state.position, prefix.size(1)):
            one, state = self.read(prefix[:, position : position + 1], state)
            hidden.append(one)
        return torch.cat(hidden, 1), state

    def _embed(self, ids: Tensor, position: int) -> Tensor:
        """Return embeddings [N, t, D], before their norm, of target ids [N, t] from `position` on.

        With few calls of torch.
        """
        table, scale, added = self._embedding
        x = table.index_select(0, ids.flatten()).view(*ids.shape, table.size(1))
        if scale != 1.0:
            x.mul_(scale)
        return x.add_(added[position : position + ids.size(1)]) if added is not None else x


def _prepare_step(ids: Tensor, state: EngineState) -> StepInput:
    """Check ids [N, t] against the state and grow its cache for them."""
    state.check()
    if ids.size(0) != state.sentences * state.width:  # the kernels would read out of bounds
        raise ValueError(f"found {ids.size(0)} rows, expected those of the state: {state.sentences * state.width}")
    cache, position, count = state.cache, state.position, ids.size(1)
    if cache.grow(position + count - 1, state.slots if cache.indirect else None):
        state = replace(state, slots=None, generation=cache.mark_changed())
    ancestors = state.ancestors
    if state.width > 1:
        own = torch.arange(state.width, device=ids.device)[None, :, None].expand(state.sentences, -1, 1)
        ancestors = own if ancestors is None else torch.cat([ancestors, own], 2)
    attention = None
    if state.attention is not None:
        attention = torch.zeros(state.sentences * state.width, state.cache.cross.size(3))
    return StepInput(state, count, ancestors, attention)


def _cache_rows(state: EngineState) -> Tensor | None:
    """Return the index [B·K] of each row in the order of the cache; None if slots are indirect or rows are in order."""
    if state.slots is None or state.cache.indirect:
        return None
    return (state.slots[:, None] * state.width + torch.arange(state.width, device=state.slots.device)).flatten()


def _shallow_copy(model: Transformer) -> Transformer:
    """Return a copy of the model in evaluation mode that shares its parameters."""
    shared = {id(each): each for each in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared).eval()


def _pack_linears(part: nn.Module, choice: Choice) -> None:
    """Replace the linear layers in a module by packed ones."""
    for module in list(part.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, choice.pack(child.weight, child.bias))
