"""The endless stream of training batches, its seeds, and the gradients of one update."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from translume.data.batch import Batch
from translume.data.buckets import Bucket, BucketPlan, choose_buckets
from translume.data.cleaning import Account
from translume.data.corpus import TokenizedCorpus
from translume.data.plan import BatchPlan
from translume.data.streaming import Place, Share, Shares, Stream
from translume.errors import DataError, SettingsError, TrainingError
from translume.model.compiled import on_device
from translume.model.head import HeadLoss
from translume.training.device_passes import accept_other_kernels
from translume.training.group import Group
from translume.training.interrupt import Interruption
from translume.training.sharded import AnyUpdater

Interruptible = Callable[[], AbstractContextManager[None]]
"""Returns a context for a long wait for data, which may end the block by `Interruption`."""


PlanKind = Literal["lengths", "buckets"]
"""What the batches of a run have in common: similar lengths (`BatchPlan`), or one of a few shapes (`BucketPlan`)."""


def plan_kind(device: torch.device) -> PlanKind:
    """Return the kind of plans of a new run on a device."""
    return "lengths" if device.type == "cpu" else "buckets"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of all plans.

    dropout: of merges in the subword segmentation.  buckets: of plans of that kind, from `with_buckets`.
    """

    max_tokens: int
    seed: int
    dropout: float
    kind: PlanKind = "lengths"
    buckets: tuple[Bucket, ...] = ()

    def with_buckets(self, corpus: TokenizedCorpus, stream: Stream | None = None) -> "PlanOptions":
        """Return options whose buckets, if plans have any, are those of a corpus, or of a stream that it samples."""
        if self.kind == "lengths" or self.buckets:
            return self
        widest, scale = None, 1.0
        if stream is not None:
            source, target = stream.reader.limits
            widest = None if source is None or target is None else (source, target)
            scale = stream.reader.size / corpus.account.read
        buckets = choose_buckets(corpus, max_tokens=self.max_tokens, dropout=self.dropout, widest=widest, scale=scale)
        return replace(self, buckets=buckets)

    def plan(self, corpus: TokenizedCorpus, epoch: int, *numbers: int) -> BatchPlan:
        """Return the batches of a corpus in an epoch.  numbers: more to derive the seed from."""
        seed = seed_of(self.seed, *numbers) if numbers else self.seed
        if self.kind == "lengths":
            return BatchPlan(corpus, max_tokens=self.max_tokens, seed=seed, epoch=epoch, dropout=self.dropout)
        return BucketPlan(
            corpus, max_tokens=self.max_tokens, seed=seed, epoch=epoch, dropout=self.dropout, buckets=self.buckets
        )


class EpochPlans:
    """A plan for each epoch of a corpus in the token cache.

    epoch, corpus, plan: the current ones.  account: counts of the training pairs.  place: what the state of a run keeps
    of the current plan besides its epoch, as JSON values.  options: with the buckets of all epochs.
    """

    def __init__(self, corpus: TokenizedCorpus, options: PlanOptions, epoch: int = 0) -> None:
        self.corpus, self.account, self.epoch = corpus, corpus.account, epoch
        self.place: dict[str, Any] = {}
        self.options = options.with_buckets(corpus)
        self.plan = self.options.plan(corpus, epoch)

    def advance(self, interruptible: Interruptible) -> None:
        """Go on to the next epoch."""
        self.epoch += 1
        self.plan = self.options.plan(self.corpus, self.epoch)

    def close(self) -> None:
        """Do nothing."""


class BufferPlans:
    """A plan for each buffer of a stream, which the processes of a group read together. `advance` reads the first.

    account: of the pairs that were read in the first epoch, the current buffer included.  options: with the buckets of
    all buffers of the stream.  The others are those of `EpochPlans`.
    """

    def __init__(self, stream: Stream, options: PlanOptions, group: Group, place: Mapping[str, Any]) -> None:
        """place: `place` of the buffer to begin with; empty for the first.

        Raises SettingsError if a batch could not hold every pair that passes the cleaning rules.
        """
        if options.max_tokens < stream.widest:
            raise SettingsError(
                f"training.max_tokens: {options.max_tokens}, but pairs of a stream may have {stream.widest} tokens; "
                "expected more, or a smaller data.cleaning.max_tokens"
            )
        self._stream, self.options, self._group = stream, options.with_buckets(stream.sample, stream), group
        self._next = Place.from_dict(place["buffer"]) if place else Place()
        self.account = Account.from_dict(place["account"]) if place else Account(unit=stream.sample.account.unit)
        self.place = self._place()
        self._shares = Shares(replace(stream.reader, rank=group.rank, ranks=group.size), self._next)
        self._base = 0
        self.epoch = self._next.epoch
        self.corpus = stream.sample
        self.plan: BatchPlan | None = None

    def advance(self, interruptible: Interruptible) -> None:
        """Read the next buffer that has pairs after cleaning. An error or `Interruption` in one process ends all."""
        used = True
        while True:
            self.place, self.epoch = self._place(), self._next.epoch
            with self._group.together():
                try:
                    with interruptible():
                        data = self._shares.next()
                except Interruption:  # the other processes wait for the data of this one
                    data = b""
            blobs = self._group.blobs(data)
            if b"" in blobs:
                raise Interruption
            shares = [Share.from_bytes(each) for each in blobs]
            with self._group.together():
                self._refuse_differences(shares)
                self._next = shares[0].after
                if not shares[0].read:
                    if not used:
                        raise DataError("data: an epoch of the training files has no pairs left after cleaning")
                    used = False
                    continue
                self.corpus = self._stream.corpus(shares, self._base)
                self._base += self.corpus.pairs
                if self.epoch == 0:
                    self.account = Account.total([self.account, self.corpus.account])
                if self.corpus.pairs:
                    self.plan = self.options.plan(self.corpus, self.epoch, self.place["buffer"]["buffer"])
                    return

    def close(self) -> None:
        """End the process that reads ahead."""
        self._shares.close()

    def _place(self) -> dict[str, Any]:
        return {"buffer": asdict(self._next), "account": self.account.to_dict()}

    def _refuse_differences(self, shares: Sequence[Share]) -> None:
        """Raise DataError if the processes read different files."""
        for rank, share in enumerate(shares):
            if (share.after, share.read) != (shares[0].after, shares[0].read):
                raise DataError(f"data: rank {rank} read other training pairs than rank 0; expected the same files")


Plans = EpochPlans | BufferPlans
"""Plans of batches, one after another, without end."""


class BatchStream:
    """Training batches without end. A run is resumed by the epoch, the place and the position of the next batch."""

    def __init__(self, plans: Plans, *, position: int = 0, rank: int = 0, size: int = 1, in_step: bool = False) -> None:
        """position: number of batches of the current plan already used.

        rank, size: of the processes that share the batches of every update.
        in_step: whether all of them must compute equally many batches.
        """
        self.plans, self.position = plans, position
        self._rank, self._size, self._in_step = rank, size, in_step
        self._used: list[TokenizedCorpus] = []

    def take(self, count: int, interruptible: Interruptible = nullcontext) -> dict[tuple[int, ...], Batch]:
        """Return the part of this rank in the next `count` batches, each with a key for `gather`.

        If the ranks can share whole batches evenly, the i-th batch has the key (i,), whatever the rank. Otherwise every
        rank takes some rows of each batch, which are of similar lengths, and the key has the rank too. A batch with
        fewer pairs than ranks has none for some ranks. If these compute in step, they get the part of rank 0 without
        tokens. After an `Interruption`, no more batches can be taken.
        """
        whole = count % self._size == 0
        self._used.clear()
        batches: dict[tuple[int, ...], Batch] = {}
        for index in range(count):
            plan, position = self._next(interruptible)
            if whole and index % self._size == self._rank:
                batches[(index,)] = plan.batch(position)
            elif not whole and self._rank < len(plan.numbers(position)):
                batches[index, self._rank] = plan.batch(position, slice(self._rank, None, self._size))
            elif not whole and self._in_step:
                batches[index, self._rank] = replace(
                    plan.batch(position, slice(0, None, self._size)), tokens=0, lines=()
                )
        return batches

    def _next(self, interruptible: Interruptible) -> tuple[BatchPlan, int]:
        """Return the place of the next batch; after the last of a plan, of the first of the next plan."""
        while (plan := self.plans.plan) is None or self.position >= len(plan):
            self.plans.advance(interruptible)
            if plan is not None:
                self.position = 0
        self.position += 1
        if self.plans.corpus not in self._used:
            self._used.append(self.plans.corpus)
        return plan, self.position - 1

    def examples(self, count: int) -> list[Batch]:
        """Return a batch of each shape that `take(count)` returns in the current plan; none if shapes are many."""
        plan, whole = self.plans.plan, count % self._size == 0
        rows = slice(None) if whole else slice(self._rank, None, self._size)
        return [] if plan is None else plan.examples(rows)

    def line(self, number: int) -> str:
        """Return the file and line of a pair that the last call of `take` returned.  number: one of `Batch.lines`."""
        return next(each for each in self._used if each.base <= number < each.base + each.pairs).place(number)


def seed_of(*numbers: int) -> int:
    """Return a seed in [0, 2⁶³) derived from integers, the same on every machine.

    All random numbers of an update are seeded by (seed, update, batch), so no generator state has to be saved.
    """
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def seed_generators(number: int, device: torch.device) -> None:
    """Seed what computation on a device draws from. number: from `seed_of`.

    torch.manual_seed also records the seed, with a traceback, for each kind of device that is not in use: up to 0.5 ms.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(number)
    else:
        torch.manual_seed(number)


@dataclass(slots=True, kw_only=True)
class Sums:
    """Sums over one update.

    objective, nll: nats; tensors of a device until they are read.  tokens: target tokens.  splits: how often a batch
    was split.  lines: the pairs of each batch.  objectives: those of each batch, on a device.  notes: warnings.
    routing: as in `HeadLoss`; zeros without mixtures.
    """

    objective: float | Tensor = 0.0
    nll: float | Tensor | None = 0.0
    tokens: int = 0
    routing: tuple[float | Tensor, ...] = (0.0, 0.0, 0.0)
    splits: int = 0
    lines: list[tuple[int, ...]] = field(default_factory=list)
    objectives: list[Tensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, loss: HeadLoss, batch: Batch) -> bool:
        """Add a batch. Return whether the sum may be finite, which is not known before it is read from a device."""
        late = on_device(loss.objective)
        objective = loss.objective.detach() if late else float(loss.objective.detach())
        if isinstance(objective, Tensor):
            self.objectives.append(objective)
            self.lines.append(batch.lines)
        elif finite(self.objective):
            self.lines.append(batch.lines)
        self.objective = self.objective + objective
        if loss.nll is None or self.nll is None:
            self.nll = None
        else:
            self.nll = self.nll + (loss.nll if late else float(loss.nll))
        self.tokens += batch.tokens
        if loss.routing is not None:
            new = loss.routing.unbind() if late else loss.routing.tolist()
            self.routing = tuple(sum(pair) for pair in zip(self.routing, new, strict=True))
        return isinstance(objective, Tensor) or finite(objective)


def gather(updater: AnyUpdater, batches: Mapping[tuple[int, ...], Batch], *, seed: int, update: int) -> Sums:
    """Accumulate the gradients of the summed loss of all batches in the updater, and return the sums.

    Dropout in part p of the batch with the key (i, …) is drawn by (seed, update, i, p, …). When CUDA runs out of
    memory, everything is computed again with that batch in halves; TrainingError if a single pair does not fit.
    On a CPU, accumulation stops at a loss that is not finite: `objective` is not finite then, and the last entry of
    `lines` is that batch. Processes that compute in step go on to the last batch.
    """
    parts = {key: [batch] for key, batch in batches.items()}
    splits, notes = 0, list[str]()
    while True:
        sums = Sums(splits=splits, notes=notes)
        failed = _attempt(updater, parts, sums, seed, update)
        if failed is None:
            return sums
        key, place = failed
        updater.clear()
        if place is None:
            continue
        torch.cuda.empty_cache()
        batch = parts[key][place]
        if batch.rows < 2:
            pair = f" for the single pair {batch.lines[0] + 1}" if batch.lines else ""
            raise TrainingError(
                f"update {update}: CUDA is out of memory{pair}; lower data.cleaning.max_tokens or the model's size"
            )
        parts[key][place : place + 1] = batch.halves()
        splits += 1


def _attempt(
    updater: AnyUpdater, parts: Mapping[tuple[int, ...], Sequence[Batch]], sums: Sums, seed: int, update: int
) -> tuple[tuple[int, ...], int | None] | None:
    """Accumulate all parts. Return the key and place of a part that did not fit into CUDA memory, or None.

    The place is None if the part fits and must be computed again.
    """
    for key, pieces in parts.items():
        for place, batch in enumerate(pieces):
            seed_generators(seed_of(seed, update, key[0], place, *key[1:]), updater.device)
            try:
                loss = updater.add(batch)
            except torch.cuda.OutOfMemoryError:
                return key, place
            except RuntimeError as error:
                if not accept_other_kernels(error):
                    raise
                sums.notes.append(f"{' '.join(str(error).split())[:120]}…: a resumed run may differ in the last bits")
                return key, None
            if not sums.add(loss, batch) and not updater.in_step:
                return None
    return None


def finite(value: float | Tensor) -> bool:
    """Return whether a number is neither NaN nor infinite."""
    return bool(value - value == 0.0)
