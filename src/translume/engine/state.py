"""The KV cache of the engine, written in place, and the decoder state that refers to it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from translume.engine.network import Array
from translume.errors import StaleStateError
from translume.kernels.loading import empty
from translume.lazy import Tensor, torch

GROWTH = 32
"""Number of positions by which a full cache grows."""


@dataclass(slots=True)
class KVCache:
    """Keys and values of B sentences, alternating, in one array for all L layers.

    past: [2L, B, H, capacity, K, D/H], of the target. Entries are not moved when hypotheses are reordered or sentences
        end: `EngineState.ancestors` has the entry that each hypothesis reads at each position, `slots` the sentences.
    cross: [2L, B, H, S, D/H], of the memory.
    source_bias: [B, 1, 1, S], −inf at padding; None without padding.
    generation: counts changes.
    """

    past: Array
    cross: Array
    source_bias: Array | None
    generation: int = 0

    def mark_changed(self) -> int:
        """Count a change, which makes earlier states stale; return the new generation."""
        self.generation += 1
        return self.generation

    def grow(self, length: int, slots: Array | None) -> bool:
        """Grow the capacity to include position `length`.

        Returns whether it grew and kept only the sentences in `slots`, in their order.
        """
        if length < self.past.shape[3]:
            return False
        before, shape = self.past, list(self.past.shape)
        shape[3] = (length // GROWTH + 1) * GROWTH
        if slots is not None:
            shape[1] = slots.size
        self.past = empty(shape, before.dtype)
        for old, new in zip(before, self.past, strict=True):  # one layer at a time, to save memory
            new[:, :, : before.shape[3]] = old if slots is None else old[slots]
        if slots is None:
            return False
        self.cross = self.cross.take(slots, 1)
        self.source_bias = None if self.source_bias is None else self.source_bias[slots]
        return True

    def widen(self, width: int, length: int) -> None:
        """Widen the cache to `width` hypotheses per sentence; the first keeps the first `length` positions."""
        wider = empty([*self.past.shape[:4], width, self.past.shape[5]], self.past.dtype)
        if length:
            wider[:, :, :, :length, :1] = self.past[:, :, :, :length, :1]
        self.past = wider

    def copy(self, width: int, length: int) -> "KVCache":
        """Return a cache of the same sources, for `width` hypotheses per sentence.

        The first has the first `length` positions of the target, the others none.
        """
        copied = replace(self)
        copied.widen(width, length)
        return copied

    def gather(self, slots: Array, ancestors: Array | None, length: int) -> "KVCache":
        """Copy the rows [M] into a cache with one hypothesis per sentence; row i comes from slot `slots[i]`.

        ancestors: [M, length], the hypothesis that row i reads at each position; None for the first.
        """
        past = self.past[:, :, :, :length].take(slots, 1)
        if ancestors is None:
            past = past[..., :1, :]
        else:
            past = np.take_along_axis(past, ancestors[None, :, None, :, None, None], 4)
        source_bias = None if self.source_bias is None else self.source_bias[slots]
        return KVCache(np.ascontiguousarray(past), self.cross.take(slots, 1), source_bias)


@dataclass(frozen=True, slots=True)
class EngineState:
    """An encoded source and the target read so far; rows b·width … (b+1)·width−1 belong to sentence b.

    position: number of target tokens read.  width: hypotheses per sentence.
    slots: [B], the index of each sentence in the cache; None: in order.
    ancestors: [B, width, position], the hypothesis that each one reads at each position; None with one hypothesis per
        sentence.
    context: the head's own state, in order of rows, or None.
    attended: see `attention`.
    memory: [B, S, D] and its mask memory_mask [B, S], of a model with an output of CTC, until the first token is read.
    """

    cache: KVCache
    position: int
    width: int = 1
    slots: Array | None = None
    ancestors: Array | None = None
    context: Any = None
    generation: int = 0
    attended: Array | None = None
    memory: Array | None = None
    memory_mask: Array | None = None

    @property
    def attention(self) -> Tensor | None:
        """See `AttentionState`."""
        return None if self.attended is None else torch.from_numpy(self.attended)

    @property
    def sentences(self) -> int:
        """B."""
        return self.cache.past.shape[1] if self.slots is None else self.slots.size

    def check(self) -> None:
        """Raise StaleStateError if a later state has changed the cache."""
        if self.generation != self.cache.generation:
            raise StaleStateError("this engine state was used already; only the newest state may be used")

    def advance(self, count: int, ancestors: Array | None, attended: Array | None = None) -> "EngineState":
        """Return the state after `count` more tokens were written, with the given ancestors and attention."""
        position, generation = self.position + count, self.cache.mark_changed()
        # dataclasses.replace would be too slow here, since this runs in every step.
        kept = (self.width, self.slots, ancestors, self.context, generation, attended)
        return EngineState(self.cache, position, *kept)

    def branch(self) -> "EngineState":
        """Return a state for steps that leave this one usable; it reads the same memory, and must not `select`."""
        self.check()
        return replace(self, cache=replace(self.cache, past=self.cache.past.copy()))

    def select(self, rows: ArrayLike) -> "EngineState":
        """Return the state of rows [M] of this one, which becomes stale.

        Reordering hypotheses and removing sentences copies nothing. If rows are not groups of equal size per sentence,
        a new cache is made.
        """
        self.check()
        context = None if self.context is None else self.context.select(rows)
        rows = np.asarray(rows, np.int64)  # the kernels read slots and ancestors as int64
        attended = None if self.attended is None else self.attended[rows]
        return replace(self._selected(rows), context=context, attended=attended)

    def _selected(self, rows: Array) -> "EngineState":
        """See `select`; without context and attention."""
        owners = rows // self.width
        begins = np.flatnonzero(np.diff(owners, prepend=-1))
        stay, counts = owners[begins], np.diff(begins, append=len(rows))
        width = int(counts[0]) if counts.size else 1
        regular = bool((counts == width).all() and (np.diff(stay) > 0).all())
        if not regular or (self.width > 1 and width != self.width):
            slots = owners if self.slots is None else self.slots[owners]
            entries = None if self.ancestors is None else self.ancestors[owners, rows % self.width]
            cache = self.cache.gather(slots, entries, self.position)
            self.cache.mark_changed()
            return EngineState(cache, self.position)
        return self._select_groups(stay, (rows % self.width).reshape(-1, width))

    def _select_groups(self, stay: Array, origin: Array) -> "EngineState":
        """Keep the sentences `stay` [M], with their hypotheses `origin` [M, K] in that order."""
        cache, width = self.cache, origin.shape[1]
        slots = stay if self.slots is None else self.slots[stay]
        kept = None if self.ancestors is None else self.ancestors[stay]
        if width > self.width:
            cache.widen(width, self.position)
            kept = np.zeros((stay.size, 1, self.position), np.int64)
        ordered = np.array_equal(slots, np.arange(cache.past.shape[1]))
        return EngineState(
            cache,
            self.position,
            width=width,
            slots=None if ordered else slots,
            ancestors=None if kept is None else np.take_along_axis(kept, origin[..., None], 1),
            generation=cache.mark_changed(),
        )


@dataclass(slots=True)
class StepInput:
    """The tokens of a step: rows [B·K·t] of a state.

    count: tokens per hypothesis, t.  ancestors: [B, K, position + t], the state's and those of the new tokens.
    attention: [B·K·t, S], to be filled with that of each token, or None.
    """

    state: EngineState
    count: int = 1
    ancestors: Array | None = None
    attention: Array | None = None

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.state.position + self.count
