"""The engine: a model's weights packed for the kernels, which run whole searches and single steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from translume.belief import BeliefError, Logits, NextToken
from translume.checkpoint.weights import unique_tensors
from translume.config.sources import TextSettings
from translume.decoding import CompleteSearch, ForbidTokens, MinimumLength, Rule, Sampling, Strategy
from translume.engine.layers import Layers
from translume.engine.logits import CopyKernels, CopySources, LogitRefiner, LogitStatistics, summarize_logits
from translume.engine.network import Array, Linear, Network, vectors
from translume.engine.packing import LINEAR, Dtype, PackedLinear, checked_linear, packed_to_check
from translume.engine.rules import forced_sentences
from translume.engine.search import (
    Draft,
    IdleSearches,
    KernelSearchSettings,
    NativeSearch,
    SearchModel,
    SentenceDraft,
)
from translume.engine.sources import SourceKernels, empty_cache
from translume.engine.state import EngineState, StepInput
from translume.errors import SettingsError, check_known
from translume.kernels.allocator import keep_freed_memory
from translume.kernels.loading import NativeError, empty
from translume.lazy import torch

if TYPE_CHECKING:
    from translume.engine.fronts import Front
    from translume.model import Transformer

FP16_MAX = 65504.0
SCORED_ELEMENTS = 1 << 22
"""Maximum number of logits in memory while targets are scored."""


class EngineError(SettingsError):
    """There is no engine for this model or machine. The plain model has the same functions."""


def build_engine(model: "Transformer", dtype: Dtype = "fp32") -> "Engine":
    """Return the engine of a model, its weights packed as "fp32", "bf16" or "int8".

    Raises EngineError if the model or its device has no engine.
    """
    weight = next(model.parameters())
    if weight.device.type != "cpu":
        raise EngineError(f"engine: found a model on {weight.device}, expected one on the CPU")
    weights = unique_tensors(model)
    for tensor in weights.values():
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            expected = "expected torch.float32 (load it with dtype fp32)"
            raise EngineError(f"engine: found a model in {tensor.dtype}, {expected}")
    source = getattr(model.encoder.embedding, "source", TextSettings())
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    network = Network(settings=model.settings, source=source, weights=arrays)
    return Engine(network, dtype, lambda: model)


class Engine:
    """A `Stepper` over the packed weights of a model. Arguments may be arrays or tensors; states are arrays.

    Logits are fp32 for every packing. States are written in place: only the newest may be used.

    encoder: None in a language model.  head: the packed output head, or None if the head is not one linear map.
    front: what makes positions of the frames of recordings and images; None for texts, and if the plain model does.
    ctc: the packed output of CTC, in fp32, if there is one.
    key_values: the packed key and value projections of each layer's cross-attention; none in a language model.
    copying: what a copy head adds to the logits of `head`.
    """

    def __init__(self, network: Network, dtype: Dtype, model: Callable[[], "Transformer"]) -> None:
        """model: returns the plain model, for what the kernels do not have: other heads and front ends.

        Raises EngineError if the kernels are not available, or do not support the layers.
        """
        check_known("engine: dtype", dtype, LINEAR, EngineError)
        keep_freed_memory()  # every batch allocates buffers of similar sizes
        self.network, self.dtype, self._model = network, dtype, model
        self.packed_file: Path | None = None
        """The file that the packed weights were read from, if any."""
        self.drafts: dict[str, Draft | None] = {}
        """Models that guess tokens for this one, by their folders; None for one that is missing."""
        try:
            self._pack()
        except NativeError as error:
            raise EngineError(f"engine: {error}") from None
        self._idle = IdleSearches()
        self._last_settings: tuple[Strategy, Sequence[Rule], KernelSearchSettings] | None = None

    def _pack(self) -> None:
        network, dtype = self.network, self.dtype
        settings, checked = network.settings, bool(network.kept)  # a packed file was checked when it was made
        self.decoder = Layers(network, "decoder", dtype)
        self.encoder = Layers(network, "encoder", dtype) if network.crosses else None
        self.front: Front | None = None
        if self.encoder is not None and network.source.reader:
            from translume.engine.fronts import front_of  # which texts do not need

            self.front = front_of(network.encoder, dtype)
        layers = range(self.decoder.shape.count if network.crosses else 0)
        self.key_values = [self._checked(f"key_value.{number}", partial(self._key_value, number)) for number in layers]
        self.head = self._checked("head", network.head) if settings.head.linear else None
        copies = self.head is not None and settings.head.reads_source
        self.copying = CopyKernels(network, self.head.outputs) if self.head is not None and copies else None
        self.refiner = LogitRefiner(*network.head(kept=True)) if self.head and dtype == "int8" else None
        self._table, self._positions = network.table("decoder"), network.positions("decoder")
        self._searched: SearchModel | None = None
        if self.head is not None:
            self._searched = SearchModel(self.decoder, self.head, network, self.refiner, self.copying)
        self._sources: SourceKernels | None = None
        self.ctc: PackedLinear | None = None
        if "ctc.output.weight" in network.weights:
            read = partial(network.linear, "ctc.output", None, settings.of_encoder.width, biased=True)
            self.ctc = PackedLinear(network.keep("ctc", lambda: PackedLinear.pack(*read())))
        reads_memory = settings.head.reads_source or self.ctc is not None
        if self.encoder is not None and self.network.reads_ids and not settings.segments and not reads_memory:
            self._sources = SourceKernels(self.encoder, self.decoder, network, self.key_values)
        if not checked and not self.plain_parts:  # else the plain model refuses what it does not have
            if self.encoder is not None and self.front is None:
                network.encoder.embedded(np.zeros((1, 0), np.int64), np.zeros((1, 0), np.bool_))  # reads its weights
            network.refuse_unread()

    @property
    def as_draft(self) -> Draft | None:
        """What guesses tokens for a larger model; None if the kernels cannot search with this one."""
        return None if self._searched is None else Draft(self._searched, self.start)

    def _key_value(self, layer: int) -> Linear:
        return self.decoder.padded(self.network.key_value(layer))

    def _checked(self, name: str, make: Callable[[], Linear]) -> PackedLinear:
        name = f"{name}|{LINEAR[self.dtype].format}"
        return checked_linear(self.dtype, self.network.keep(name, lambda: packed_to_check(self.dtype, *make())))

    @property
    def plain_parts(self) -> list[str]:
        """What the plain model computes, because the kernels have no such part."""
        head = self.network.settings.head
        parts = {
            "the front end of the source": not (self.encoder is None or self.front or self.network.reads_ids),
            f"the output head ({head.kind})": self.head is None,
        }
        return [name for name, plain in parts.items() if plain]

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, without the structures of the last search, which have addresses."""
        return {**self.__dict__, "_last_settings": None}

    def start(self, source: ArrayLike, mask: ArrayLike) -> EngineState:
        """Encode source ids [B, S], or frames [B, L, F], where the mask is True; return the state before the target."""
        source, mask = np.asarray(source), np.asarray(mask)
        if self._sources is not None and (cache := self._sources.read(source, mask)) is not None:
            return EngineState(cache, position=0)
        if self.encoder is None:
            return EngineState(empty_cache(self.decoder, *mask.shape, padded=False), position=0)
        return self._start(self.encoder, source, mask)

    def _start(self, encoder: Layers, source: Array, mask: Array) -> EngineState:
        """See `start`, for sources that `SourceKernels` does not read and for heads that read the memory."""
        x, there = self._embedded_source(source, mask)
        rows, places = there.nonzero()
        packed = encoder.encode(x, there.sum(1))
        cache = empty_cache(self.decoder, *there.shape, padded=True)
        cross, shape = cache.cross, self.decoder.shape
        cross[...] = 0.0
        for number, project in enumerate(self.key_values):
            key_value = project(packed).reshape(len(packed), 2, shape.heads, shape.head_size)
            if cross.dtype == np.float16:
                key_value = key_value.clip(-FP16_MAX, FP16_MAX)
            for part in range(2):
                cross[2 * number + part, rows, :, places] = key_value[:, part]
        assert cache.source_bias is not None
        cache.source_bias[...] = -np.inf
        cache.source_bias[rows, 0, 0, places] = 0.0
        state = EngineState(cache, position=0)
        if not (self.network.settings.head.reads_source or self.ctc):
            return state
        memory = np.zeros((*there.shape, packed.shape[1]), np.float32)
        memory[rows, places] = packed
        if self.copying is not None:
            state = replace(state, context=self.copying.begin(source, mask, memory))
        elif self.network.settings.head.reads_source:
            tensors = map(torch.from_numpy, (source, mask, memory))
            state = replace(state, context=self._model().head.begin(*tensors))
        return replace(state, memory=memory, memory_mask=there) if self.ctc else state

    def _embedded_source(self, source: Array, mask: Array) -> tuple[Array, Array]:
        """Return the vectors that the encoder reads, packed [n, D], and the mask [B, S] of their positions."""
        if self.network.reads_ids:
            return self.network.encoder.embedded(source, mask), mask
        if self.front is not None:
            return self.front.embedded(source, mask)
        with torch.inference_mode():
            embedded, there = self._model().encoder.embedded(torch.from_numpy(source), torch.from_numpy(mask))
        return embedded.numpy(), there.numpy()

    def ctc_log_probs(self, memory: Array) -> Array:
        """Return the log-probabilities [B, S, V] of CTC for the memory of a state, of a model that has this output."""
        assert self.ctc is not None
        logits = self.ctc(memory)
        logits -= logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        return logits

    def cache_bytes(self, source: int, target: int, width: int) -> int:
        """Return the most bytes of keys and values for a sentence of so many tokens, with `width` hypotheses."""
        shape = self.decoder.shape
        position = 2 * shape.count * shape.heads * shape.head_size * self.decoder.cache_dtype.itemsize
        return position * (source + width * target)

    @property
    def reports_attention(self) -> bool:
        """Whether `start_with_attention` is supported: if the layers read a source."""
        return self.network.crosses

    def start_with_attention(self, source: ArrayLike, mask: ArrayLike) -> EngineState:
        """As `start`, but this state and its successors have `EngineState.attention`; see `reports_attention`."""
        if not self.reports_attention:
            raise ValueError("a language model has no attention to a source")
        state = self.start(source, mask)
        bias, shape = state.cache.source_bias, state.cache.cross.shape  # of the encoder's positions, not the source's
        padding = np.zeros((shape[1], shape[3]), np.float32) if bias is None else (bias[:, 0, 0] < 0).astype(np.float32)
        return replace(state, attended=padding)

    def step(self, prefix: ArrayLike, state: EngineState) -> tuple[NextToken, EngineState]:
        """Return the distribution of the token after prefix [N, t]. Reads only tokens that are not in the state."""
        hidden, state = self._read_rest(np.asarray(prefix), state)
        last = np.ascontiguousarray(hidden[:, -1])
        if self.head is not None:
            logits, statistics = self._logits(last, state.context)
            return Logits(torch.from_numpy(logits), statistics.summary()), state
        with torch.inference_mode():
            return self._model().head.next_token(torch.from_numpy(last), state.context), state

    def complete_search(
        self,
        state: EngineState,
        *,
        prompts: ArrayLike,
        eos: int,
        strategy: Strategy,
        limits: ArrayLike,
        rules: Sequence[Rule],
        running: CompleteSearch | None = None,
        draft: Callable[[Array, Array, int], SentenceDraft | None] | None = None,
    ) -> tuple[NativeSearch, Sequence[int]] | None:
        """See `CompleteSearcher`. Supports greedy and beam search and sampling if the kernels compute all of a step.

        draft: `Draft.begin` of the only source, used if the search has one hypothesis.
        """
        state.check()
        prompts, limits, model = np.asarray(prompts, np.int64), np.asarray(limits, np.int64), self._searched
        if model is None or not model.fits(state, prompts, limits):
            return None
        settings = self._kernel_settings(strategy, rules, eos, model.head.outputs)
        forced = forced_sentences(rules, limits)
        if settings is None or forced is None:
            return None
        if settings.coverage and (state.attended is None or prompts.shape[1] > 1):
            return None
        search = running or self._idle.take(settings) or NativeSearch(model, settings, eos, self._idle)
        if not isinstance(search, NativeSearch) or search.settings != settings:
            return None
        if prompts.shape[1] > 1:
            state = replace(state, cache=state.cache.copy(1, 0))
            state = self.read(prompts[:, :-1], state)[1]
        keys = np.asarray(strategy.keys) if isinstance(strategy, Sampling) else None
        drafted = draft(prompts, limits, eos) if draft is not None and settings.width == len(limits) == 1 else None
        return search, search.enter(state, prompts[:, -1], limits, forced, keys, drafted)

    def _kernel_settings(
        self, strategy: Strategy, rules: Sequence[Rule], eos: int, size: int
    ) -> KernelSearchSettings | None:
        """Return the settings of a search. The last ones are kept, if they do not depend on the sentences."""
        last = self._last_settings
        if last is not None and last[0] is strategy and last[1] == rules and last[2].rules.struct.eos == eos:
            return last[2]
        settings = KernelSearchSettings.from_strategy(strategy, rules, eos, size)
        if settings is not None and all(isinstance(each, ForbidTokens | MinimumLength) for each in rules):
            self._last_settings = strategy, rules, settings
        return settings

    def read(self, ids: Array, state: EngineState) -> tuple[Array, EngineState]:
        """Read t more target tokens per row, ids [N, t]: return hidden states [N, t, D] and the state after them.

        t must be 1 with several hypotheses per sentence.
        """
        step = _prepare_step(ids, state)
        x = self.decoder.read(self._embedded(ids, state.position), step)
        attended = None if step.attention is None else step.attention[step.count - 1 :: step.count]
        return x.reshape(-1, step.count, x.shape[1]), step.state.advance(step.count, step.ancestors, attended)

    def cross_attention(self, source: Array, mask: Array, target: Array) -> Array:
        """Return [B, T, S or more]: mean attention over the heads of the second to last layer, or of the only one.

        target: ids [B, T] that are read, bos first.
        """
        step = _prepare_step(target, self.start_with_attention(source, mask))
        self.decoder.without_last().read(self._embedded(target, 0), step)
        assert step.attention is not None
        return step.attention.reshape(*target.shape, -1)

    def score(self, source: Array, mask: Array, target: Array, labels: Array, there: Array) -> Array:
        """Return the log-probabilities [B, T] of labels [B, T] in targets [B, T] that are read, zero where not `there`.

        target: begins with BOS.  The head must be one linear map, apart from what it copies.
        """
        assert self.head is not None
        state = self.start(source, mask)
        hidden, _ = self.read(target, state)
        scores = np.zeros(labels.shape, np.float32)
        rows, places = there.nonzero()
        rows_at_once = max(1, SCORED_ELEMENTS // self.head.outputs)
        for begin in range(0, len(rows), rows_at_once):
            row, place = rows[begin : begin + rows_at_once], places[begin : begin + rows_at_once]
            states = hidden[row, place]
            context = None if state.context is None else state.context.select(row)
            logits, statistics = self._logits(states, context)
            if not statistics.finite:
                broken = int(row[~np.isfinite(statistics.peak[:, 0])][0])
                raise BeliefError(broken, "the head's logits hold a NaN, an infinity or no finite number")
            chosen = np.take_along_axis(logits, labels[row, place][:, None], 1)
            scores[row, place] = ((chosen - statistics.peak) - statistics.log_sum)[:, 0]
        return scores

    def _logits(self, hidden: Array, context: Any) -> tuple[Array, LogitStatistics]:
        """Return logits [N, V] after hidden states [N, D] and their statistics.  context: of the head."""
        assert self.head is not None
        logits = self.head(hidden)
        statistics = summarize_logits(logits, None if self.refiner is None else self.refiner.inputs(hidden))
        if isinstance(context, CopySources) and self.copying is not None:
            statistics = self.copying.add(logits, statistics, hidden, context)
        return logits, statistics

    def _read_rest(self, prefix: Array, state: EngineState) -> tuple[Array, EngineState]:
        """Read the tokens of a prefix that are not in the state; return hidden states [N, t, D] and the new state."""
        if state.width == 1:
            return self.read(prefix[:, state.position :], state)
        hidden = []
        for position in range(state.position, prefix.shape[1]):
            states, state = self.read(prefix[:, position : position + 1], state)
            hidden.append(states)
        return np.concatenate(hidden, 1), state

    def _embedded(self, ids: Array, position: int) -> Array:
        """Return embeddings [N·t, D], before their norm, of target ids [N, t] from `position` on."""
        x = vectors(self._table, ids, self.network.scale)
        if self._positions is not None:
            x += self._positions[position : position + ids.shape[1]]
        return x.reshape(-1, x.shape[2])


def _prepare_step(ids: Array, state: EngineState) -> StepInput:
    """Check ids [N, t] against the state and grow its cache for them."""
    state.check()
    if len(ids) != state.sentences * state.width:  # the kernels would read out of bounds
        raise ValueError(f"found {len(ids)} rows, expected those of the state: {state.sentences * state.width}")
    cache, position, count = state.cache, state.position, ids.shape[1]
    if cache.grow(position + count - 1, state.slots):
        state = replace(state, slots=None, generation=cache.mark_changed())
    ancestors = state.ancestors
    if state.width > 1:
        own = np.broadcast_to(np.arange(state.width)[None, :, None], (state.sentences, state.width, 1))
        ancestors = own if ancestors is None else np.concatenate([ancestors, own], 2)
    attention = None
    if state.attended is not None:
        attention = empty([ids.size, state.cache.cross.shape[3]])
        attention[...] = 0.0
    return StepInput(state, count, ancestors, attention)
