"""The endless stream of training batches, its seeds, and the gradients of one update."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from translume.data import Batch, BatchPlan, TokenizedCorpus
from translume.errors import TrainingError
from translume.model.head import HeadLoss


class BatchStream:
    """Training batches, epoch after epoch. A run is resumed by `epoch` and `position` of the next batch."""

    def __init__(
        self,
        corpus: TokenizedCorpus,
        *,
        max_tokens: int,
        seed: int,
        dropout: float,
        epoch: int = 0,
        position: int = 0,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        """position: number of batches of `epoch` already used.  dropout: of merges in the subword segmentation.

        rank, size: of the processes that share the batches of every update.
        """
        self.epoch, self.position = epoch, position
        self._corpus, self._max_tokens, self._seed, self._dropout = corpus, max_tokens, seed, dropout
        self._rank, self._size = rank, size
        self._plan = self._plan_of(epoch)

    def take(self, count: int) -> dict[tuple[int, ...], Batch]:
        """Return the part of this rank in the next `count` batches, each with a key for `gather`.

        If the ranks can share whole batches evenly, the i-th batch has the key (i,), whatever the rank. Otherwise every
        rank takes some rows of each batch, which are of similar lengths, and the key has the rank too. A batch with
        fewer rows than ranks has none for some ranks.
        """
        whole = count % self._size == 0
        found: dict[tuple[int, ...], Batch] = {}
        for index in range(count):
            plan, position = self._next()
            if whole and index % self._size == self._rank:
                found[(index,)] = plan.batch(position)
            elif not whole and self._rank < len(plan.numbers(position)):
                found[index, self._rank] = plan.batch(position, slice(self._rank, None, self._size))
        return found

    def _next(self) -> tuple[BatchPlan, int]:
        """Return the place of the next batch; after the last of an epoch, of the first of the next epoch."""
        if self.position >= len(self._plan):
            self.epoch, self.position = self.epoch + 1, 0
            self._plan = self._plan_of(self.epoch)
        self.position += 1
        return self._plan, self.position - 1

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


def gather(updater: Accumulator, batches: Mapping[tuple[int, ...], Batch], *, seed: int, update: int) -> Sums:
    """Accumulate the gradients of the summed loss of all batches in the updater, and return the sums.

    Dropout in part p of the batch with the key (i, …) is drawn by (seed, update, i, p, …). When CUDA runs out of
    memory, everything is computed again with that batch in halves; TrainingError if a single pair does not fit.
    Accumulation stops at a loss that is not finite: `objective` is not finite then, and the last entry of `lines` is
    that batch.
    """
    parts = {key: [batch] for key, batch in batches.items()}
    splits = 0
    while True:
        sums = Sums(splits=splits)
        failed = _attempt(updater, parts, sums, seed, update)
        if failed is None:
            return sums
        key, place = failed
        updater.clear()
        torch.cuda.empty_cache()
        batch = parts[key][place]
        if len(batch) < 2:
            raise TrainingError(
                f"update {update}: CUDA is out of memory for the single pair {batch.lines[0] + 1}; "
                "lower data.cleaning.max_tokens or the model's size"
            )
        parts[key][place : place + 1] = batch.halves()
        splits += 1


def _attempt(
    updater: Accumulator, parts: Mapping[tuple[int, ...], Sequence[Batch]], sums: Sums, seed: int, update: int
) -> tuple[tuple[int, ...], int] | None:
    """Accumulate all parts. Return the key and place of a part that did not fit into CUDA memory, or None."""
    for key, pieces in parts.items():
        for place, batch in enumerate(pieces):
            torch.manual_seed(seed_of(seed, update, key[0], place, *key[1:]))
            try:
                loss = updater.add(batch)
            except torch.cuda.OutOfMemoryError:
                return key, place
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
