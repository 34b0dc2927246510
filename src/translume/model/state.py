"""What the decoder carries from one step to the next."""

from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

GROWTH = 32
"""Places by which a full buffer grows."""


class Selectable(Protocol):
    """A value with one entry per row of a search."""

    def select(self, rows: Tensor) -> Self: ...


@dataclass(slots=True)
class KeyValue:
    """Keys and values of one attention, each [N, H, capacity, D/H], of which the first `length` places are filled."""

    keys: Tensor
    values: Tensor
    length: int

    def write(self, keys: Tensor, values: Tensor, place: int) -> None:
        """Put keys and values [N, H, t, D/H] at `place`, in place; the buffers grow when they are full."""
        self.keys, self.values = _written(self.keys, keys, place), _written(self.values, values, place)
        self.length = place + keys.size(2)

    def read(self, length: int) -> tuple[Tensor, Tensor]:
        """The keys and values of the first `length` places."""
        return self.keys[:, :, :length], self.values[:, :, :length]

    def select(self, rows: Tensor, length: int) -> "KeyValue":
        """A copy of rows [M] of the first `length` places, with room for more."""
        keys, values = self.read(length)
        return KeyValue(keys.index_select(0, rows), values.index_select(0, rows), length)


@dataclass(slots=True)
class Cells:
    """What one recurrent unit held after each place of the target, [N, capacity, D]; all are kept."""

    cells: Tensor

    def write(self, cells: Tensor, place: int) -> None:
        """Put cells [N, t, D] at `place`, in place; the buffer grows when it is full."""
        self.cells = _written(self.cells, cells, place)

    def read(self, length: int) -> Tensor:
        """The cell [N, D] after the first `length` places; zeros before the first."""
        if not length:
            return self.cells.new_zeros(self.cells.size(0), self.cells.size(2))
        return self.cells[:, length - 1]

    def select(self, rows: Tensor, length: int) -> "Cells":
        """A copy of rows [M] of the first `length` places, with room for more."""
        return Cells(self.cells[:, :length].index_select(0, rows))


def _written(buffer: Tensor, new: Tensor, place: int) -> Tensor:
    """The buffer [N, ..., capacity, w] with `new` [N, ..., t, w] at `place`: the same one, unless it was full.

    Where gradients flow it is a new one, since the old one's numbers are still needed.
    """
    if new.requires_grad or (place == 0 and buffer.size(-2) == 0 and torch.is_grad_enabled()):
        return torch.cat([buffer.narrow(-2, 0, place), new], -2)
    end = place + new.size(-2)
    if end > buffer.size(-2):
        grown = new.new_empty(*new.shape[:-2], (end // GROWTH + 1) * GROWTH, new.size(-1))
        grown.narrow(-2, 0, place).copy_(buffer.narrow(-2, 0, place))
        buffer = grown
    buffer.narrow(-2, place, new.size(-2)).copy_(new)
    return buffer


class LayerPast(Protocol):
    """The cache of one layer."""

    def select(self, rows: Tensor, length: int) -> Self: ...


@dataclass(slots=True)
class Past:
    """The cache of all layers. `generation` counts its changes."""

    layers: list[LayerPast]
    generation: int = 0


class StaleStateError(RuntimeError):
    """A decoder state was used after a later state wrote over its buffers; branch with `select` before."""


@dataclass(frozen=True, slots=True)
class DecoderState:
    """An encoded source and the target read so far; one row per hypothesis, `width` rows a sentence.

    memory: [B, S, D] and memory_mask [B, S] of B sentences; rows b·width … (b+1)·width−1 belong to sentence b.
    cross: per layer, keys and values of the memory [B, H, S, D/H].
    past: keys and values of the target, or cells, written in place; only the newest state may be used, or one that was
        branched off by `select`.
    context: the head's context of the source, or None.
    attention: [N, S], fp32, the cross-attention of the last token: the mean over the attention heads of the last layer.
        Before the first token 0, and 1 at source padding. None, and never computed, unless requested.
    """

    memory: Tensor
    memory_mask: Tensor
    cross: tuple[KeyValue, ...]
    past: Past
    position: int
    width: int = 1
    context: Selectable | None = None
    attention: Tensor | None = None
    generation: int = field(default=0, repr=False)

    @property
    def rows(self) -> int:
        """N: rows of the search."""
        return self.memory.size(0) * self.width

    def check(self) -> None:
        """Raise StaleStateError if another state has written to the cache since."""
        if self.generation != self.past.generation:
            raise StaleStateError("this decoder state was used already; branch with state.select before using it twice")

    def advanced(self, count: int, attention: Tensor | None = None) -> "DecoderState":
        """The state after `count` more tokens were written; attention as in the fields."""
        self.past.generation += 1
        return replace(self, position=self.position + count, attention=attention, generation=self.past.generation)

    def select(self, rows: Tensor) -> "DecoderState":
        """A branch with rows [M] of the current N: kept, repeated, dropped or reordered; this state stays usable.

        The memory is kept once a sentence as long as each sentence keeps as many rows as the others, side by side.
        """
        self.check()
        sentences, width = self._groups(rows)
        past = Past([layer.select(rows, self.position) for layer in self.past.layers])
        context = None if self.context is None else self.context.select(rows)
        attention = None if self.attention is None else self.attention.index_select(0, rows)
        branch = replace(self, past=past, width=width, context=context, attention=attention, generation=0)
        if sentences is None:
            return branch
        return replace(
            branch,
            memory=self.memory.index_select(0, sentences),
            memory_mask=self.memory_mask.index_select(0, sentences),
            cross=tuple(layer.select(sentences, layer.length) for layer in self.cross),
        )

    def _groups(self, rows: Tensor) -> tuple[Tensor | None, int]:
        """The sentences that rows [M] belong to, None if they are all of them in order, and how many rows each has."""
        owners = rows // self.width
        sentences, counts = torch.unique_consecutive(owners, return_counts=True)
        width = int(counts[0]) if counts.numel() else 1
        if counts.numel() and not bool((counts == width).all()):
            sentences, width = owners, 1
        if sentences.numel() == self.memory.size(0):
            whole = torch.arange(sentences.numel(), device=rows.device)
            if torch.equal(sentences, whole):
                return None, width
        return sentences, width
