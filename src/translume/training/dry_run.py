"""Measure what a training would cost, and leave nothing behind."""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from translume.checkpoint import choose_device
from translume.config import Config
from translume.training.events import Event, Interrupted, Progress, Started
from translume.training.train import train

FIRST = 2
"""Updates that are not measured if there are later ones: they allocate memory."""
MEASURED = 20
"""Maximum number of updates measured."""
SECONDS = 20.0
"""Time after which no further update is measured; at least one is."""
NEVER = 2**52
"""An interval of updates that is never reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The measured cost of a training.

    measured: number of updates timed.  update_seconds: their mean.  tokens_per_second: target tokens.
    training_seconds: expected for all updates, without validation and saving.
    peak_bytes: the largest resident memory of the process so far, data preparation included.
    device_bytes: the largest memory allocated on a CUDA device; None on the CPU.
    """

    updates: int
    measured: int
    update_seconds: float
    tokens_per_second: float
    training_seconds: float
    peak_bytes: int
    device_bytes: int | None
    device: str


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
    folder = Path(folder)
    near = next(each for each in folder.absolute().parents if each.is_dir())
    place = choose_device(device)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    rarely = config.training.model_copy(update={"validate_every": NEVER, "save_every": NEVER})
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix=".dry-run-", dir=near) as made:
        events = train(
            config.model_copy(update={"training": rarely}),
            Path(made) / folder.name,
            source=source,
            device=device,
            threads=threads,
        )
        begun = time.monotonic()
        for event in events:
            if isinstance(event, Progress):
                seconds.append(time.monotonic() - begun)
                measured = seconds[FIRST:] or seconds
                if event.update == event.updates or len(measured) == MEASURED or sum(seconds) > SECONDS:
                    break
            else:
                yield replace(event, folder=folder) if isinstance(event, Started | Interrupted) else event
                if isinstance(event, Interrupted):
                    return
            begun = time.monotonic()
    assert isinstance(event, Progress)  # of a new folder, so there is an update
    mean = sum(measured) / len(measured)
    yield DryRun(
        updates=event.updates,
        measured=len(measured),
        update_seconds=mean,
        tokens_per_second=event.tokens_per_second,
        training_seconds=mean * event.updates,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        device_bytes=torch.cuda.max_memory_allocated(place) if place.type == "cuda" else None,
        device=str(place),
    )
