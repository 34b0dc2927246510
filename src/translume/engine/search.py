"""Greedy and beam search by the compiled kernels, several steps of a batch per call."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from translume.belief import BLOCK, UNSHIFTED
from translume.decoding import (
    BeamSearch,
    ForbidTokens,
    Greedy,
    Hypothesis,
    LengthPenalty,
    MinimumLength,
    Rule,
    ScoreTerms,
    Strategy,
)
from translume.engine.layers import Layers
from translume.engine.logits import LogitRefiner
from translume.engine.native_layers import NativeLayers, step_struct
from translume.engine.packing import NativeLinear, PackedLinear
from translume.engine.state import EngineState, KVCache, StepInput
from translume.kernels import loading
from translume.kernels.loading import address
from translume.model.embedding import Embedding

FINISHED, CACHE_FULL, PAUSED, NOT_FINITE = range(4)
"""What `translume_search` of search.c returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSearchSettings:
    """A search that the kernels support: strategy and rules as numbers.

    candidates: how many candidates of a sentence are ranked.  patience: finished hypotheses that end a sentence; 0: end
        when no live hypothesis can improve on them.
    forbidden: tokens never generated.  min_length: eos is forbidden before this many tokens.
    """

    width: int
    candidates: int
    nbest: int
    patience: float
    penalty: LengthPenalty
    forbidden: tuple[int, ...]
    min_length: int

    @classmethod
    def of(cls, strategy: Strategy, rules: Sequence[Rule], eos: int, size: int) -> "KernelSearchSettings | None":
        """Return the settings, or None if the kernels do not support the strategy or a rule.  size: V."""
        if type(strategy) is Greedy:
            candidates, patience = 1, 0.0
        elif type(strategy) is BeamSearch and strategy.width > 1:
            candidates = 2 * strategy.width
            patience = strategy.patience * strategy.width if strategy.stop == "first" else 0.0
        else:
            return None
        if strategy.coverage is not None or not all(isinstance(rule, ForbidTokens | MinimumLength) for rule in rules):
            return None
        forbidden = {token for rule in rules if isinstance(rule, ForbidTokens) for token in rule.ids}
        if eos in forbidden or candidates + len(forbidden) + 1 > size:
            return None
        return cls(
            width=strategy.width,
            candidates=candidates,
            nbest=strategy.nbest,
            patience=patience,
            penalty=strategy.length_penalty,
            forbidden=tuple(sorted(forbidden)),
            min_length=max([0, *(rule.tokens for rule in rules if isinstance(rule, MinimumLength))]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchModel:
    """The parts of a model that the kernels read: packed layers and head, and the target embedding.

    table: [V, D], multiplied by `scale`.  positions: [positions, D], or None.  refiner: of an int8 head.
    """

    layers: NativeLayers
    head: NativeLinear
    table: Tensor
    scale: float
    positions: Tensor | None
    refiner: LogitRefiner | None

    @classmethod
    def of(
        cls, layers: Layers, head: PackedLinear | None, embedding: Embedding, refiner: LogitRefiner | None
    ) -> "SearchModel | None":
        """Return the parts, or None if torch computes the layers or the logits."""
        table, positions = embedding.table.weight, embedding.positions.table
        if not isinstance(layers, NativeLayers) or not isinstance(head, NativeLinear) or not table.is_contiguous():
            return None
        if table.dtype != torch.float32 or (positions is not None and positions.dtype != torch.float32):
            return None
        return cls(
            layers=layers,
            head=head,
            table=table.detach(),
            scale=embedding.scale,
            positions=None if positions is None else positions.detach().contiguous(),
            refiner=refiner,
        )

    def fits(self, state: EngineState, limits: Tensor) -> bool:
        """Return whether a search from `state` to `limits` [B] stays in bounds, which the kernels do not check."""
        begun = state.position or state.width > 1 or state.slots is not None
        if begun or not limits.numel() or limits.numel() != state.sentences or int(limits.min()) < 1:
            return False
        return self.positions is None or int(limits.max()) <= self.positions.size(0)


class NativeSearch:
    """A `CompleteSearch` by the kernels, with a cache of its own for the target."""

    def __init__(
        self,
        model: SearchModel,
        settings: KernelSearchSettings,
        state: EngineState,
        *,
        bos: int,
        eos: int,
        limits: Tensor,
    ) -> None:
        """state: before the first step.  limits: [B]."""
        self._settings, self._library = settings, loading.kernels().library
        self._model = model  # owns memory that the kernels read
        self._cache = _empty_cache(state.cache, settings.width)
        self._refinement = None if model.refiner is None else model.refiner.inputs(torch.empty(0, model.table.size(1)))
        self._kept: dict[str, Tensor | None] = {
            "table": model.table,
            "positions": model.positions,
            "forbidden": torch.tensor(settings.forbidden, dtype=torch.long),
            "limits": limits.long().contiguous(),
            **_length_divisors(settings.penalty, limits),
        }
        self._settings_struct = loading.SearchSettingsStruct(
            stack=model.layers.address,
            head=ctypes.addressof(model.head.struct),
            refinement=None if self._refinement is None else ctypes.addressof(self._refinement),
            scale=model.scale,
            unshifted_limit=UNSHIFTED,
            vocabulary=model.head.outputs,
            block=BLOCK,
            eos=eos,
            forbidden_count=len(settings.forbidden),
            min_length=settings.min_length,
            beam=settings.width,
            candidates=settings.candidates,
            nbest=settings.nbest,
            patience=settings.patience,
            **{name: address(tensor) for name, tensor in self._kept.items()},
        )
        self._search = self._initial_state(model, bos, limits)
        self._state = PAUSED

    def _initial_state(self, model: SearchModel, bos: int, limits: Tensor) -> loading.SearchState:
        """Return the state before the first step."""
        count, width, nbest, longest = limits.numel(), self._settings.width, self._settings.nbest, int(limits.max())
        rows, size = count * width, model.head.outputs
        source = self._cache.cross.size(3)
        # Compute logits for as many rows as occupy the memory of the head's weight, so that both stay in the cache.
        group = max(1, min(count, model.head.bytes // (4 * size * width)))
        group_rows = group * width
        self._lengths = torch.zeros(count, nbest, dtype=torch.long)
        self._scores = torch.full((count, nbest), -math.inf)
        self._tokens = torch.empty(count, nbest, longest, dtype=torch.long)
        self._log_probs = torch.empty(count, nbest, longest)
        read_tokens = torch.empty(longest + 1, rows, dtype=torch.long)
        read_tokens[0] = bos
        own = {
            "slots": torch.arange(count),
            "ancestors": torch.zeros(rows * (longest + 1), dtype=torch.long),
            "spare": torch.empty(rows * (longest + 1), dtype=torch.long),
            "read_tokens": read_tokens,
            "read_log_probs": torch.zeros(longest + 1, rows),
            "totals": torch.zeros(rows),
            "ranked": torch.empty(self._settings.candidates, 3, dtype=torch.long),  # two floats, token, parent
            "best": self._scores,
            "finished": torch.zeros(count, dtype=torch.long),
            "lengths": self._lengths,
            "tokens": self._tokens,
            "log_probs": self._log_probs,
            "x": torch.empty(rows, model.table.size(1)),
            "logits": torch.empty(group_rows, size),
            "maxima": torch.empty(group_rows, -(-size // BLOCK)),
            **{name: torch.empty(group_rows) for name in ("sums", "peaks", "log_sums")},
            "first": torch.empty(group_rows, dtype=torch.long),
            "workspace": model.layers.workspace(rows, max(longest + 1, source), width),
        }
        self._kept |= own
        return loading.SearchState(
            step=self._step(count),
            sentences=count,
            group=group,
            longest=longest,
            capacity=self._cache.past.size(3),
            **{name: address(tensor) for name, tensor in own.items()},
        )

    def _step(self, sentences: int) -> loading.StepInput:
        """Return the kernels' view of the cache.  sentences: the number of unfinished ones."""
        found = step_struct(StepInput(EngineState(self._cache, position=0)), None)
        found.sentences = sentences
        return found

    @torch.inference_mode()
    def run(self, steps: int) -> bool:
        before = self._search.length
        task, search = ctypes.addressof(self._settings_struct), ctypes.addressof(self._search)
        while (left := steps - (self._search.length - before)) > 0:
            self._state = self._library.translume_search(task, search, left)
            if self._state != CACHE_FULL:
                break
            self._grow()
        return self._state == PAUSED

    def _grow(self) -> None:
        """Grow the cache for more positions."""
        self._cache.grow(self._search.length, None)
        self._search.step = self._step(self._search.step.sentences)
        self._search.capacity = self._cache.past.size(3)

    def hypotheses(self) -> list[list[Hypothesis]] | None:
        if self._state == NOT_FINITE:
            return None
        columns = zip(
            self._lengths.tolist(), self._scores.tolist(), self._tokens.unbind(), self._log_probs.unbind(), strict=True
        )
        return [
            [
                self._hypothesis(length, score, tokens[place], sums[place])
                for place, (length, score) in enumerate(zip(lengths, scores, strict=True))
                if length
            ]
            for lengths, scores, tokens, sums in columns
        ]

    def _hypothesis(self, length: int, score: float, tokens: Tensor, sums: Tensor) -> Hypothesis:
        """Build a finished hypothesis.  length: negative if ended by the limit.  sums: [longest], cumulative."""
        count = abs(length)
        log_probs = torch.cat((sums.new_zeros(1), sums[:count])).diff()
        total = float(sums[count - 1])
        return Hypothesis(
            tokens=tuple(tokens[:count].tolist()),
            log_prob=total,
            log_probs=tuple(log_probs.tolist()),
            score=score,
            terms=ScoreTerms(total=total, divisor=self._settings.penalty.divisor(float(count))),
            finished_by="length" if length < 0 else "eos",
        )


def _empty_cache(cache: KVCache, width: int) -> KVCache:
    """An empty cache with the same source for `width` hypotheses per sentence."""
    shape = [*cache.past.shape[:4], width, cache.past.size(5)]
    return KVCache(cache.past.new_empty(shape), cache.cross, cache.source_bias)


def _length_divisors(penalty: LengthPenalty, limits: Tensor) -> dict[str, Tensor]:
    """Return the length penalty's divisors by length and at each sentence's limit, rounded as in the decoding loop."""
    lengths = range(1, int(limits.max()) + 2)
    return {
        "divisors": torch.tensor([1.0, *(penalty.divisor(float(length)) for length in lengths)]),
        "limit_divisors": penalty.divisor(limits.float()).contiguous(),
    }
