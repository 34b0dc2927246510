"""What the decoder carries from one step to the next."""

from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

GROWTH = 32
"""Steps by which a full buffer of keys and values grows."""


class Selectable(Protocol):
    """What moves with the rows of a search."""

    def select(self, rows: Tensor) -> Self: ...


@dataclass(slots=True)
class KeyValue:
    """Keys and values of one attention, each [N, H, capacity, D/H], of which the first `length` places are filled."""

    keys: Tensor
    values: Tensor
    length: int

    def write(self, keys: Tensor, values: Tensor, place: int) -> None:
        """Put keys and values [N, H, t, D/H] at `place`, in place; the buffers grow when they are full."""
        end = place + keys.size(2)
        if keys.requires_grad or (place == 0 and self.keys.size(2) == 0 and torch.is_grad_enabled()):
            self.keys = torch.cat([self.keys[:, :, :place], keys], 2)
            self.values = torch.cat([self.values[:, :, :place], values], 2)
        else:
            if end > self.keys.size(2):
                self.keys = self._grown(self.keys, keys, place, end)
                self.values = self._grown(self.values, values, place, end)
            self.keys[:, :, place:end] = keys
            self.values[:, :, place:end] = values
        self.length = end

    @staticmethod
    def _grown(old: Tensor, new: Tensor, place: int, end: int) -> Tensor:
        rows, heads, _, width = new.shape
        buffer = new.new_empty(rows, heads, (end // GROWTH + 1) * GROWTH, width)
        buffer[:, :, :place] = old[:, :, :place]
        return buffer

    def read(self, length: int) -> tuple[Tensor, Tensor]:
        """The keys and values of the first `length` places."""
        return self.keys[:, :, :length], self.values[:, :, :length]

    def select(self, rows: Tensor, length: int) -> "KeyValue":
        """A copy of rows [M] of the first `length` places, with room for more."""
        keys, values = self.read(length)
        return KeyValue(keys.index_select(0, rows), values.index_select(0, rows), length)


@dataclass(slots=True)
class Past:
    """The target read so far: one `KeyValue` a layer. `generation` counts its changes."""

    layers: list[KeyValue]
    generation: int = 0


class StaleStateError(RuntimeError):
    """A decoder state was used after a later state wrote over its buffers; branch with `select` before."""


@dataclass(frozen=True, slots=True)
class DecoderState:
    """An encoded source and the target read so far; one row per hypothesis, `width` rows a sentence.

    memory: [B, S, D] and memory_mask [B, S] of B sentences; rows b·width … (b+1)·width−1 belong to sentence b.
    cross: per layer, keys and values of the memory [B, H, S, D/H].
    past: keys and values of the target, written in place; only the newest state may be used, or one that was
        branched off by `select`, or taken back by `rewind`.
    context: what the head made of the source, or None.
    """

    memory: Tensor
    memory_mask: Tensor
    cross: tuple[KeyValue, ...]
    past: Past
    position: int
    width: int = 1
    context: Selectable | None = None
    generation: int = field(default=0, repr=False)

    @property
    def rows(self) -> int:
        """N: rows of the search."""
        return self.memory.size(0) * self.width

    def check(self) -> None:
        """Raise StaleStateError if another state has written since."""
        if self.generation != self.past.generation:
            raise StaleStateError("this decoder state was used already; branch with state.select before using it twice")

    def advanced(self, count: int) -> "DecoderState":
        """The state after `count` more tokens were written."""
        self.past.generation += 1
        return replace(self, position=self.position + count, generation=self.past.generation)

    def rewind(self, length: int) -> "DecoderState":
        """The state after the first `length` tokens; the one it was made from becomes stale."""
        self.check()
        if not 0 <= length <= self.position:
            raise ValueError(f"cannot rewind to {length}: the state has read {self.position} tokens")
        self.past.generation += 1
        return replace(self, position=length, generation=self.past.generation)

    def select(self, rows: Tensor) -> "DecoderState":
        """A branch with rows [M] of the current N: kept, repeated, dropped or reordered; this state stays usable.

        The memory is kept once a sentence as long as each sentence keeps as many rows as the others, side by side.
        """
        self.check()
        sentences, width = self._groups(rows)
        past = Past([layer.select(rows, self.position) for layer in self.past.layers])
        context = None if self.context is None else self.context.select(rows)
        branch = replace(self, past=past, width=width, context=context, generation=0)
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
