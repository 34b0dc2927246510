"""Searches that stay on a device: the host says which sentences enter, and reads which of them are done.

The steps are those of `SlotBeams`. The host runs them in groups without waiting, copies one flag of each slot after a
group, and reads it before the next group: so it builds results while the device computes. Sentences that wait take the
slots of those that are done.
"""

import gc
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from translume.decoding.beam import Hypothesis, ScoreTerms
from translume.decoding.device_step import FixedShapeDecoder, SlotBeams, StepSettings
from translume.decoding.stable_prefix import common_prefix
from translume.lazy import Tensor, inference_mode, torch

MIN_SOURCE, MIN_TARGET, MIN_REACH = 64, 64, 32
"""The smallest caches, and the fewest places of a target that are read; larger ones are doubled. Each is a shape."""
SLOT_STEP = 4
"""Ratio of one number of slots to the next."""
MAX_IDLE = 4
"""Number of idle searches whose caches and graphs are kept."""
_FREE = -1


def doubled(length: int, smallest: int) -> int:
    """Return the first of `smallest`, 2·`smallest`, 4·`smallest`, … that is at least `length`."""
    return smallest << max(0, -(-length // smallest) - 1).bit_length()


def slots_for(sentences: int, largest: int) -> int:
    """Return a number of slots for a number of sentences: a power of `SLOT_STEP`, or `largest`."""
    slots = 1
    while slots < min(sentences, largest):
        slots *= SLOT_STEP
    return min(slots, largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSizes:
    """The shapes of a search: B slots, sources of S positions, targets of T tokens with their prompts."""

    slots: int
    source: int
    target: int

    def covers(self, other: "SearchSizes") -> bool:
        """Return whether none is smaller."""
        return self.slots >= other.slots and self.source >= other.source and self.target >= other.target

    def joined(self, other: "SearchSizes") -> "SearchSizes":
        """Return the smallest that cover both."""
        return SearchSizes(
            slots=max(self.slots, other.slots),
            source=max(self.source, other.source),
            target=max(self.target, other.target),
        )


class Capture(Protocol):
    """Records the operations of a function on a device, to run them again at once."""

    def warm_up(self, function: Callable[[], None]) -> None:
        """Run a function as before its capture."""

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats what `function` does, which is not done now. RuntimeError: it cannot."""


class CudaCapture:
    """Captures functions in CUDA graphs, which share the memory of their intermediate results."""

    _lock = threading.Lock()  # one capture at a time in a process

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's has no types
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable[[], None]) -> None:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()
        current.wait_stream(self._stream)

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with self._lock, _no_collection():
            torch.cuda.synchronize(self._device)
            with torch.cuda.stream(self._stream):
                # As `torch.cuda.graph`, but without emptying the allocator's cache for each of several graphs.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    function()
                finally:
                    graph.capture_end()
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Do not collect garbage, which could free what a capture must not."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


Shape = TypeVar("Shape", bound=Hashable)


class CapturedSteps(Generic[Shape]):
    """Runs a step of some shape: the first time as it is, then as captured, if it can be captured."""

    def __init__(self, step: Callable[[Shape], None], capture: Capture | None) -> None:
        """capture: None runs every step as it is."""
        self._step, self._capture = step, capture
        self._warm = set[Shape]()
        self._replays: dict[Shape, Callable[[], None]] = {}

    def __call__(self, shape: Shape) -> None:
        """Run the step."""
        replay = self._replays.get(shape)
        if replay is None and self._capture is not None:
            if shape not in self._warm:
                self._warm.add(shape)
                self._capture.warm_up(partial(self._step, shape))
                return
            try:
                replay = self._replays[shape] = self._capture(partial(self._step, shape))
            except RuntimeError as error:
                self._capture = None
                _note_failure(" ".join(str(error).split())[:200])
        if replay is None:
            self._step(shape)
        else:
            replay()


@cache
def _note_failure(reason: str) -> None:
    """Log why a capture failed, once in a process."""
    logging.getLogger(__name__).warning("decoding without CUDA graphs, which is slower: %s", reason)


class _HostCopy:
    """A copy of a tensor to the host, which the host waits for only when it reads it."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's has no types
            self._event.record(torch.cuda.current_stream(tensor.device))
        else:
            self._copy = tensor.cpu()

    def read(self) -> NDArray[Any]:
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._copy.numpy()


def _on_device(values: NDArray[np.int64], device: "torch.device") -> Tensor:
    """Return numbers as a tensor on a device, without waiting for what the device does."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(slots=True)
class _Entry:
    """Sentences that enter together, B of them.  first: the number of the first.  begun: how many have got slots.

    state: before the first token.  prompts: [B, P].  limits: [B], on the device.  own_limits: the same, on the host.
    draws: [B, K], see `draw_states`.
    """

    first: int
    state: Any
    prompts: Tensor
    limits: Tensor
    own_limits: NDArray[np.int64]
    draws: Tensor | None
    begun: int = 0

    def next_rows(self, limit: int, wanted: Callable[[int], bool]) -> slice | None:
        """Return the next sentences that are `wanted` by their numbers, consecutive ones; None if none is left."""
        count = len(self.own_limits)
        while self.begun < count and not wanted(self.first + self.begun):
            self.begun += 1
        begin = end = self.begun
        while end < count and end - begin < limit and wanted(self.first + end):
            end += 1
        self.begun = end
        return slice(begin, end) if end > begin else None


@dataclass(frozen=True, slots=True)
class _Flight:
    """The flags of a group of steps.  numbers: the sentences in the slots then.  flags: 0, 1 (done) or 2 (failed)."""

    numbers: NDArray[np.int64]
    flags: _HostCopy


@dataclass(slots=True)
class _Results:
    """The finished hypotheses of some sentences, as `SlotBeams.results` returns them."""

    settings: StepSettings
    floats: _HostCopy
    integers: _HostCopy
    reach: int
    _hypotheses: list[list[Hypothesis]] | None = field(default=None, init=False)

    def hypotheses(self, place: int) -> list[Hypothesis]:
        """Return the hypotheses of one sentence, best first; none if no token was possible."""
        if self._hypotheses is None:
            self._hypotheses = self._read()
        return self._hypotheses[place]

    def _read(self) -> list[list[Hypothesis]]:
        prompt, floats, integers = self.settings.prompt, self.floats.read(), self.integers.read()
        lengths = np.abs(integers[..., 1])
        longest = int(lengths.max(initial=1))
        before = floats[..., 2 + prompt : 2 + prompt + longest]  # Σ log p_model before the first token, after it, …
        final = np.take_along_axis(before, np.maximum(lengths - 1, 0)[..., None], -1)[..., 0]
        columns = (
            floats[..., :3].tolist(),
            integers[..., :2].tolist(),
            integers[..., 2 + prompt : 1 + prompt + longest].tolist(),
            np.diff(before).tolist(),
            (floats[..., 2] - final).tolist(),
        )
        divisors = [self.settings.penalty.divisor(float(length)) for length in range(1, longest + 1)]
        return [
            [
                Hypothesis(
                    tokens=(*tokens[: abs(length) - 1], token),
                    log_prob=log_prob,
                    log_probs=(*log_probs[: abs(length) - 1], last),
                    score=score,
                    terms=ScoreTerms(total=total, divisor=divisors[abs(length) - 1]),
                    finished_by="length" if length < 0 else "eos",
                )
                for (score, total, log_prob), (token, length), tokens, log_probs, last in zip(*each, strict=True)
                if length
            ]
            for each in zip(*columns, strict=True)
        ]


MakeDecoder = Callable[[StepSettings, SearchSizes], FixedShapeDecoder]
"""Returns new caches of fixed shapes for a search."""


class DeviceSearch:
    """A `CompleteSearch` on a device. One thread at a time may use it.

    Results do not depend on the slots, nor on when a sentence enters, but for the rounding of sums on the device.
    """

    def __init__(
        self,
        settings: StepSettings,
        sizes: SearchSizes,
        make: MakeDecoder,
        device: "torch.device",
        idle: "IdleSearches",
        capture: Callable[[], Capture] | None = None,
    ) -> None:
        """idle: takes the search when it is closed.  capture: None for steps that are not captured."""
        self.settings, self.sizes = settings, sizes
        self._make, self._device, self._make_capture, self._idle = make, device, capture, weakref.ref(idle)
        self._beams, self._steps = self._new_beams(sizes)
        self._numbers = np.full(sizes.slots, _FREE)  # of the sentences in the slots
        self._places = np.zeros(sizes.slots, np.int64)  # of their next tokens, as far as they are live
        self._last_places = np.zeros(sizes.slots, np.int64)
        self._waiting = deque[_Entry]()
        self._live = set[int]()
        self._results: dict[int, tuple[_Results | None, int]] = {}
        self._flight: _Flight | None = None
        self._seen: dict[int, tuple[list[Hypothesis], list[list[int]]]] | None = None
        self._count = 0  # sentences that have entered

    @inference_mode()
    def _new_beams(self, sizes: SearchSizes) -> tuple[SlotBeams, CapturedSteps[int]]:
        decoder = self._make(self.settings, sizes)
        beams = SlotBeams(self.settings, decoder, sizes.slots, sizes.target, self._device)
        return beams, CapturedSteps(beams.step, None if self._make_capture is None else self._make_capture())

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def waiting(self) -> int:
        """The number of sentences that have no slot yet."""
        return sum(len(each.own_limits) - each.begun for each in self._waiting)

    @inference_mode()
    def enter(
        self,
        state: Any,
        prompts: Tensor,
        limits: Tensor,
        own_limits: NDArray[np.int64],
        draws: Tensor | None,
        sizes: SearchSizes,
    ) -> Sequence[int]:
        """Add B sentences; return their numbers. They get slots in the next `run`.

        state: of B rows before the first token.  prompts: [B, P].  limits: [B].  own_limits: the same, on the host.
        draws: of `draw_states`.  sizes: those that are wanted; smaller ones of the search grow. It can do with fewer
        slots. Raises OutOfMemoryError if there is no room for longer sources or targets.
        """
        if not self.sizes.covers(sizes):
            try:
                self._grow(self.sizes.joined(sizes))
            except torch.OutOfMemoryError:
                if not self.sizes.covers(replace(sizes, slots=1)):
                    raise
        entry = _Entry(self._count, state, prompts, limits, own_limits, draws)
        self._count += len(own_limits)
        self._waiting.append(entry)
        self._live.update(range(entry.first, self._count))
        self._seen = None
        return range(entry.first, self._count)

    def _grow(self, sizes: SearchSizes) -> None:
        beams, steps = self._new_beams(sizes)
        beams.copy_from(self._beams)
        self._beams, self._steps = beams, steps
        more = sizes.slots - self.sizes.slots
        self._numbers = np.pad(self._numbers, (0, more), constant_values=_FREE)
        self._places, self._last_places = (np.pad(each, (0, more)) for each in (self._places, self._last_places))
        self.sizes = sizes

    @inference_mode()
    def run(self, steps: int) -> Sequence[int]:
        """See `CompleteSearch`. The sentences that it returns were done after the steps of the call before."""
        done = self._landed()
        self._place()
        if (self._numbers != _FREE).any():
            for _ in range(steps):
                self.step()
            flags = self._beams.done.byte() + self._beams.failed.byte()
            self._flight = _Flight(self._numbers.copy(), _HostCopy(flags))
        return done

    @inference_mode()
    def step(self) -> None:
        """Take one step with the sentences in the slots."""
        taken = self._numbers != _FREE
        longest = int(self._places[taken].max(initial=0))
        self._steps(min(doubled(longest + 1, MIN_REACH), self.sizes.target))
        np.minimum(self._places + taken, self._last_places, out=self._places)
        self._seen = None

    def _landed(self) -> list[int]:
        """Return the sentences that the flags of the last group say are done, and free their slots."""
        flight, self._flight = self._flight, None
        if flight is None:
            return []
        flags = flight.flags.read()
        used = flight.numbers != _FREE
        broken = np.flatnonzero(used & (flags > 1))
        if len(broken):  # also those of sentences that were removed since
            self._beams.decoder.clear(_on_device(broken, self._device))
        count = len(flags)  # there may be more slots now
        ended = np.flatnonzero(used & (flags > 0) & (flight.numbers == self._numbers[:count]))
        if not len(ended):
            return []
        numbers: list[int] = self._numbers[ended].tolist()
        slots = _on_device(ended, self._device)
        results = self._fetch(slots, ended)
        for place, (number, flag) in enumerate(zip(numbers, flags[ended].tolist(), strict=True)):
            self._results[number] = (None if flag > 1 else results, place)
        self._numbers[ended] = _FREE
        self._live.difference_update(numbers)
        return numbers

    def _fetch(self, slots: Tensor, own_slots: NDArray[np.int64]) -> _Results:
        """Begin to copy the finished hypotheses in some slots, given on the device and on the host."""
        reach = min(doubled(int(self._places[own_slots].max()) + 1, MIN_REACH), self.sizes.target)
        floats, integers = self._beams.results(slots, reach)
        return _Results(self.settings, _HostCopy(floats), _HostCopy(integers), reach)

    def _place(self) -> None:
        """Give free slots to sentences that wait."""
        free = np.flatnonzero(self._numbers == _FREE)
        while len(free) and self._waiting:
            entry = self._waiting[0]
            rows = entry.next_rows(len(free), self._live.__contains__)
            if rows is None:
                self._waiting.popleft()
                continue
            count = rows.stop - rows.start
            chosen, free = free[:count], free[count:]
            self._beams.enter(
                _on_device(chosen, self._device),
                entry.state,
                rows,
                entry.prompts[rows],
                entry.limits[rows],
                None if entry.draws is None else entry.draws[rows],
            )
            self._numbers[chosen] = np.arange(entry.first + rows.start, entry.first + rows.stop)
            self._places[chosen] = self.settings.prompt - 1
            self._last_places[chosen] = self.settings.prompt - 2 + entry.own_limits[rows]
            if entry.begun == len(entry.own_limits):
                self._waiting.popleft()

    @inference_mode()
    def hypotheses(self, number: int) -> list[Hypothesis] | None:
        results, place = self._results.pop(number)
        return (results and results.hypotheses(place)) or None

    @inference_mode()
    def stable_prefix(self, number: int, *, every: bool) -> list[int]:
        if number in self._results:
            results, place = self._results[number]
            finished, live = ([] if results is None else results.hypotheses(place)), list[list[int]]()
        else:
            if self._seen is None:
                self._seen = self._look()
            finished, live = self._seen.get(number, ([], []))
        known = [list(each.tokens) for each in (finished if every else finished[:1])] + live
        return common_prefix(known)

    def _look(self) -> dict[int, tuple[list[Hypothesis], list[list[int]]]]:
        """Return the finished hypotheses, and the tokens of the live ones, of every sentence in a slot."""
        own_slots = np.flatnonzero(self._numbers != _FREE)
        if not len(own_slots):
            return {}
        slots = _on_device(own_slots, self._device)
        results = self._fetch(slots, own_slots)
        live = _HostCopy(self._beams.live_tokens(slots, results.reach)).read()
        known, begin = {}, 1 + self.settings.prompt
        for place, slot in enumerate(own_slots.tolist()):
            end = 1 + int(self._places[slot])
            rows = [
                [*row[begin:end].tolist(), int(row[-1])] if end >= begin else list[int]()
                for row in live[place]
                if row[0]
            ]
            known[int(self._numbers[slot])] = results.hypotheses(place), rows
        return known

    @inference_mode()
    def remove(self, number: int) -> None:
        self._results.pop(number, None)
        self._live.discard(number)
        slots = np.flatnonzero(self._numbers == number)
        if len(slots):
            self._beams.remove(_on_device(slots, self._device))
            self._numbers[slots] = _FREE

    @inference_mode()
    def close(self) -> None:
        self._landed()  # of sentences that were removed
        self._seen = None
        self._waiting.clear()
        if (idle := self._idle()) is not None:
            idle.put(self)


class IdleSearches:
    """Searches that are closed, and their caches and graphs, for later ones. Threads may share it."""

    def __init__(self) -> None:
        self._searches: list[DeviceSearch] = []
        self._lock = threading.Lock()

    def take(self, settings: StepSettings, sizes: SearchSizes) -> DeviceSearch | None:
        """Return a search with these settings and at least these sizes, but not many more slots, or None."""
        with self._lock:
            for place, each in enumerate(self._searches):
                enough = each.settings == settings and each.sizes.covers(sizes)
                if enough and each.sizes.slots <= SLOT_STEP**2 * sizes.slots:
                    return self._searches.pop(place)
        return None

    def put(self, search: DeviceSearch) -> None:
        """Keep a search; forget the oldest one if there are too many."""
        with self._lock:
            self._searches = [*self._searches, search][-MAX_IDLE:]

    def clear(self) -> None:
        """Forget all searches."""
        with self._lock:
            self._searches = []
