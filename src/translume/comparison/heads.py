"""Train the same model with each of several output heads on the same data, and measure it."""

import hashlib
import json
import os
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from translume.atomic import make_folder, replace_file
from translume.checkpoint import FolderLock, Manifest
from translume.comparison.measuring import Measures
from translume.comparison.worker import Outcome, Task, run_in_worker
from translume.config import Config, HeadKind
from translume.config.base import RAISE_RAW
from translume.config.heads import head_kinds as every_head_kind
from translume.errors import ModelFolderError, SettingsError, TranslumeError, nearest
from translume.training.events import Event, Interrupted
from translume.training.resume import WEIGHTS, ModelDescription, Store

MEASURED = "measured.json"
"""File with the measures of all kinds compared in the folder so far."""
POINTS = 10
"""Minimum number of validations, and of progress lines, of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparingHead:
    """A head is trained and measured next: the `number`-th of `count`."""

    kind: str
    number: int
    count: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one head: measures, or the reason of a failure.

    settings: of the head.  peak_bytes: peak memory of its training, of the process or, on CUDA, of the device.
    key: digest of the measured weights and of the settings of model and measurement.
    """

    kind: str
    settings: Mapping[str, Any]
    measures: Measures | None = None
    peak_bytes: int | None = None
    failure: str = ""
    key: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON, which `from_dict` reads."""
        return {
            "kind": self.kind,
            "settings": dict(self.settings),
            "measures": None if self.measures is None else self.measures.to_dict(),
            "peak_bytes": self.peak_bytes,
            "failure": self.failure,
            "key": self.key,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Row":
        """Invert `to_dict`. Raises KeyError or TypeError for other mappings."""
        measures = values["measures"]
        return cls(**{**values, "measures": None if measures is None else Measures.from_dict(measures)})


def head_kinds() -> dict[str, type[HeadKind]]:
    """Return the settings class of every head over tokens, by its kind."""
    return {kind: member for kind, member in every_head_kind().items() if member.predicts == "tokens"}


def chosen_kinds(words: str) -> tuple[str, ...]:
    """Return the kinds in a text such as "softmax,mixture", or all for "all"; SettingsError for an unknown one."""
    known = head_kinds()
    if words.strip() == "all":
        return tuple(known)
    names = tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    for name in names:
        if name not in known:
            raise SettingsError(f"--kinds: found '{name}'{nearest(name, known)}")
    if not names:
        raise SettingsError(f"--kinds: found none; known: {', '.join(known)}")
    return names


def config_with(config: Config, kind: str) -> Config:
    """Return the settings with another head, which keeps the settings that both heads have.

    `tie` becomes "none" if the kind cannot share weights in that way. Validation and logging become frequent enough for
    a curve.
    """
    member, present = head_kinds()[kind], config.model.head
    head = present if member is type(present) else member.model_validate(_shared(present, member))
    settings = config.training
    every = max(1, settings.updates // POINTS)
    often = {"log_every": min(settings.log_every, every)}
    if not settings.patience:  # which counts validations
        often["validate_every"] = min(settings.validate_every, every)
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"head": head}),
            "training": settings.model_copy(update=often),
        }
    )


def _shared(present: HeadKind, member: type[HeadKind]) -> dict[str, Any]:
    """Return the settings of a head that are valid for another kind, too."""
    values: dict[str, Any] = {}
    for name in type(present).model_fields.keys() & member.model_fields.keys() - {"kind"}:
        value = getattr(present, name)
        try:
            member.model_validate({name: value}, context=RAISE_RAW)
            values[name] = value
        except ValidationError:
            if name == "tie":
                values[name] = "none"
    return values


def compare_heads(
    config: Config,
    folder: Path,
    kinds: Sequence[str],
    *,
    sentences: int = 500,
    device: str = "auto",
    threads: int | None = None,
) -> Iterator[ComparingHead | Event | Row]:
    """Train and measure each kind of head in its folder under `folder`, in a process of its own.

    Yield for each kind ComparingHead, the events of its training, and a Row, after writing it to measured.json. A
    repeated call resumes an interrupted one and skips kinds that are already measured. A kind that fails has a Row with
    the reason. After Interrupted nothing follows.
    sentences: number of validation sentences to translate, evenly spread; 0 for all.
    """
    make_folder(folder)
    rows = {row.kind: row for row in read_rows(folder)}
    for number, kind in enumerate(kinds, start=1):
        home = folder / kind
        task = Task(config=config_with(config, kind), folder=home, sentences=sentences, device=device, threads=threads)
        row = rows.get(kind)
        if row is None or row.measures is None or row.key != _key(task):
            yield ComparingHead(kind=kind, number=number, count=len(kinds), folder=home)
            row = yield from _train_and_measure(task, kind, row, [folder / other for other in (*rows, *kinds)])
            rows[kind] = row
            _write(folder, rows)
            if row.measures is None and not row.failure:
                return
        yield row


def _train_and_measure(
    task: Task, kind: str, before: Row | None, others: Sequence[Path]
) -> Generator[Event, None, Row]:
    """Train and measure one kind; a row with neither measures nor a reason was interrupted."""
    begun = before is not None and (task.folder / "manifest.json").exists()
    peak = before.peak_bytes if before is not None and begun else None
    try:
        _reuse_vocabularies(others, task)
        outcome = yield from _run_task(task)
    except TranslumeError as error:
        outcome = Outcome(failure=str(error))
    if outcome.peak_bytes is not None:
        peak = max(peak or 0, outcome.peak_bytes)
    return Row(
        kind=kind,
        settings=task.config.model.head.model_dump(mode="json"),
        measures=outcome.measures,
        peak_bytes=peak,
        failure="" if outcome.measures or outcome.interrupted else outcome.failure or "no measures were returned",
        key=_key(task) if outcome.measures else "",
    )


def _run_task(task: Task) -> Generator[Event, None, Outcome]:
    """Yield the events of `run_in_worker`, and Interrupted even if the process had nothing to save."""
    reported = False
    run = run_in_worker(task, task.folder.with_suffix(".log"))
    while True:
        try:
            event = next(run)
        except StopIteration as end:
            outcome: Outcome = end.value
            break
        reported = reported or isinstance(event, Interrupted)
        yield event
    if outcome.interrupted and not reported:
        yield Interrupted(update=0, signal=outcome.interrupted, folder=task.folder)
    return outcome


def _reuse_vocabularies(others: Sequence[Path], task: Task) -> None:
    """Copy vocabularies and tokenized corpus of another run with the same settings into a new one."""
    config, folder = task.config, task.folder
    with FolderLock(folder):
        store = Store(folder)
        if store.model() is not None:
            return
        for other in others:
            model = _stored(other) if other != folder else None
            if model is None or (model.config.tokenizer, model.config.data) != (config.tokenizer, config.data):
                continue
            store.begin(ModelDescription(config=config, source=model.source, target=model.target))
            with suppress(OSError, shutil.Error):  # without a copy the corpus is built again
                shutil.copytree(other / "cache", folder / "cache", copy_function=os.link)
            return


def _stored(folder: Path) -> ModelDescription | None:
    try:
        return Store(folder).model()
    except ModelFolderError:  # reported when this kind is trained
        return None


def _key(task: Task) -> str:
    """Return a digest of the weights and of the settings of model and measurement; empty if there are no weights."""
    try:
        weights = Manifest.read(task.folder).files.get(WEIGHTS)
    except ModelFolderError:
        return ""
    if weights is None:
        return ""
    task = replace(task, folder=Path(weights.sha256))  # so that a moved folder has the same key
    return hashlib.sha256(json.dumps(task.to_dict()).encode()).hexdigest()


def read_rows(folder: Path) -> list[Row]:
    """Return the rows in measured.json; none if it is missing or unreadable."""
    try:
        values = json.loads((folder / MEASURED).read_text(encoding="utf-8"))
        return [Row.from_dict(row) for row in values["rows"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write(folder: Path, rows: Mapping[str, Row]) -> None:
    text = json.dumps({"rows": [row.to_dict() for row in rows.values()]}, indent=1, ensure_ascii=False)
    replace_file(folder / MEASURED, f"{text}\n".encode(), synced=False)
