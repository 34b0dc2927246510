"""A sweep: train a model with each combination of settings and each seed, and measure it."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from translume.atomic import make_folder, write_file
from translume.checkpoint import Manifest
from translume.checksums import sealed, unsealed
from translume.errors import DataError, ModelFolderError
from translume.experiments.combinations import Combination
from translume.experiments.measuring import Measured, Measures
from translume.experiments.processes import Began, Run, Stopped, Task, run_tasks
from translume.json_values import to_json
from translume.training.events import Event
from translume.training.resume import WEIGHTS

MEASURED = "measured.json"
"""File in the folder of a run with its measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A combination: what differs from other rows, and each task with its run, in the order of the seeds."""

    values: tuple[str, ...]
    runs: tuple[tuple[Task, Run], ...]

    @property
    def name(self) -> str:
        """The values as a label."""
        return ", ".join(self.values)

    @property
    def measured(self) -> list[Measured]:
        """What was measured, of each seed."""
        return [run.measured for _, run in self.runs if run.measured is not None]

    @property
    def measures(self) -> list[Measures]:
        """The measures of each seed."""
        return [each.measures for each in self.measured]


def tasks_of(combination: Combination, folder: Path, sentences: int, device: str, threads: int | None) -> list[Task]:
    """Return the task of each seed, with models in `folder`/NAME, `folder`/NAME-seed-2, and so on."""
    tasks = []
    for config in combination.configs:
        name, home = combination.name, combination.name
        if config is not combination.configs[0]:
            name, home = (f"{name}{between}{config.training.seed}" for between in (", seed ", "-seed-"))
        tasks.append(Task(name, config, folder / home, sentences=sentences, device=device, threads=threads))
    return tasks


def run_sweep(
    tasks: Sequence[Task], folder: Path, *, workers: int = 1, seconds: float | None = None
) -> Iterator[tuple[Task, Began | Event | Run] | Stopped]:
    """Train and measure what is missing under `folder`; yield what `run_tasks` yields.

    Runs that were measured before come first. An interrupted one is resumed.
    """
    make_folder(folder)
    missing, before = [], {task.folder: read_run(task.folder) for task in tasks}
    for task in tasks:
        run = before[task.folder]
        if run.measured is not None and run.key == _key(task):
            yield task, run
        else:
            missing.append(task)
    for message in run_tasks(missing, workers=workers, seconds=seconds):
        if not isinstance(message, Stopped) and isinstance(message[1], Run):
            _complete(message[0], message[1], before[message[0].folder])
        yield message


def _complete(task: Task, run: Run, before: Run) -> None:
    """Complete a run, and write it to its folder."""
    run.peak_bytes = max((peak for peak in (run.peak_bytes, before.peak_bytes) if peak is not None), default=None)
    run.key = _key(task) if run.measured else ""
    if (task.folder / "manifest.json").exists():
        write_file(task.folder / MEASURED, sealed(run.to_dict()).encode())


def _key(task: Task) -> str:
    """Return a digest of the weights and of the settings of model and measurement; empty if there are no weights."""
    try:
        weights = Manifest.read(task.folder).files.get(WEIGHTS)
    except ModelFolderError:
        return ""
    if weights is None:
        return ""
    measured = (weights.sha256, task.config.model_dump(mode="json"), task.sentences, task.device, task.threads)
    return hashlib.sha256(to_json(measured).encode()).hexdigest()


def read_run(folder: Path) -> Run:
    """Return the run in a folder; an empty one if its file is missing, damaged or unreadable."""
    try:
        return Run.from_dict(unsealed((folder / MEASURED).read_text(encoding="utf-8"))[0])
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return Run()
