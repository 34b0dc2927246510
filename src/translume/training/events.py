"""Events of a run, and history.jsonl, the log that is written from them."""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from translume.checkpoint.history import NAME, append_history, is_evaluation
from translume.config.heads import Measure
from translume.data.cleaning import Account
from translume.data.token_cache import DataFile
from translume.json_values import to_values

Reason = Literal["updates", "patience"]
"""Reason why a run ended: all updates are done, or `training.patience` validations without improvement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """A long step begins: before the first update "tokenizer", "training data", …, later "compiling shape 3 of 9"."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Data, vocabularies and network are ready; the first update comes next.

    training, validation: how many pairs were read, used, held out and dropped; one account for both if validation pairs
    were held out.  parameters: number of weights, shared ones counted once.  trained_parameters: number of those that
    are trained, or of those of low-rank adapters.  files: of training and validation.
    base: of a fine-tuned model, when it begins: "model" (folder), "weights_sha256" and the data of the base model as
    `data_of_history` returns them; else None.  processes: number of those that train together.
    streamed: whether the training pairs are read while they are used, so that `training` counts those read so far.
    """

    update: int
    updates: int
    folder: Path
    training: Account
    validation: Account
    training_pairs: int
    validation_pairs: int
    source_vocabulary: int
    target_vocabulary: int
    parameters: int
    trained_parameters: int
    precision: str
    device: str
    threads: int
    files: tuple[DataFile, ...]
    base: dict[str, Any] | None = None
    processes: int = 1
    streamed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """An interrupted run continues after update `update`, its last commit."""

    update: int
    updates: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A warning for the user; the run continues."""

    update: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One update is done. Means are over the updates since the last multiple of `training.log_every`.

    loss: mean objective in nats per target token, smoothing included.  nll: mean −log p per target token in nats; None
    for a head without it.
    balance, dropped, dropped_share: the mean balance loss of mixtures of experts, 1 if all experts are chosen equally;
    choices of experts over their capacity, and their share of all choices. None without mixtures.
    tokens_per_second: target tokens of all `processes`, without the time of validation and saving.
    gradient_norm: of this update, per target token, before clipping.  seconds_left: until the last update, at this
    process's speed so far.  logged: whether the event is in history.jsonl.
    memory_gib, card_memory_gib, utilization_percent: of the GPU, as in `Usage`; None on a CPU.
    """

    update: int
    updates: int
    epoch: int
    loss: float
    nll: float | None
    tokens: int
    tokens_per_second: float
    learning_rate: float
    gradient_norm: float
    seconds_left: float
    logged: bool
    balance: float | None = None
    dropped: int | None = None
    dropped_share: float | None = None
    processes: int = 1
    memory_gib: float | None = None
    card_memory_gib: float | None = None
    utilization_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """The current weights, or their moving average with `training.ema`, were evaluated on the validation set.

    nll: nats per target token of the quantity in `measure`: −log p, or the objective without smoothing for a head
    without −log p.  metrics: values by name, such as {"bleu": 35.2}; empty if `metric` is "nll".
    best: whether this is the best so far by `training.metric`.  reached_limit: number of translations that ended at
    their length limit.
    """

    update: int
    nll: float
    metrics: Mapping[str, float]
    best: bool
    seconds: float
    measure: Measure = "nll"
    reached_limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The model folder was committed: a crash now loses only the updates after `update`."""

    update: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """SIGINT, SIGTERM or SIGHUP was received. Everything up to `update` is saved; the same command resumes the run.

    training: as in Finished.
    """

    update: int
    signal: str
    folder: Path
    training: Account | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over and the folder holds the model.

    nll, metrics: quality of the kept weights on the validation set, if measured.  measure: as in Validated.
    kept: a description of these weights.  already: whether the run was complete when `train` was called.
    training: the pairs of a stream that were read so far, of its first epoch; else None.
    """

    update: int
    reason: Reason
    kept: str
    nll: float | None
    metrics: Mapping[str, float]
    best_update: int
    folder: Path
    already: bool
    measure: Measure = "nll"
    training: Account | None = None


Event = Preparing | Started | Resumed | Warned | Progress | Validated | Saved | Interrupted | Finished


_LEFT_OUT = ("logged", "seconds_left", "folder")
_OF_GPUS = ("memory_gib", "card_memory_gib", "utilization_percent")
"""Fields that are left out where they are not known."""


class History:
    """The log of a folder. Lines written after the last commit are cut off when the run is resumed."""

    def __init__(self, folder: Path, *, keep_bytes: int) -> None:
        """Truncate the log to `keep_bytes`; later lines belong to updates that will be repeated, or to evaluations."""
        self._folder, self._size = folder, keep_bytes
        path = folder / NAME
        size = path.stat().st_size if path.exists() else 0
        if size < keep_bytes:
            lost = f"{path}: {size:,} bytes, expected at least {keep_bytes:,}: lines of the log are lost"
            logging.getLogger(__name__).warning("%s; restore it from a copy", lost)
        if size > keep_bytes:
            with path.open("rb+") as file:
                file.seek(keep_bytes)
                kept = [line for line in file if is_evaluation(line)]
                file.seek(keep_bytes)
                file.writelines(kept)  # before the rest is cut off, so that a kill loses none
                file.truncate()

    def add(self, event: Event, *, elapsed: float) -> None:
        """Write an event, except Progress events that are not `logged`.  elapsed: seconds of the run so far."""
        if isinstance(event, Preparing | Saved) or (isinstance(event, Progress) and not event.logged):
            return
        line: dict[str, Any] = {"event": type(event).__name__.lower(), "elapsed": round(elapsed, 3)}
        values = {f.name: getattr(event, f.name) for f in fields(event) if f.name not in _LEFT_OUT}
        for name, value in values.items():
            if name not in _OF_GPUS or value is not None:
                line[name] = value.to_dict() if isinstance(value, Account) else to_values(value)
        append_history(self._folder, line)

    def size(self) -> int:
        """Return its length in bytes, after flushing it to disk; the last known length if that fails."""
        with suppress(OSError), (self._folder / NAME).open("rb") as file:
            os.fsync(file.fileno())
            self._size = os.fstat(file.fileno()).st_size
        return self._size
