"""Events of a run, and history.jsonl, the log that is written from them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from translume.checkpoint.history import NAME, append_history
from translume.config.heads import Measure
from translume.data import Account

Reason = Literal["updates", "patience"]
"""Why a run ends: all its updates are done, or `training.patience` validations brought nothing better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """Something that can take a while begins before the first update: "tokenizer", "training data", …"""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Data, tokenizer and model are ready; the first update comes next.

    training, validation: what became of each pair read; one account where validation pairs were held out.
    parameters: trained numbers, shared ones counted once.
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
    precision: str
    device: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """An interrupted run goes on after `update` updates, its last commit."""

    update: int
    updates: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something a person should know; the run goes on."""

    update: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One update is done. Means run over the updates since the last multiple of `training.log_every`.

    loss: mean objective in nats per target token, smoothing included.  nll: mean −log p per target token in nats, None
    where the head has none.  tokens_per_second: target tokens, validation and saving not counted.  gradient_norm: of
    this update, per target token, before clipping.  seconds_left: to the last update, at this process's speed so far.
    logged: whether the line stands in history.jsonl.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """The validation set was measured with the present weights (their moving average where there is one).

    nll: nats per target token, of what `measure` names: −log p, or the objective without smoothing of a head that has
    no −log p.  metrics: values by name, such as {"bleu": 35.2}; empty when `metric` is "nll".
    best: whether this is the best so far by `training.metric`.
    """

    update: int
    nll: float
    metrics: Mapping[str, float]
    best: bool
    seconds: float
    measure: Measure = "nll"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The model folder was committed: from now on a dead process costs only what comes after `update`."""

    update: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """SIGINT or SIGTERM came; everything up to `update` is saved and the same command resumes."""

    update: int
    signal: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over and the folder holds the model.

    nll, metrics: of the weights that were kept, on the validation set, as far as they were measured; `measure` names
    what nll is, as in Validated.
    kept: which weights those are, in words.  already: nothing was left to do when `train` was called.
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


Event = Preparing | Started | Resumed | Warned | Progress | Validated | Saved | Interrupted | Finished


_LEFT_OUT = ("logged", "seconds_left", "folder")


class History:
    """The log of one folder. It may be longer than the last commit; what is longer is cut off when a run goes on."""

    def __init__(self, folder: Path, *, keep_bytes: int) -> None:
        """What stands after `keep_bytes` belongs to updates that will be done again, and goes."""
        self._folder = folder
        path = folder / NAME
        if path.exists() and path.stat().st_size > keep_bytes:
            os.truncate(path, keep_bytes)

    def add(self, event: Event, *, elapsed: float) -> None:
        """Write an event; of Progress only the logged ones.  elapsed: seconds of the run so far."""
        if isinstance(event, Preparing | Saved) or (isinstance(event, Progress) and not event.logged):
            return
        line = {"event": type(event).__name__.lower(), "elapsed": round(elapsed, 3)}
        append_history(self._folder, {**line, **_plain(event)})

    def size(self) -> int:
        """Its length in bytes, all of it on the disk."""
        path = self._folder / NAME
        if not path.exists():
            return 0
        with path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size


def _plain(value: Any) -> Any:
    """A value as JSON knows it: dataclasses and mappings as objects."""
    if isinstance(value, Account):
        return value.to_dict()
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.name not in _LEFT_OUT}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
