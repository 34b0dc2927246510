"""Greedy and beam search by the compiled kernels, several steps of all live sentences per call."""

import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.belief import BLOCK, UNSHIFTED
from translume.decoding import BeamSearch, Greedy, Hypothesis, LengthPenalty, Rule, Sampling, ScoreTerms, Strategy
from translume.engine.layers import Layers, cache_struct, field_place
from translume.engine.logits import CopyKernels, CopySources, LogitRefiner
from translume.engine.network import Array, Network
from translume.engine.packing import PackedLinear
from translume.engine.rules import KernelRules, KernelSampling, SamplingSettings
from translume.engine.state import EngineState
from translume.kernels import loading
from translume.kernels.loading import address, empty

MAX_IDLE = 4
"""Number of idle searches whose buffers are kept."""
LIVE, DONE, FAILED = range(3)
"""States of a sentence in search.c."""
_STATE, _POSITION, _CACHE, _SLOT = (
    field_place(loading.Sentence, name) for name in ("state", "position", "cache", "slot")
)
_FIXED = [field_place(loading.Sentence, name) for name in ("cache", "position", "beam", "begin")]
"""Fields that are the same for all sentences of an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSearchSettings:
    """A search that the kernels support: strategy and rules as numbers and tables.

    candidates: how many candidates of a sentence are ranked.  patience: finished hypotheses that end a sentence; 0: end
        when no live hypothesis can improve on them.
    rules: as the kernels read them.  sampling: None for other strategies.  coverage: weight of the coverage penalty.
    """

    width: int
    candidates: int
    nbest: int
    patience: float
    penalty: LengthPenalty
    rules: KernelRules
    sampling: SamplingSettings | None = None
    coverage: float = 0.0

    @classmethod
    def from_strategy(
        cls, strategy: Strategy, rules: Sequence[Rule], eos: int, size: int
    ) -> "KernelSearchSettings | None":
        """Return the settings, or None if the kernels do not support the strategy or a rule.  size: V."""
        sampling = None
        if type(strategy) is Greedy:
            candidates, patience = 1, 0.0
        elif type(strategy) is BeamSearch and strategy.width > 1:
            candidates = 2 * strategy.width
            patience = strategy.patience * strategy.width if strategy.stop == "first" else 0.0
        elif type(strategy) is Sampling:
            candidates, patience = strategy.width, float(strategy.width)
            sampling = SamplingSettings(strategy.seed, strategy.temperature, strategy.truncation)
        else:
            return None
        kernel_rules = KernelRules.from_rules(rules, eos, size)
        if candidates > size or kernel_rules is None:
            return None
        return cls(
            width=strategy.width,
            candidates=candidates,
            nbest=strategy.nbest,
            patience=patience,
            penalty=strategy.length_penalty,
            rules=kernel_rules,
            sampling=sampling,
            coverage=0.0 if strategy.coverage is None else strategy.coverage.weight,
        )


class SearchModel:
    """The parts of a model that the kernels read: packed layers and head, and the target embedding.

    table: [V, D], multiplied by `scale`.  positions: [positions, D], or None.  refiner: of an int8 head.
    copying: of a copy head.
    """

    def __init__(
        self,
        layers: Layers,
        head: PackedLinear,
        network: Network,
        refiner: LogitRefiner | None,
        copying: CopyKernels | None,
    ) -> None:
        self.layers, self.head, self.refiner, self.copying = layers, head, refiner, copying
        positions = network.positions("decoder")
        self.table, self.scale = np.ascontiguousarray(network.table("decoder")), network.scale
        self.positions = None if positions is None else np.ascontiguousarray(positions)

    def fits(self, state: EngineState, prompts: Array, limits: Array) -> bool:
        """Return whether a search from `state` after prompts [B, P] to `limits` [B] stays in bounds.

        The kernels do not check them.
        """
        begun = state.position or state.width > 1 or state.slots is not None
        if begun or not limits.size or not limits.size == state.sentences == len(prompts):
            return False
        if self.head.outputs > len(self.table):  # tokens that it generates are read
            return False
        if limits.min() < 1 or prompts.min() < 0 or prompts.max() >= len(self.table):
            return False
        longest = self.layers.longest if self.positions is None else len(self.positions)
        return longest is None or prompts.shape[1] - 1 + int(limits.max()) <= longest


@dataclass(frozen=True, slots=True)
class Draft:
    """A model that guesses up to `count` tokens after a hypothesis. What the search returns does not depend on it.

    model: reads and writes the tokens of the search's own.  start: encodes a source [1, S] and its mask.
    """

    model: SearchModel
    start: Callable[[Array, Array], EngineState]
    count: int = 4

    def begin(self, source: Array, mask: Array, prompts: Array, limits: Array, eos: int) -> "SentenceDraft | None":
        """Return what guesses for a source [1, S] after a prompt [1, P]; None if they are too long for the model.

        limits: [1], maximum number of tokens after the prompt.
        """
        state = self.start(source, mask)
        if not self.model.fits(state, prompts, limits):
            return None
        return SentenceDraft(self, state, prompts, int(limits[0]), eos)


class SentenceDraft:
    """A `draft` of draft.h for one sentence, and the memory that it points to."""

    def __init__(self, draft: Draft, state: EngineState, prompts: Array, limit: int, eos: int) -> None:
        model, cache, count = draft.model, state.cache, draft.count
        cache.grow(prompts.shape[1] + limit, None)
        source, width, size = cache.cross.shape[3], model.table.shape[1], model.head.outputs
        self.count, self._cache_struct = count, cache_struct(cache)
        workspace = model.layers.workspace(count + 1, max(source, prompts.shape[1] + limit), count + 1)
        buffers = prompts.copy(), empty([count], np.int64), empty([count + 1, width]), empty([size]), workspace
        self._kept = (draft, cache, buffers)  # own the memory that the kernels read
        self._struct = loading.Draft(
            model.layers.address, ctypes.addressof(model.head.struct), address(model.table), address(model.positions),
            model.scale, size, eos, count,
            loading.Lane(ctypes.addressof(self._cache_struct), 0, 0, 1, None),
            *map(address, buffers),
        )  # fmt: skip
        self.address = ctypes.addressof(self._struct)


class NativeSearch:
    """A `CompleteSearch` by the kernels, with caches of its own for the target."""

    def __init__(self, model: SearchModel, settings: KernelSearchSettings, eos: int, idle: "IdleSearches") -> None:
        """idle: takes the search when it is closed."""
        self.settings, self._library = settings, loading.kernels().library
        self._idle = weakref.ref(idle)  # a cycle would keep the weights of an unloaded model in memory
        self._model = model  # owns memory that the kernels read
        self._entries: list[_Entry] = []
        self._count = 0  # sentences that have entered
        self._refinement = None if model.refiner is None else model.refiner.inputs(empty([0, model.table.shape[1]]))
        self._sampling: KernelSampling | None = None
        if settings.sampling is not None:
            self._sampling = KernelSampling(
                settings.sampling, model.head.outputs, has_phrases=settings.rules.has_phrases
            )
        self._kept: dict[str, Array | None] = {"table": model.table, "positions": model.positions}
        self._settings_struct = loading.SearchSettingsStruct(
            stack=model.layers.address,
            head=ctypes.addressof(model.head.struct),
            refinement=None if self._refinement is None else ctypes.addressof(self._refinement),
            copying=None if model.copying is None else ctypes.addressof(model.copying.struct),
            scale=model.scale,
            unshifted_limit=UNSHIFTED,
            vocabulary=model.head.outputs,
            block=BLOCK,
            eos=eos,
            rules=settings.rules.address,
            sampling=None if self._sampling is None else ctypes.addressof(self._sampling.struct),
            coverage=settings.coverage,
            beam=settings.width,
            candidates=settings.candidates,
            nbest=settings.nbest,
            patience=settings.patience,
            **{name: address(array) for name, array in self._kept.items()},
        )
        self._divisors = empty([0])
        self._search = loading.SearchState()
        self._buffers: dict[str, Array] = {"live": empty([0], np.int64)}
        self._longest = self._own_rows = 0  # positions, and rows of a sentence, for which the workspace has room

    @property
    def live(self) -> int:
        return int(self._search.step.sentences)

    @property
    def _live(self) -> Array:
        """The addresses of the live sentences, and room for more."""
        return self._buffers["live"]

    def enter(
        self,
        state: EngineState,
        last: Array,
        limits: Array,
        forced: Array,
        keys: Array | None = None,
        draft: SentenceDraft | None = None,
    ) -> Sequence[int]:
        """Add sentences that `SearchModel.fits`; return their numbers.

        state: after the prompts without their last tokens `last` [B]. Its cache has one hypothesis per sentence.
        forced: [B], whether a target begins with the text of the rules.  keys: [B], those of `Sampling`.
        draft: of the only sentence, if it has one.
        """
        own = {"limit": limits, "forced": forced, **({} if keys is None else {"key": keys})}
        if draft is not None:
            own["draft"] = np.array([draft.address])
        entry = _Entry(self.settings, state, last, own, self._count, draft)
        self._count += entry.count
        self._entries.append(entry)
        live = self.live
        own_rows = self.settings.width if draft is None else draft.count + 1
        rows = max((live + entry.count) * self.settings.width, own_rows)
        self._make_room(rows, own_rows, state.position + entry.longest + 1, entry.cache.cross.shape[3])
        self._live[live : live + entry.count] = entry.addresses
        self._search.step.sentences = live + entry.count
        return entry.numbers

    def _make_room(self, rows: int, own_rows: int, positions: int, source: int) -> None:
        """Grow the buffers for a number of rows of a step, and for hypotheses and sources of some lengths.

        own_rows: of one sentence.
        """
        size, head = self._model.head.outputs, self._model.head
        if positions > self._divisors.size - 1:
            lengths = map(float, range(1, positions + 1))
            self._divisors = np.array([1.0, *map(self.settings.penalty.divisor, lengths)], np.float32)
            self._settings_struct.divisors = address(self._divisors)
        before = self._live
        if rows <= before.size and own_rows <= self._own_rows and max(positions, source) <= self._longest:
            return
        rows, self._longest = max(rows, before.size), max(positions, source, self._longest)
        self._own_rows = max(own_rows, self._own_rows)
        # Compute logits for as many rows as occupy the memory of the head's weight, so that both stay in the cache.
        group = max(self._own_rows, min(rows, head.bytes // (4 * size)))
        self._buffers = {
            "live": empty([rows], np.int64),
            "ranked": empty([self.settings.candidates, 3], np.int64),  # two floats, token, parent
            "own_tokens": empty([self._longest + 1], np.int64),
            "banned": empty([self._longest], np.int64),
            **({"attention": empty([rows, self._longest])} if self.settings.coverage else {}),
            "x": empty([rows, self._model.table.shape[1]]),
            "logits": empty([group, size]),
            "maxima": empty([group, -(-size // BLOCK)]),
            **{name: empty([group]) for name in ("sums", "peaks", "log_sums")},
            "first": empty([group], np.int64),
            "shares": empty([self._longest if self._model.copying else 0]),
            "workspace": self._model.layers.workspace(rows, self._longest, self._own_rows),
        }
        self._live[: before.size] = before
        buffers = {name: address(array) for name, array in self._buffers.items()}
        step = loading.StepInput(None, self.live, 1, buffers.pop("attention", None), self._longest)
        self._search = loading.SearchState(step=step, group=group, **buffers)
        if self._sampling is not None:
            self._search.choices = self._sampling.choices
            self._search.known_states, self._search.known_ends = map(address, self._sampling.known_phrases)

    def run(self, steps: int) -> Sequence[int]:
        before = self.live
        task, search = ctypes.addressof(self._settings_struct), ctypes.addressof(self._search)
        while True:
            steps -= self._library.translume_search(task, search, steps)
            if steps <= 0 or not self.live:
                break
            for entry in self._entries:
                entry.grow()
        if self.live == before:
            return ()
        return [number for entry in self._entries for number in entry.done()]

    def hypotheses(self, number: int) -> list[Hypothesis] | None:
        entry, place = self._entry_of(number)
        finished = entry.hypotheses(place)
        self._forget(entry, place)
        return finished

    def stable_prefix(self, number: int, *, every: bool) -> list[int]:
        entry, place = self._entry_of(number)
        tokens = empty([entry.longest], np.int64)
        sentence, task = int(entry.addresses[place]), ctypes.addressof(self._settings_struct)
        count = self._library.translume_stable_prefix(task, sentence, every, address(tokens))
        return [int(token) for token in tokens[:count]]

    def remove(self, number: int) -> None:
        entry, place = self._entry_of(number)
        others = self._live[: self.live]
        others = others[others != entry.addresses[place]]
        self._live[: others.size] = others
        self._search.step.sentences = others.size
        self._forget(entry, place)

    def close(self) -> None:
        if (idle := self._idle()) is not None:
            idle.put(self)

    def _entry_of(self, number: int) -> "tuple[_Entry, int]":
        """Return the entry that a sentence belongs to and its place there."""
        entry = next(each for each in self._entries if number in each.numbers)
        return entry, number - entry.numbers.start

    def _forget(self, entry: "_Entry", place: int) -> None:
        """Free the memory of an entry with its last sentence."""
        entry.here.discard(place)
        if not entry.here:
            self._entries.remove(entry)


class IdleSearches:
    """Searches that are closed, and their buffers, for later searches with the same settings. Threads may share it."""

    def __init__(self) -> None:
        self._searches: list[NativeSearch] = []
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, object]) -> "IdleSearches":
        """Return none: a search belongs to the engine that began it."""
        return IdleSearches()

    def take(self, settings: KernelSearchSettings) -> NativeSearch | None:
        """Return a search with these settings, or None."""
        with self._lock:
            place = next((i for i, each in enumerate(self._searches) if each.settings == settings), None)
            return None if place is None else self._searches.pop(place)

    def put(self, search: NativeSearch) -> None:
        """Keep a search; forget the oldest one if there are too many."""
        with self._lock:
            self._searches = [*self._searches, search][-MAX_IDLE:]


@dataclass(frozen=True, slots=True)
class _Block:
    """The memory of a sentence: the arrays that its structure points to, one after another.

    size: in numbers of 8 bytes.  places: where each array begins.  columns: the fields of the structure with their
    addresses.
    """

    size: int
    places: dict[str, int]
    columns: NDArray[np.int64]

    @classmethod
    @lru_cache(maxsize=256)
    def from_sizes(cls, width: int, nbest: int, longest: int, begin: int, phrases: bool, source: int) -> "_Block":
        """longest: limit.  begin: tokens before the first.  phrases: whether phrases are banned.

        source: positions whose attention is summed, or 0.
        """
        paths = width * (begin + longest + 1) if width > 1 else 0
        read = (longest + 1) * width
        sizes = {  # the first five are int64, phrase states int32, others floats
            **{"ancestors": paths, "spare": paths, "read_tokens": read},
            **{"lengths": nbest, "tokens": nbest * longest},
            **dict.fromkeys(("best", "finished_totals", "coverage"), -(-nbest // 2)),
            **{"limit_divisor": 1, "read_log_probs": -(-read // 2), "totals": -(-width // 2)},
            "log_probs": -(-nbest * longest // 2),
            **(dict.fromkeys(("attended", "spare_attended"), -(-width * source // 2)) if source else {}),
            **({"phrase_states": -(-read // 2)} if phrases else {}),
        }
        ends = np.cumsum([*sizes.values()])
        places = dict(zip(sizes, (ends - [*sizes.values()]).tolist(), strict=True))
        columns = np.array([field_place(loading.Sentence, name) for name in places])
        return cls(int(ends[-1]), places, columns)


class _Entry:
    """Sentences that enter a search together, and their memory.

    sentences: [B, fields], the structures that the kernels read and write.  addresses: [B], of these.
    here: places of sentences that are live or whose hypotheses were not read yet.  numbers: of the sentences in the
    search.
    """

    def __init__(
        self,
        settings: KernelSearchSettings,
        state: EngineState,
        last: Array,
        own: dict[str, Array],
        number: int,
        draft: SentenceDraft | None,
    ) -> None:
        """last: [B], the last token of each prompt. The state has read those before it.

        own: [B] each, fields of the structures, `limit` among them.
        """
        self._settings, self._draft = settings, draft  # the draft owns memory that the kernels read
        self._limits: list[int] = own["limit"].tolist()
        self._copied = state.context  # owns memory that the kernels read
        if isinstance(state.context, CopySources):
            own = {**own, "copied": state.context.addresses()}
        self.count, self.longest = len(self._limits), max(self._limits)
        self.numbers, self.here = range(number, number + self.count), set(range(self.count))
        self.cache = state.cache.copy(settings.width, state.position)
        self._cache_struct = cache_struct(self.cache)
        self._waiting, self._failed = set(self.here), set[int]()
        attended = state.attended if settings.coverage else None
        source = 0 if attended is None else attended.shape[1]
        block = _Block.from_sizes(
            settings.width, settings.nbest, self.longest, state.position, settings.rules.has_phrases, source
        )
        self._memory = np.zeros((self.count, block.size), np.int64)
        floats = self._memory.view(np.float32)
        at, nbest = block.places, settings.nbest
        floats[:, 2 * at["best"] : 2 * at["best"] + nbest] = -math.inf
        floats[:, 2 * at["limit_divisor"]] = [settings.penalty.divisor(float(limit)) for limit in self._limits]
        self._memory[:, at["read_tokens"]] = last
        if attended is not None:
            begin, end = 2 * at["attended"], 2 * at["attended"] + settings.width * source
            floats[:, begin:end] = np.tile(attended, settings.width)
        self._results: list[NDArray[Any]] = [
            self._memory[:, at["lengths"] : at["lengths"] + nbest],
            *(floats[:, 2 * at[name] : 2 * at[name] + nbest] for name in ("best", "finished_totals", "coverage")),
            self._memory[:, at["tokens"] : at["tokens"] + nbest * self.longest],
            floats[:, 2 * at["log_probs"] : 2 * at["log_probs"] + nbest * self.longest],
        ]
        numbers = np.arange(self.count)
        self.sentences = np.zeros((self.count, ctypes.sizeof(loading.Sentence) // 8), np.int64)
        self.addresses = self.sentences.ctypes.data + self.sentences.strides[0] * numbers
        begins = self._memory.ctypes.data + self._memory.strides[0] * numbers
        self.sentences[:, block.columns] = begins[:, None] + 8 * np.array([*at.values()])
        self.sentences[:, _FIXED] = (ctypes.addressof(self._cache_struct), state.position, 1, state.position)
        self.sentences[:, _SLOT] = numbers
        for name, values in own.items():
            self.sentences[:, field_place(loading.Sentence, name)] = values

    def grow(self) -> None:
        """Grow the cache if a live sentence has filled it; only live sentences keep theirs."""
        live = np.flatnonzero(self.sentences[:, _STATE] == LIVE)
        if live.size:
            if self.cache.grow(int(self.sentences[live, _POSITION].max()), self.sentences[live, _SLOT]):
                self.sentences[live, _SLOT] = np.arange(live.size)
            self._cache_struct = cache_struct(self.cache)
            self.sentences[:, _CACHE] = ctypes.addressof(self._cache_struct)

    def done(self) -> list[int]:
        """Return the numbers of the sentences that are done and were not returned before."""
        states = self.sentences[:, _STATE].tolist()
        ended = [place for place in self._waiting if states[place] != LIVE]
        self._failed.update(place for place in ended if states[place] == FAILED)
        self._waiting.difference_update(ended)
        return [self.numbers[place] for place in ended]

    def hypotheses(self, place: int) -> list[Hypothesis] | None:
        """Return the finished hypotheses of a sentence, best first; None if its search failed."""
        if place in self._failed:
            return None
        limit = self._limits[place]
        *numbers, tokens, sums = (column[place] for column in self._results)
        return [
            self._hypothesis(length, scores, tokens[rank * limit :], sums[rank * limit :])
            for rank, (length, *scores) in enumerate(zip(*(each.tolist() for each in numbers), strict=True))
            if length
        ]

    def _hypothesis(
        self, length: int, scores: Sequence[float], tokens: NDArray[np.int64], sums: NDArray[np.float32]
    ) -> Hypothesis:
        """Build a finished hypothesis.

        length: negative if ended by the limit.  scores: score, total and coverage.  sums: cumulative.
        """
        (score, total, coverage), count = scores, abs(length)
        return Hypothesis(
            tokens=tuple(tokens[:count].tolist()),
            log_prob=float(sums[count - 1]),
            log_probs=(float(sums[0]), *np.subtract(sums[1:count], sums[: count - 1]).tolist()),
            score=score,
            terms=ScoreTerms(total=total, divisor=self._settings.penalty.divisor(float(count)), coverage=coverage),
            finished_by="length" if length < 0 else "eos",
        )
