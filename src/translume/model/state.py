"""The decoder state: the encoded source and the KV cache."""

from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from translume.errors import StaleStateError

GROWTH = 32
"""Number of positions by which a full buffer grows."""


class Selectable(Protocol):
    """A value with one entry per row of a search."""

    def select(self, rows: Tensor) -> Self: ...


@dataclass(slots=True)
class KeyValue:
    """Keys and values of one attention layer, each [N, H, capacity, D/H]."""

    keys: Tensor
    values: Tensor
    length: int

    def write(self, keys: Tensor, values: Tensor, place: int) -> None:
        """Write keys and values [N, H, t, D/H] at position `place`, in place; replace full buffers by larger ones."""
        self.keys, self.values = _write_at(self.keys, keys, place), _write_at(self.values, values, place)
        self.length = place + keys.size(2)

    def read(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the first `length` positions."""
        return self.keys[:, :, :length], self.values[:, :, :length]

    def select(self, rows: Tensor, length: int) -> "KeyValue":
        """Return a copy of the given rows [M] of the first `length` positions, with spare capacity."""
        keys, values = self.read(length)
        return KeyValue(keys.index_select(0, rows), values.index_select(0, rows), length)


@dataclass(slots=True)
class Cells:
    """The cells of one recurrent unit after each position of the target, [N, capacity, D]."""

    cells: Tensor

    def write(self, cells: Tensor, place: int) -> None:
        """Write cells [N, t, D] at position `place`, in place; replace a full buffer by a larger one."""
        self.cells = _write_at(self.cells, cells, place)

    def read(self, length: int) -> Tensor:
        """Return the cell [N, D] after the first `length` positions; zeros if `length` is 0."""
        if not length:
            return self.cells.new_zeros(self.cells.size(0), self.cells.size(2))
        return self.cells[:, length - 1]

    def select(self, rows: Tensor, length: int) -> "Cells":
        """Return a copy of the given rows [M] of the first `length` positions, with spare capacity."""
        return Cells(self.cells[:, :length].index_select(0, rows))


def _write_at(buffer: Tensor, new: Tensor, place: int) -> Tensor:
    """Write `new` [N, ..., t, w] at position `place` of a buffer [N, ..., capacity, w], and return the buffer.

    A full buffer is replaced by a larger one. With gradients enabled the result is always a new buffer, since the
    backward pass needs the old values.
    """
    if new.requires_grad or (place == 0 and buffer.size(-2) == 0 and torch.is_grad_enabled()):
        return torch.cat([buffer.narrow(-2, 0, place), new], -2)
    end = place + new.size(-2)
    if end > buffer.size(-2):
        larger = new.new_empty(*new.shape[:-2], (end // GROWTH + 1) * GROWTH, new.size(-1))
        larger.narrow(-2, 0, place).copy_(buffer.narrow(-2, 0, place))
        buffer = larger
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


@dataclass(frozen=True, slots=True)
class DecoderState:
    """An encoded source and the target read so far: one row per hypothesis, `width` rows per sentence.

    memory: [B, S, D] and memory_mask [B, S] of B sentences; rows b·width … (b+1)·width−1 belong to sentence b.
    cross: per layer, keys and values of the memory [B, H, S, D/H].
    past: keys and values of the target, or cells, written in place. Only the newest state may be used, or a branch made
        by `select`.
    context: the head's context of the source, or None.
    attention: [N, S], fp32, the cross-attention of the last token: the mean over the attention heads of the last layer.
        Before the first token 0, and 1 at source padding. None, and not computed, unless requested.
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
        """Return the state after `count` more tokens were written, with the given attention."""
        self.past.generation += 1
        return replace(self, position=self.position + count, attention=attention, generation=self.past.generation)

    def select(self, rows: Tensor) -> "DecoderState":
        """Return a branch with rows [M] of the current N, repeated, dropped or reordered. This state stays usable.

        The memory is stored once per sentence as long as every sentence has the same number of adjacent rows.
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

    def branch(self) -> "DecoderState":
        """Return a state for steps that leave this one usable; it reads the same memory."""
        return self.select(torch.arange(self.rows, device=self.memory.device))

    def _groups(self, rows: Tensor) -> tuple[Tensor | None, int]:
        """Return the sentences of rows [M] (None if they are all sentences in order) and the number of rows of each."""
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
