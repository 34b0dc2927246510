"""Measure what a training would cost, and leave nothing behind."""

import math
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from translume.config import Config, TrainingSettings
from translume.device import choose_device
from translume.training.events import Event, Interrupted, Progress, Saved, Started, Validated, Warned
from translume.training.train import train

WARM_UP, WARM_UP_ON_GPU = 2, 30
"""Updates that are not measured if there are later ones: they allocate memory, and a GPU meets each shape once."""
WARM_UP_SECONDS = 10.0
"""Time after which updates are measured, however few there were."""
UPDATES, SECONDS = 30, 5.0
"""Measuring ends after this many updates and this time, …"""
MAX_SECONDS = 20.0
"""… or after this time since the first update, that after a shape was compiled, or that after a pause."""
PAUSE = 128
"""Updates after which a validation and a commit are measured. Slower trainings do not get there, and seldom pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The measured cost of a training.

    measured: number of updates timed.  update_seconds: their mean.  tokens_per_second: target tokens.
    preparation_seconds: until the first update.  warm_up_seconds: how much longer the first updates took than later
    ones, compilation included.  validation_seconds, saving_seconds: of a validation, without generating texts, and of a
    commit; None if not measured.
    training_seconds: expected from the start to the end, with all validations and commits if they were measured.
    peak_bytes: the largest resident memory of the process so far, data preparation included.
    device_bytes: the largest memory allocated on a CUDA device; None on the CPU.
    """

    updates: int
    measured: int
    update_seconds: float
    tokens_per_second: float
    preparation_seconds: float
    warm_up_seconds: float
    validation_seconds: float | None
    saving_seconds: float | None
    training_seconds: float
    peak_bytes: int
    device_bytes: int | None
    device: str


class Stopwatch:
    """Divides the time of a training by its events: preparation, first updates, measured ones, and pauses."""

    def __init__(self, device: torch.device) -> None:
        from resource import RUSAGE_SELF, getrusage  # Windows has none: `needed_by` says so, before any work

        self._usage = partial(getrusage, RUSAGE_SELF)
        self._device, self._warm_up = device, WARM_UP if device.type == "cpu" else WARM_UP_ON_GPU
        self._begun = self._last = self._started = self._restarted = time.monotonic()
        self._has_started = False
        self._previous: Event | None = None
        self._measured, self._tokens, self._seconds, self._paused = 0, 0, 0.0, 0.0
        self._validation: float | None = None
        self._saving: float | None = None

    def sees_end(self, event: Event) -> bool:
        """Take note of an event. Return whether enough is measured."""
        now = time.monotonic()
        match event:
            case Warned():  # comes before the Progress of its update
                return False
            case Started():
                self._started, self._has_started = now, True
            case Validated():
                self._validation = now - self._last
                self._paused += self._validation
            case Saved():
                self._saving = now - self._last
                self._paused += self._saving
            case Progress():
                return self._progressed(event)
            case _ if self._has_started:  # a shape is compiled: what was measured was without
                self._measured, self._tokens, self._seconds = 0, 0, 0.0
        self._last, self._previous = now, event
        return False

    def _progressed(self, event: Progress) -> bool:
        before, self._previous = self._previous, event
        if not self._measured:
            self._wait()
        now = time.monotonic()
        warm = event.update > self._warm_up or now - self._started > WARM_UP_SECONDS
        if warm and isinstance(before, Progress):
            self._measured += 1
            self._tokens += event.tokens - (0 if before.logged else before.tokens)
            self._seconds += now - self._last
        if not isinstance(before, Progress):
            self._restarted = now
        self._last = now
        enough = self._measured >= UPDATES and self._seconds >= SECONDS
        late = self._measured > 0 and now - self._restarted > MAX_SECONDS
        return enough or late or event.update == event.updates

    def _wait(self) -> None:
        """Wait for a GPU, which computes updates later than the host begins them."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def result(self, settings: TrainingSettings) -> DryRun:
        """Return what the training with these settings would cost."""
        event = self._previous
        assert isinstance(event, Progress)  # of a new folder, so there is an update
        self._wait()
        now = time.monotonic()
        updating = now - self._started - self._paused
        if self._measured:
            seconds, tokens, measured = self._seconds + now - self._last, self._tokens, self._measured
        else:
            seconds, tokens, measured = updating, event.tokens, event.update
        update_seconds = seconds / measured
        preparation, warm_up = self._started - self._begun, max(0.0, updating - update_seconds * event.update)
        validations = math.ceil(event.updates / settings.validate_every) + (settings.average_last > 1)
        saves = math.ceil(event.updates / settings.save_every)
        pauses = validations * (self._validation or 0.0) + saves * (self._saving or 0.0)
        return DryRun(
            updates=event.updates,
            measured=measured,
            update_seconds=update_seconds,
            tokens_per_second=tokens / max(seconds, 1e-9),
            preparation_seconds=preparation,
            warm_up_seconds=warm_up,
            validation_seconds=self._validation,
            saving_seconds=self._saving,
            training_seconds=preparation + warm_up + update_seconds * event.updates + pauses,
            peak_bytes=self._usage().ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            device_bytes=torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None,
            device=str(self._device),
        )


def dry_run(
    config: Config,
    folder: Path | str,
    *,
    source: Path | str | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Iterator[Event | DryRun]:
    """Prepare a training as `train` does, make a few updates, and yield its events and finally a `DryRun`.

    Everything is written to a temporary folder beside `folder`, which is removed. A run in `folder` is not read.
    """
    folder, place = Path(folder), choose_device(device)
    near = next(each for each in folder.absolute().parents if each.is_dir())
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    watch = Stopwatch(place)
    changes = {"validate_every": PAUSE, "save_every": PAUSE, "metric": "nll", "patience": 0}
    made = near / f".dry-run-{secrets.token_hex(4)}"
    try:  # from before the folder is there, so that no signal leaves it
        made.mkdir(mode=0o700)
        events = train(
            config.with_values("training", changes),
            made / folder.name,
            source=source,
            device=str(place),
            threads=threads,
        )
        for event in events:
            if watch.sees_end(event):
                break
            if not isinstance(event, Progress | Validated | Saved):
                yield replace(event, folder=folder) if isinstance(event, Started | Interrupted) else event
            if isinstance(event, Interrupted):
                return
        result = watch.result(config.training)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    yield result
