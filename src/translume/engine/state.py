"""The KV cache of the engine, written in place, and the decoder state that refers to it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from translume.model.state import GROWTH, Selectable, StaleStateError


@dataclass(slots=True)
class KVCache:
    """Keys and values of B sentences, alternating, in one tensor for all L layers.

    past: [2L, B, H, capacity, K, D/H], of the target. Entries are not moved when hypotheses are reordered:
        `EngineState.ancestors` has the entry that each hypothesis reads at each position.
    cross: [2L, B, H, S, D/H], of the memory.
    source_bias: [B, 1, 1, S], −inf at padding; None without padding.
    indirect: whether readers look up slots by index, so that removing finished sentences does not move others.
    generation: counts changes.
    """

    past: Tensor
    cross: Tensor
    source_bias: Tensor | None
    indirect: bool = False
    generation: int = 0

    def mark_changed(self) -> int:
        """Count a change, which makes earlier states stale; return the new generation."""
        self.generation += 1
        return self.generation

    def grow(self, length: int, slots: Tensor | None) -> bool:
        """Grow the capacity to include position `length`.

        Returns whether it grew and kept only the sentences in `slots`, in their order.
        """
        if length < self.past.size(3):
            return False
        before, shape = self.past, list(self.past.shape)
        shape[3] = (length // GROWTH + 1) * GROWTH
        if slots is not None:
            shape[1] = slots.numel()
        self.past = before.new_empty(shape)
        for old, new in zip(before.unbind(), self.past.unbind(), strict=True):  # one layer at a time, to save memory
            new[:, :, : before.size(3)] = old if slots is None else old.index_select(0, slots)
        if slots is None:
            return False
        self.cross = self.cross.index_select(1, slots)
        self.source_bias = None if self.source_bias is None else self.source_bias.index_select(0, slots)
        return True

    def widen(self, width: int, length: int) -> None:
        """Widen the cache to `width` hypotheses per sentence; the first keeps the first `length` positions."""
        shape = list(self.past.shape)
        shape[4] = width
        # Unwritten positions are read and masked unless readers look up ancestors.
        wider = self.past.new_empty(shape) if self.indirect else self.past.new_zeros(shape)
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

    def drop(self, stay: Tensor, length: int) -> Tensor:
        """Keep the sentences in the distinct slots `stay` [M] and return their new slots.

        Sentences in the last slots move into the free ones; the others stay where they are.
        """
        count = stay.numel()
        taken = torch.zeros(self.past.size(1), dtype=torch.bool, device=stay.device)
        taken[stay] = True
        holes, moved = (~taken[:count]).nonzero()[:, 0], taken[count:].nonzero()[:, 0] + count
        if moved.numel():
            past = self.past[:, :, :, :length]
            past[:, holes] = past.index_select(1, moved)
            self.cross[:, holes] = self.cross.index_select(1, moved)
            if self.source_bias is not None:
                self.source_bias[holes] = self.source_bias.index_select(0, moved)
        self.past, self.cross = self.past[:, :count], self.cross[:, :count]
        if self.source_bias is not None:
            self.source_bias = self.source_bias[:count]
        places = torch.arange(taken.numel(), device=stay.device)
        places[moved] = holes
        return places[stay]

    def gather(self, slots: Tensor, ancestors: Tensor | None, length: int) -> "KVCache":
        """Copy the rows [M] into a cache with one hypothesis per sentence; row i comes from slot `slots[i]`.

        ancestors: [M, length], the hypothesis that row i reads at each position; None for the first.
        """
        past = self.past[:, :, :, :length].index_select(1, slots)
        if ancestors is None:
            past = past[..., :1, :]
        else:
            index = ancestors[None, :, None, :, None, None].expand(*past.shape[:4], 1, past.size(5))
            past = past.gather(4, index)
        source_bias = None if self.source_bias is None else self.source_bias.index_select(0, slots)
        return KVCache(past.contiguous(), self.cross.index_select(1, slots), source_bias, self.indirect)


@dataclass(frozen=True, slots=True)
class EngineState:
    """An encoded source and the target read so far; rows b·width … (b+1)·width−1 belong to sentence b.

    position: number of target tokens read.  width: hypotheses per sentence.
    slots: [B], the index of each sentence in the cache; None: in order.
    ancestors: [B, width, position], the hypothesis that each one reads at each position, in order of slots unless these
        are indirect; None with one hypothesis per sentence.
    context: the head's own state, in order of rows, or None.
    attention: see `AttentionState`.
    memory: [B, S, D] and its mask memory_mask [B, S], of a model with an output of CTC, until the first token is read.
    """

    cache: KVCache
    position: int
    width: int = 1
    slots: Tensor | None = None
    ancestors: Tensor | None = None
    context: Selectable | None = None
    generation: int = 0
    attention: Tensor | None = None
    memory: Tensor | None = None
    memory_mask: Tensor | None = None

    @property
    def sentences(self) -> int:
        """B."""
        return self.cache.past.size(1) if self.slots is None else self.slots.numel()

    def check(self) -> None:
        """Raise StaleStateError if a later state has changed the cache."""
        if self.generation != self.cache.generation:
            raise StaleStateError("this engine state was used already; only the newest state may be used")

    def advance(self, count: int, ancestors: Tensor | None, attention: Tensor | None = None) -> "EngineState":
        """Return the state after `count` more tokens were written, with the given ancestors and attention."""
        position, generation = self.position + count, self.cache.mark_changed()
        # dataclasses.replace would be too slow here, since this runs in every step.
        kept = (self.width, self.slots, ancestors, self.context, generation, attention)
        return EngineState(self.cache, position, *kept)

    @torch.inference_mode()
    def branch(self) -> "EngineState":
        """Return a state for steps that leave this one usable; it reads the same memory, and must not `select`."""
        self.check()
        return replace(self, cache=replace(self.cache, past=self.cache.past.clone()))

    @torch.inference_mode()
    def select(self, rows: Tensor) -> "EngineState":
        """Return the state of rows [M] of this one, which becomes stale.

        Reordering hypotheses copies nothing; removing sentences copies at most as much data as was removed. If rows are
        not groups of equal size per sentence, a new cache is made.
        """
        found = self._select(rows)
        return found if self.attention is None else replace(found, attention=self.attention.index_select(0, rows))

    def _select(self, rows: Tensor) -> "EngineState":
        """See `select`; without attention."""
        self.check()
        rows = rows.long()  # the kernels read slots and ancestors as int64
        context = None if self.context is None else self.context.select(rows)
        owners = rows // self.width
        stay, counts = torch.unique_consecutive(owners, return_counts=True)
        width = int(counts[0]) if counts.numel() else 1
        regular = bool((counts == width).all()) and bool((stay.diff() > 0).all())
        if not regular or (self.width > 1 and width != self.width):
            return self._select_rows(rows, owners, context)
        return self._select_groups(stay, (rows % self.width).view(-1, width), context)

    def _select_rows(self, rows: Tensor, owners: Tensor, context: Selectable | None) -> "EngineState":
        """Copy the rows into a new cache with one row per sentence."""
        slots = owners if self.slots is None else self.slots[owners]
        indices = owners if self.cache.indirect else slots
        ancestors = None if self.ancestors is None else self.ancestors[indices, rows % self.width]
        cache = self.cache.gather(slots, ancestors, self.position)
        self.cache.mark_changed()
        return EngineState(cache, self.position, context=context)

    def _select_groups(self, stay: Tensor, origin: Tensor, context: Selectable | None) -> "EngineState":
        """Keep the sentences `stay` [M], with their hypotheses `origin` [M, K] in that order."""
        cache, width = self.cache, origin.size(1)
        before = slots = stay if self.slots is None else self.slots[stay]
        if stay.numel() < self.sentences and not cache.indirect:
            slots = cache.drop(before, self.position)
        kept = None if self.ancestors is None else self.ancestors[stay if cache.indirect else before]
        if width > self.width:
            cache.widen(width, self.position)
            kept = origin.new_zeros(stay.numel(), 1, self.position)
        ancestors = None
        if kept is not None:
            selected = kept.gather(1, origin[..., None].expand(-1, -1, self.position))
            ancestors = selected if cache.indirect else torch.empty_like(selected).index_copy_(0, slots, selected)
        ordered = slots.numel() == cache.past.size(1) and bool(
            (slots == torch.arange(slots.numel(), device=slots.device)).all()
        )
        return EngineState(
            cache,
            self.position,
            width=width,
            slots=None if ordered else slots,
            ancestors=ancestors,
            context=context,
            generation=cache.mark_changed(),
        )


@dataclass(slots=True)
class StepInput:
    """The tokens of a step: rows [B·K·t] of a state.

    count: tokens per hypothesis, t.  ancestors: [B, K, position + t], the state's and those of the new tokens.
    attention: [B·K, S], to be filled with that of the last tokens, or None.
    """

    state: EngineState
    count: int = 1
    ancestors: Tensor | None = None
    attention: Tensor | None = None

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.state.position + self.count
