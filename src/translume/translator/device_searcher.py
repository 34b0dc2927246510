"""The searcher of a model on a GPU: whole searches stay there, where their strategy, rules and model allow it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from translume.belief import NextToken
from translume.decoding import CompleteSearch, Rule, Strategy
from translume.decoding.device_search import (
    MIN_SOURCE,
    MIN_TARGET,
    Capture,
    CapturedSteps,
    CudaCapture,
    DeviceSearch,
    IdleSearches,
    SearchSizes,
    doubled,
    slots_for,
)
from translume.decoding.device_step import StepSettings, UnsupportedSearchError, draw_states
from translume.device import free_bytes
from translume.lazy import Tensor, inference_mode, torch

if TYPE_CHECKING:
    from translume.model import Transformer
    from translume.model.state import DecoderState

MAX_SLOTS, MAX_ROWS = 512, 2560
"""Maximum number of sentences, and of hypotheses, in a step. More hardly use a large GPU better."""
MAX_CAPTURED = 16
"""Maximum number of sources whose encoding is captured. With more, the device is slower than the host in any case."""
FREE_SHARE = 4
"""One part in so many of the free memory is for a new search."""
CPU_BYTES = 1 << 30
"""Memory for a search on a CPU."""
LOGIT_BYTES, DRAWN_LOGIT_BYTES = 16, 80
"""Memory in a step for each logit, in several formats and copies; with sampling, whose sums are fp64."""


class DeviceSearcher:
    """A `CompleteSearcher` of a model on its own device, meant for GPUs. Threads may share it.

    Its steps are the model's. Searches are those of `DeviceSearch`, captured in CUDA graphs on a CUDA device.
    """

    def __init__(self, model: "Transformer", capture: Callable[[], Capture] | None = None) -> None:
        """model: in evaluation mode; its weights may change between searches, in place.

        capture: makes what captures steps; by default graphs on a CUDA device, and nothing elsewhere.
        """
        self.model = model
        self.start_with_attention = model.start_with_attention
        self._idle = IdleSearches()
        self._unsupported: str | None = None  # not known yet
        if self.device.type == "cuda":
            from translume.model.attention import use_kernels_of_any_shape

            use_kernels_of_any_shape()
            capture = capture or partial(CudaCapture, self.device)
        self._capture = capture
        self._captured_start = None if capture is None else _CapturedStart(model, capture())

    @property
    def device(self) -> "torch.device":
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> str:
        """The number format of the model: "fp32", "bf16", "fp16" or "fp64"."""
        name = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        return name.replace("bfloat", "bf").replace("float", "fp")

    def release_memory(self) -> None:
        """Forget the caches and graphs of searches that are over, as before other work on the same device."""
        self._idle.clear()

    def start(self, source: Tensor, mask: Tensor) -> "DecoderState":
        """As `Transformer.start`."""
        if self._captured_start is not None and self._captured_start.supports(source):
            return self._captured_start(source, mask)
        return self.model.start(source, mask)

    def step(self, prefix: Tensor, state: "DecoderState") -> "tuple[NextToken, DecoderState]":
        """Take a step of the model."""
        return self.model.step(prefix, state)

    def settings_of(self, strategy: Strategy, rules: Sequence[Rule], *, eos: int, prompt: int) -> StepSettings:
        """Return a search as the device runs it. Raises UnsupportedSearchError, which says why it does not.

        prompt: tokens before the first one that is chosen.
        """
        if self._unsupported is None:
            from translume.model.fixed_decoder import unsupported_by_fixed_decoder

            self._unsupported = unsupported_by_fixed_decoder(self.model)
        if reason := "the model is in training mode" if self.model.training else self._unsupported:
            raise UnsupportedSearchError(reason)
        return StepSettings.of(strategy, rules, eos=eos, prompt=prompt, vocabulary=self.model.head.vocabulary)

    @inference_mode()
    def complete_search(
        self,
        state: Any,
        *,
        prompts: Tensor,
        eos: int,
        strategy: Strategy,
        limits: Tensor,
        rules: Sequence[Rule],
        running: CompleteSearch | None = None,
    ) -> tuple[DeviceSearch, Sequence[int]] | None:
        """See `CompleteSearcher`."""
        from translume.model.state import DecoderState

        if not isinstance(state, DecoderState) or state.position or state.width > 1 or state.context is not None:
            return None
        try:
            settings = self.settings_of(strategy, rules, eos=eos, prompt=prompts.size(1))
        except UnsupportedSearchError:
            return None
        own_limits: list[int] = limits.tolist()
        positions, longest = self.model.decoder.embedding.positions, settings.prompt + max(own_limits, default=0) - 1
        if not own_limits or min(own_limits) < 1 or (positions.table is not None and longest > positions.longest):
            return None
        source = doubled(state.memory_mask.size(1), MIN_SOURCE)
        target = doubled(longest, MIN_TARGET)
        before = running.live if running is not None else 0
        most = self._most_slots(settings, source, target)
        sizes = SearchSizes(slots=slots_for(before + len(own_limits), most), source=source, target=target)
        if running is not None and not (isinstance(running, DeviceSearch) and running.settings == settings):
            return None
        limits, draws = limits.long(), draw_states(strategy, self.device)
        try:
            search = running or self._idle.take(settings, sizes) or self._new_search(settings, sizes)
            return search, search.enter(state, prompts, limits, np.array(own_limits), draws, sizes)
        except torch.OutOfMemoryError:
            return None

    def _most_slots(self, settings: StepSettings, source: int, target: int) -> int:
        """Return how many sentences the free memory has room for in a new search, from 1 to `MAX_SLOTS`.

        source, target: maximum numbers of source positions and target tokens.
        """
        from translume.model.fixed_decoder import bytes_per_slot

        width = settings.width
        free = free_bytes(self.device) // FREE_SHARE if self.device.type == "cuda" else CPU_BYTES
        logits = width * self.model.head.vocabulary * (DRAWN_LOGIT_BYTES if settings.truncation else LOGIT_BYTES)
        each = logits + bytes_per_slot(self.model, width=width, source=source, target=target)
        return max(1, min(MAX_SLOTS, MAX_ROWS // width, free // each))

    def _new_search(self, settings: StepSettings, sizes: SearchSizes) -> DeviceSearch:
        """Return a search of these sizes, or with fewer slots. Raises OutOfMemoryError if there is not room for one."""

        from translume.model.fixed_decoder import FixedDecoder

        def make(settings: StepSettings, sizes: SearchSizes) -> FixedDecoder:
            return FixedDecoder(
                self.model, slots=sizes.slots, width=settings.width, source=sizes.source, target=sizes.target
            )

        while True:
            try:
                return DeviceSearch(settings, sizes, make, self.device, self._idle, self._capture)
            except torch.OutOfMemoryError:
                self._idle.clear()
                if sizes.slots == 1:
                    raise
                sizes = replace(sizes, slots=sizes.slots // 2)


class _CapturedStart:
    """`Transformer.start` of few texts at a time, captured for each of few shapes. Threads may share it."""

    def __init__(self, model: "Transformer", capture: Capture) -> None:
        self._model, self._lock = model, Lock()
        self._inputs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._states: dict[tuple[int, int], DecoderState] = {}
        self._steps = CapturedSteps(self._encode, capture)

    def supports(self, source: Tensor) -> bool:
        """Return whether a source is a few texts, and the model computes the same operations for all of them."""
        from translume.model.embedding import Embedding

        model = self._model
        plain = type(model.encoder.embedding) is Embedding and model.decoder.crosses and not model.training
        return plain and not model.head.reads_source and source.dim() == 2 and len(source) <= MAX_CAPTURED

    def _encode(self, shape: tuple[int, int]) -> None:
        self._states[shape] = self._model.start(*self._inputs[shape])

    @inference_mode()
    def __call__(self, source: Tensor, mask: Tensor) -> "DecoderState":
        """Return the state of sources [B, S]. Its memory may have more positions, at which the mask is False."""
        from translume.model.state import DecoderState, KeyValue, Past

        (count, length), positions = source.shape, self._model.encoder.embedding.positions
        padded = doubled(length, MIN_SOURCE)
        if positions.table is not None:
            padded = max(length, min(padded, positions.table.size(0)))
        shape = slots_for(count, MAX_CAPTURED), padded
        with self._lock:
            if shape not in self._inputs:
                self._inputs[shape] = source.new_zeros(shape), mask.new_zeros(shape)
            ids, allowed = self._inputs[shape]
            ids[:count, :length].copy_(source)
            allowed.zero_()[:count, :length].copy_(mask)
            self._steps(shape)
            state = self._states[shape]
            # Copies, because the next call overwrites the state.
            memory, memory_mask = state.memory[:count].clone(), state.memory_mask[:count].clone()
            cross = torch.stack([part[:count] for each in state.cross for part in each.read(each.length)])
        pairs = zip(cross[::2], cross[1::2], strict=True)
        past = Past([layer.self_attention.begin(memory) for layer in self._model.decoder.stack])
        return DecoderState(memory, memory_mask, tuple(KeyValue(*pair, padded) for pair in pairs), past, position=0)
