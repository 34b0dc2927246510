"""The endless stream of training batches, its seeds, and the gradients of one update."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from translume.data import Batch, BatchPlan, TokenizedCorpus
from translume.errors import TrainingError
from translume.model.head import HeadLoss


class BatchStream:
    """Training batches, epoch after epoch. A run is resumed by `epoch` and `position` of the next batch."""

    def __init__(
        self, corpus: TokenizedCorpus, *, max_tokens: int, seed: int, dropout: float, epoch: int = 0, position: int = 0
    ) -> None:
        """position: number of batches of `epoch` already used.  dropout: of merges in the subword segmentation."""
        self.epoch, self.position = epoch, position
        self._corpus, self._max_tokens, self._seed, self._dropout = corpus, max_tokens, seed, dropout
        self._plan = self._plan_of(epoch)

    def next(self) -> Batch:
        """Return the next batch; after the last of an epoch, the first of the next epoch."""
        if self.position >= len(self._plan):
            self.epoch, self.position = self.epoch + 1, 0
            self._plan = self._plan_of(self.epoch)
        batch = self._plan.batch(self.position)
        self.position += 1
        return batch

    def _plan_of(self, epoch: int) -> BatchPlan:
        return BatchPlan(self._corpus, max_tokens=self._max_tokens, seed=self._seed, epoch=epoch, dropout=self._dropout)


def seed_of(*numbers: int) -> int:
    """Return a seed in [0, 2⁶³) derived from integers, the same on every machine.

    All random numbers of an update are seeded by (seed, update, batch), so no generator state has to be saved.
    """
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


class Accumulator(Protocol):
    """The part of an `Updater` that accumulates gradients."""

    def add(self, batch: Batch) -> HeadLoss: ...
    def clear(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Sums:
    """Sums over one update.

    objective, nll: nats.  tokens: target tokens.  splits: how often a batch was split.  lines: the pairs of each batch.
    """

    objective: float = 0.0
    nll: float | None = 0.0
    tokens: int = 0
    splits: int = 0
    lines: list[tuple[int, ...]] = field(default_factory=list)


def gather(updater: Accumulator, batches: Iterable[Batch], *, seed: int, update: int) -> Sums:
    """Accumulate the gradients of the summed loss of all batches in the updater, and return the sums.

    Dropout in part p of the i-th batch is drawn by (seed, update, i, p). When CUDA runs out of memory, everything is
    computed again with that batch in halves; TrainingError if a single pair does not fit. Accumulation stops at a loss
    that is not finite: `objective` is not finite then, and the last entry of `lines` is that batch.
    """
    parts: list[list[Batch]] = [[batch] for batch in batches]
    splits = 0
    while True:
        sums = Sums(splits=splits)
        failed = _attempt(updater, parts, sums, seed, update)
        if failed is None:
            return sums
        index, place = failed
        updater.clear()
        torch.cuda.empty_cache()
        batch = parts[index][place]
        if len(batch) < 2:
            raise TrainingError(
                f"update {update}: CUDA is out of memory for the single pair {batch.lines[0] + 1}; "
                "lower data.cleaning.max_tokens or the model's size"
            )
        parts[index][place : place + 1] = batch.halves()
        splits += 1


def _attempt(
    updater: Accumulator, parts: Sequence[Sequence[Batch]], sums: Sums, seed: int, update: int
) -> tuple[int, int] | None:
    """Accumulate all parts. Return the index of a part that did not fit into CUDA memory, or None."""
    for index, pieces in enumerate(parts):
        for place, batch in enumerate(pieces):
            torch.manual_seed(seed_of(seed, update, index, place))
            try:
                loss = updater.add(batch)
            except torch.cuda.OutOfMemoryError:
                return index, place
            objective = float(loss.objective.detach())
            nll = None if loss.nll is None or sums.nll is None else sums.nll + float(loss.nll)
            sums.objective, sums.nll, sums.tokens = sums.objective + objective, nll, sums.tokens + batch.tokens
            sums.lines.append(batch.lines)
            if not finite(objective):
                return None
    return None


def finite(value: float) -> bool:
    """Return whether a number is neither NaN nor infinite."""
    return value - value == 0.0
