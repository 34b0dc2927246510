"""What the engine carries from step to step: buffers written in place, and who reads what of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from translume.model.state import GROWTH, Selectable, StaleStateError


@dataclass(slots=True)
class Buffers:
    """What B sentences hold, in one tensor for all L layers, keys and values by turns.

    past: [2L, B, H, capacity, K, D/H], of the target read so far: a place holds what its K hypotheses wrote there, and
        is never moved when hypotheses are; `EngineState.reach` says which of them a hypothesis continues.
    cross: [2L, B, H, S, D/H], of the memory.
    hidden: [B, 1, 1, S], −inf where no source token stands; None where all do.
    looked_up: whether readers look up a sentence's slot, so that nothing moves when others leave.
    generation: counts changes.
    """

    past: Tensor
    cross: Tensor
    hidden: Tensor | None
    looked_up: bool = False
    generation: int = 0

    def changed(self) -> int:
        """Count a change; every state before it is stale."""
        self.generation += 1
        return self.generation

    def grow(self, length: int, slots: Tensor | None) -> bool:
        """Make room for place `length`; whether that was done, and of sentences in `slots` alone, in their order."""
        if length < self.past.size(3):
            return False
        before, shape = self.past, list(self.past.shape)
        shape[3] = (length // GROWTH + 1) * GROWTH
        if slots is not None:
            shape[1] = slots.numel()
        self.past = before.new_empty(shape)
        for old, new in zip(before.unbind(), self.past.unbind(), strict=True):  # so little is held twice
            new[:, :, : before.size(3)] = old if slots is None else old.index_select(0, slots)
        if slots is None:
            return False
        self.cross = self.cross.index_select(1, slots)
        self.hidden = None if self.hidden is None else self.hidden.index_select(0, slots)
        return True

    def widen(self, width: int, length: int) -> None:
        """Room for `width` hypotheses a sentence; the first keeps what stands in the first `length` places."""
        shape = list(self.past.shape)
        shape[4] = width
        # What nobody wrote is read and masked, unless it is looked up who wrote.
        wider = self.past.new_empty(shape) if self.looked_up else self.past.new_zeros(shape)
        wider[:, :, :, :length, :1] = self.past[:, :, :, :length, :1]
        self.past = wider

    def leave(self, stay: Tensor, length: int) -> Tensor:
        """Keep the sentences in slots `stay` [M], which are all different; the slots that they stand in now.

        Those in the last slots move into the holes, the others stay where they are: what is copied is not more than
        what leaves.
        """
        count = stay.numel()
        taken = torch.zeros(self.past.size(1), dtype=torch.bool, device=stay.device)
        taken[stay] = True
        holes, moved = (~taken[:count]).nonzero()[:, 0], taken[count:].nonzero()[:, 0] + count
        if moved.numel():
            past = self.past[:, :, :, :length]
            past[:, holes] = past.index_select(1, moved)
            self.cross[:, holes] = self.cross.index_select(1, moved)
            if self.hidden is not None:
                self.hidden[holes] = self.hidden.index_select(0, moved)
        self.past, self.cross = self.past[:, :count], self.cross[:, :count]
        if self.hidden is not None:
            self.hidden = self.hidden[:count]
        places = torch.arange(taken.numel(), device=stay.device)
        places[moved] = holes
        return places[stay]

    def chosen(self, slots: Tensor, reach: Tensor | None, length: int) -> "Buffers":
        """A copy for rows [M] of their own, one hypothesis a sentence: row i is of slot `slots[i]`.

        reach: [M, length], which of the K at each place row i continues; None for the first.
        """
        past = self.past[:, :, :, :length].index_select(1, slots)
        if reach is None:
            past = past[..., :1, :]
        else:
            index = reach[None, :, None, :, None, None].expand(*past.shape[:4], 1, past.size(5))
            past = past.gather(4, index)
        hidden = None if self.hidden is None else self.hidden.index_select(0, slots)
        return Buffers(past.contiguous(), self.cross.index_select(1, slots), hidden, self.looked_up)


@dataclass(frozen=True, slots=True)
class EngineState:
    """An encoded source and the target read so far; rows b·width … (b+1)·width−1 belong to sentence b.

    slots: [B], where each sentence stands in the buffers; None: in order.
    reach: [B, width, position], which of a sentence's hypotheses wrote what a hypothesis reads at each place, in order
        of slots unless these are looked up; None while there is one a sentence.
    context: what the head made of the source, or None; in order of rows.
    """

    buffers: Buffers
    position: int
    width: int = 1
    slots: Tensor | None = None
    reach: Tensor | None = None
    context: Selectable | None = None
    generation: int = 0

    @property
    def sentences(self) -> int:
        """B."""
        return self.buffers.past.size(1) if self.slots is None else self.slots.numel()

    def check(self) -> None:
        """Raise StaleStateError if another state has written since."""
        if self.generation != self.buffers.generation:
            raise StaleStateError("this engine state was used already; only the newest may go on")

    def advanced(self, count: int, reach: Tensor | None) -> "EngineState":
        """The state after `count` more tokens were written; reach as in the fields."""
        position, generation = self.position + count, self.buffers.changed()
        # Field by field: `replace` looks all of them up, every step.
        return EngineState(self.buffers, position, self.width, self.slots, reach, self.context, generation)

    @torch.inference_mode()
    def select(self, rows: Tensor) -> "EngineState":
        """Rows [M] of the current ones; the state it was made from becomes stale.

        Nothing is copied for reordered hypotheses, and for sentences that left only as much as left. Rows that are not
        whole groups of one size a sentence get buffers of their own.
        """
        self.check()
        rows = rows.long()  # the kernels read slots and reach as int64
        context = None if self.context is None else self.context.select(rows)
        owners = rows // self.width
        stay, counts = torch.unique_consecutive(owners, return_counts=True)
        width = int(counts[0]) if counts.numel() else 1
        regular = bool((counts == width).all()) and bool((stay.diff() > 0).all())
        if not regular or (self.width > 1 and width != self.width):
            return self._apart(rows, owners, context)
        return self._together(stay, (rows % self.width).view(-1, width), context)

    def _apart(self, rows: Tensor, owners: Tensor, context: Selectable | None) -> "EngineState":
        """A state whose rows are one a sentence, in buffers of their own."""
        slots = owners if self.slots is None else self.slots[owners]
        places = owners if self.buffers.looked_up else slots
        reach = None if self.reach is None else self.reach[places, rows % self.width]
        buffers = self.buffers.chosen(slots, reach, self.position)
        self.buffers.changed()
        return EngineState(buffers, self.position, context=context)

    def _together(self, stay: Tensor, origin: Tensor, context: Selectable | None) -> "EngineState":
        """The sentences `stay` [M] with their hypotheses `origin` [M, K]."""
        buffers, width = self.buffers, origin.size(1)
        before = slots = stay if self.slots is None else self.slots[stay]
        if stay.numel() < self.sentences and not buffers.looked_up:
            slots = buffers.leave(before, self.position)
        kept = None if self.reach is None else self.reach[stay if buffers.looked_up else before]
        if width > self.width:
            buffers.widen(width, self.position)
            kept = origin.new_zeros(stay.numel(), 1, self.position)
        reach = None
        if kept is not None:
            chosen = kept.gather(1, origin[..., None].expand(-1, -1, self.position))
            reach = chosen if buffers.looked_up else torch.empty_like(chosen).index_copy_(0, slots, chosen)
        ordered = slots.numel() == buffers.past.size(1) and bool(
            (slots == torch.arange(slots.numel(), device=slots.device)).all()
        )
        return EngineState(
            buffers,
            self.position,
            width=width,
            slots=None if ordered else slots,
            reach=reach,
            context=context,
            generation=buffers.changed(),
        )


@dataclass(slots=True)
class Segment:
    """What one search reads in a step: rows [B·K·t] of a state.

    count: how many tokens of each hypothesis, t.  reach: [B, K, position + t], the state's with what is read now.
    """

    state: EngineState
    count: int = 1
    reach: Tensor | None = None

    @property
    def end(self) -> int:
        """The place after the last token."""
        return self.state.position + self.count
