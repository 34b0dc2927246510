"""Greedy and beam search by the engine's own kernels: as many steps of a batch in a call as are asked for."""

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
from translume.engine import native
from translume.engine.layers import Layers
from translume.engine.linear import PackedLinear
from translume.engine.native import address
from translume.engine.native_layers import NativeLayers, reading
from translume.engine.native_linear import NativeLinear, Sharpener
from translume.engine.state import Buffers, EngineState, Segment
from translume.model.embedding import Embedding

OVER, FULL, ASKED, BROKEN = range(4)
"""What `translume_search` of search.c gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A search that the kernels know: strategy and rules in numbers.

    wanted: how many of a sentence's candidates are ranked.  patience: how many hypotheses finish before it is done;
        0: until none can win any more.
    forbidden: tokens never said.  shortest: eos is not said before so many tokens.
    """

    width: int
    wanted: int
    nbest: int
    patience: float
    penalty: LengthPenalty
    forbidden: tuple[int, ...]
    shortest: int

    @classmethod
    def of(cls, strategy: Strategy, rules: Sequence[Rule], eos: int, size: int) -> "Plain | None":
        """None where they are anything but plain.  size: V."""
        if type(strategy) is Greedy:
            wanted, patience = 1, 0.0
        elif type(strategy) is BeamSearch and strategy.width > 1:
            wanted = 2 * strategy.width
            patience = strategy.patience * strategy.width if strategy.stop == "first" else 0.0
        else:
            return None
        if strategy.coverage is not None or not all(isinstance(rule, ForbidTokens | MinimumLength) for rule in rules):
            return None
        forbidden = {token for rule in rules if isinstance(rule, ForbidTokens) for token in rule.ids}
        if eos in forbidden or wanted + len(forbidden) + 1 > size:
            return None
        return cls(
            width=strategy.width,
            wanted=wanted,
            nbest=strategy.nbest,
            patience=patience,
            penalty=strategy.length_penalty,
            forbidden=tuple(sorted(forbidden)),
            shortest=max([0, *(rule.tokens for rule in rules if isinstance(rule, MinimumLength))]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the kernels read of a model: its packed layers and head, and its target embedding.

    table: [V, D], times `scale`.  places: [positions, D], None where none are added.  sharpener: of a coarse head.
    """

    layers: NativeLayers
    head: NativeLinear
    table: Tensor
    scale: float
    places: Tensor | None
    sharpener: Sharpener | None

    @classmethod
    def of(
        cls, layers: Layers, head: PackedLinear | None, embedding: Embedding, sharpener: Sharpener | None
    ) -> "Parts | None":
        """None where torch reads the layers, or gives the logits."""
        table, places = embedding.table.weight, embedding.positions.table
        if not isinstance(layers, NativeLayers) or not isinstance(head, NativeLinear) or not table.is_contiguous():
            return None
        if {table.dtype, places.dtype} != {torch.float32}:
            return None
        return cls(
            layers=layers,
            head=head,
            table=table.detach(),
            scale=embedding.scale,
            places=places.detach().contiguous() if places.numel() else None,
            sharpener=sharpener,
        )

    def suit(self, state: EngineState, limits: Tensor) -> bool:
        """Whether a search from a state to `limits` [B] stays within what there is, which the kernels do not ask."""
        begun = state.position or state.width > 1 or state.slots is not None
        if begun or not limits.numel() or limits.numel() != state.sentences or int(limits.min()) < 1:
            return False
        return self.places is None or int(limits.max()) <= self.places.size(0)


class NativeSearch:
    """A `WholeSearch` of the kernels, in buffers of its own beside what the state holds of the source."""

    def __init__(self, parts: Parts, plain: Plain, state: EngineState, *, bos: int, eos: int, limits: Tensor) -> None:
        """state: before the first step.  limits: [B]."""
        self._plain, self._library = plain, native.kernels().library
        self._parts = parts  # whose addresses the kernels get
        self._buffers = _empty_past(state.buffers, plain.width)
        self._origin = None if parts.sharpener is None else parts.sharpener.origin(torch.empty(0, parts.table.size(1)))
        self._kept: dict[str, Tensor | None] = {
            "table": parts.table,
            "places": parts.places,
            "forbidden": torch.tensor(plain.forbidden, dtype=torch.long),
            "limits": limits.long().contiguous(),
            **_divisors(plain.penalty, limits),
        }
        self._task = native.Task(
            stack=parts.layers.address,
            head=ctypes.addressof(parts.head.map),
            sharp=None if self._origin is None else ctypes.addressof(self._origin),
            scale=parts.scale,
            unshifted=UNSHIFTED,
            size=parts.head.outputs,
            block=BLOCK,
            eos=eos,
            forbids=len(plain.forbidden),
            shortest=plain.shortest,
            width=plain.width,
            wanted=plain.wanted,
            nbest=plain.nbest,
            patience=plain.patience,
            **{name: address(tensor) for name, tensor in self._kept.items()},
        )
        self._search = self._begun(parts, bos, limits)
        self._state = ASKED

    def _begun(self, parts: Parts, bos: int, limits: Tensor) -> native.Search:
        """The search before its first step."""
        count, width, nbest, longest = limits.numel(), self._plain.width, self._plain.nbest, int(limits.max())
        rows, size = count * width, parts.head.outputs
        source = self._buffers.cross.size(3)
        # Logits of as many rows as take the room of the head's weight: so both stay near, whatever their sizes.
        together = max(1, min(count, parts.head.bytes // (4 * size * width)))
        believed = together * width
        self._lengths = torch.zeros(count, nbest, dtype=torch.long)
        self._scores = torch.full((count, nbest), -math.inf)
        self._tokens = torch.empty(count, nbest, longest, dtype=torch.long)
        self._log_probs = torch.empty(count, nbest, longest)
        said = torch.empty(longest + 1, rows, dtype=torch.long)
        said[0] = bos
        own = {
            "slots": torch.arange(count),
            "reach": torch.zeros(rows * (longest + 1), dtype=torch.long),
            "free": torch.empty(rows * (longest + 1), dtype=torch.long),
            "said": said,
            "sums": torch.zeros(longest + 1, rows),
            "total": torch.zeros(rows),
            "ranked": torch.empty(self._plain.wanted, 3, dtype=torch.long),  # two floats, token, origin
            "best": self._scores,
            "ended": torch.zeros(count, dtype=torch.long),
            "lengths": self._lengths,
            "tokens": self._tokens,
            "log_probs": self._log_probs,
            "x": torch.empty(rows, parts.table.size(1)),
            "logits": torch.empty(believed, size),
            "maxima": torch.empty(believed, -(-size // BLOCK)),
            **{name: torch.empty(believed) for name in ("each", "peaks", "rests")},
            "first": torch.empty(believed, dtype=torch.long),
            "block": parts.layers.room(rows, max(longest + 1, source), width),
        }
        self._kept |= own
        return native.Search(
            read=self._reading(count),
            sentences=count,
            together=together,
            longest=longest,
            capacity=self._buffers.past.size(3),
            **{name: address(tensor) for name, tensor in own.items()},
        )

    def _reading(self, sentences: int) -> native.Reading:
        """What the buffers hold, as the kernels know it.  sentences: how many are live."""
        found = reading(Segment(EngineState(self._buffers, position=0)), None)
        found.sentences = sentences
        return found

    @torch.inference_mode()
    def go_on(self, steps: int) -> bool:
        before = self._search.length
        task, search = ctypes.addressof(self._task), ctypes.addressof(self._search)
        while (left := steps - (self._search.length - before)) > 0:
            self._state = self._library.translume_search(task, search, left)
            if self._state != FULL:
                break
            self._grow()
        return self._state == ASKED

    def _grow(self) -> None:
        """Room for more places of keys and values."""
        self._buffers.grow(self._search.length, None)
        self._search.read = self._reading(self._search.read.sentences)
        self._search.capacity = self._buffers.past.size(3)

    def found(self) -> list[list[Hypothesis]] | None:
        if self._state == BROKEN:
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
        """One that finished.  length: negative where the limit ended it.  sums: [longest], up to each token."""
        count = abs(length)
        log_probs = torch.cat((sums.new_zeros(1), sums[:count])).diff()
        total = float(sums[count - 1])
        return Hypothesis(
            tokens=tuple(tokens[:count].tolist()),
            log_prob=total,
            log_probs=tuple(log_probs.tolist()),
            score=score,
            terms=ScoreTerms(total=total, divisor=self._plain.penalty.divisor(float(count))),
            finished_by="length" if length < 0 else "eos",
        )


def _empty_past(buffers: Buffers, width: int) -> Buffers:
    """Buffers with the same source, and room for what `width` hypotheses of each sentence will have written."""
    shape = [*buffers.past.shape[:4], width, buffers.past.size(5)]
    return Buffers(buffers.past.new_empty(shape), buffers.cross, buffers.hidden)


def _divisors(penalty: LengthPenalty, limits: Tensor) -> dict[str, Tensor]:
    """Those of each length and of each sentence's limit, rounded as the loop rounds them."""
    lengths = range(1, int(limits.max()) + 2)
    return {
        "divisors": torch.tensor([1.0, *(penalty.divisor(float(length)) for length in lengths)]),
        "last": penalty.divisor(limits.float()).contiguous(),
    }
