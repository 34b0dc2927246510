"""The same model with one output head after the other, trained on the same data and compared."""

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

from translume.atomic import replace_file
from translume.checkpoint import FolderLock, Manifest
from translume.comparison.measuring import Measures
from translume.comparison.worker import Outcome, Task, run_in_worker
from translume.config import Config, HeadKind
from translume.config.base import UNTOLD
from translume.config.heads import head_kinds as every_head_kind
from translume.errors import ModelFolderError, SettingsError, TranslumeError, nearest
from translume.training.events import Event, Interrupted
from translume.training.resume import WEIGHTS, Model, Store

MEASURED = "measured.json"
"""What was measured so far, of every kind that was ever asked for."""
POINTS = 10
"""Validations, and lines on progress, that a run has at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trying:
    """A head is trained and measured next: the `number`-th of `count`."""

    kind: str
    number: int
    count: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one head: measures, or the reason why there are none.

    settings: of the head.  peak_bytes: most memory of its training, of the process or on CUDA of the device.
    key: a digest of weights and settings that were measured, and of how.
    """

    kind: str
    settings: Mapping[str, Any]
    measures: Measures | None = None
    peak_bytes: int | None = None
    failure: str = ""
    key: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON knows them, which `from_dict` reads back."""
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
        """The inverse of `to_dict`. Raises KeyError or TypeError for other mappings."""
        measures = values["measures"]
        return cls(**{**values, "measures": None if measures is None else Measures.from_dict(measures)})


def head_kinds() -> dict[str, type[HeadKind]]:
    """Return the settings class of every head over tokens, by its kind."""
    return {kind: member for kind, member in every_head_kind().items() if member.predicts == "tokens"}


def chosen_kinds(words: str) -> tuple[str, ...]:
    """Kinds from "softmax,mixture", each once, or all of them for "all"; SettingsError if one is unknown."""
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
    """The same run with another head, which takes over the settings that it shares with the present one.

    `tie` becomes "none" where the kind cannot share weights in that way. Validations and lines of history come often
    enough to draw a curve.
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
    """What a kind can take over of another kind's settings."""
    values: dict[str, Any] = {}
    for name in type(present).model_fields.keys() & member.model_fields.keys() - {"kind"}:
        value = getattr(present, name)
        try:
            member.model_validate({name: value}, context=UNTOLD)
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
) -> Iterator[Trying | Event | Row]:
    """Trains and measures each kind of head in its folder under `folder`, in a process of its own.

    For each kind: Trying, the events of its training, and a Row, which is in measured.json by then. The same call again
    goes on where the last one ended; what is measured already is not even looked at again. A kind that fails is a Row
    with the reason. After Interrupted nothing more comes.
    sentences: how many of the validation set are translated, evenly spread; 0 for all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = {row.kind: row for row in read_rows(folder)}
    for number, kind in enumerate(kinds, start=1):
        home = folder / kind
        task = Task(config=config_with(config, kind), folder=home, sentences=sentences, device=device, threads=threads)
        row = rows.get(kind)
        if row is None or row.measures is None or row.key != _key(task):
            yield Trying(kind=kind, number=number, count=len(kinds), folder=home)
            row = yield from _tried(task, kind, row, [folder / other for other in (*rows, *kinds)])
            rows[kind] = row
            _write(folder, rows)
            if row.measures is None and not row.failure:
                return
        yield row


def _tried(task: Task, kind: str, before: Row | None, others: Sequence[Path]) -> Generator[Event, None, Row]:
    """Train and measure one kind; a row without measures and without a reason means that it was interrupted."""
    begun = before is not None and (task.folder / "manifest.json").exists()
    peak = before.peak_bytes if before is not None and begun else None
    try:
        _begin_like(others, task)
        outcome = yield from _watched(task)
    except TranslumeError as error:
        outcome = Outcome(failure=str(error))
    if outcome.peak_bytes is not None:
        peak = max(peak or 0, outcome.peak_bytes)
    return Row(
        kind=kind,
        settings=task.config.model.head.model_dump(mode="json"),
        measures=outcome.measures,
        peak_bytes=peak,
        failure="" if outcome.measures or outcome.interrupted else outcome.failure or "it gave no measures",
        key=_key(task) if outcome.measures else "",
    )


def _watched(task: Task) -> Generator[Event, None, Outcome]:
    """Yield the events of `run_in_worker`, and Interrupted even if the process had nothing to save."""
    told = False
    run = run_in_worker(task, task.folder.with_suffix(".log"))
    while True:
        try:
            event = next(run)
        except StopIteration as end:
            outcome: Outcome = end.value
            break
        told = told or isinstance(event, Interrupted)
        yield event
    if outcome.interrupted and not told:
        yield Interrupted(update=0, signal=outcome.interrupted, folder=task.folder)
    return outcome


def _begin_like(others: Sequence[Path], task: Task) -> None:
    """Give a new run the tokenizers and the tokenized corpus of another one, which would only come out the same."""
    config, folder = task.config, task.folder
    with FolderLock(folder):
        store = Store(folder)
        if store.model() is not None:
            return
        for other in others:
            model = _stored(other) if other != folder else None
            if model is None or (model.config.tokenizer, model.config.data) != (config.tokenizer, config.data):
                continue
            store.begin(Model(config=config, source=model.source, target=model.target))
            with suppress(OSError, shutil.Error):  # it is only built again
                shutil.copytree(other / "cache", folder / "cache", copy_function=os.link)
            return


def _stored(folder: Path) -> Model | None:
    try:
        return Store(folder).model()
    except ModelFolderError:  # it is told where its own turn comes
        return None


def _key(task: Task) -> str:
    """Changes with the weights, the settings and how they are measured; empty where there are no weights."""
    try:
        weights = Manifest.read(task.folder).files.get(WEIGHTS)
    except ModelFolderError:
        return ""
    if weights is None:
        return ""
    task = replace(task, folder=Path(weights.sha256))  # a folder that moved is the same
    return hashlib.sha256(json.dumps(task.to_dict()).encode()).hexdigest()


def read_rows(folder: Path) -> list[Row]:
    """The rows in measured.json; none where there is no such file, or one that cannot be read."""
    try:
        values = json.loads((folder / MEASURED).read_text(encoding="utf-8"))
        return [Row.from_dict(row) for row in values["rows"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write(folder: Path, rows: Mapping[str, Row]) -> None:
    text = json.dumps({"rows": [row.to_dict() for row in rows.values()]}, indent=1, ensure_ascii=False)
    replace_file(folder / MEASURED, f"{text}\n".encode(), synced=False)
