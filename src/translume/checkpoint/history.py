"""history.jsonl: the log of a model's training and evaluations, one JSON object per line, outside the manifest."""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from translume.checkpoint.model_card import rewrite_scores
from translume.checksums import sealed, unsealed
from translume.errors import ModelFolderError, refused

NAME = "history.jsonl"
EVALUATED, CALIBRATED = "evaluated", "calibrated"
"""Events that do not belong to training."""


def append_history(folder: Path, record: Mapping[str, Any], *, synced: bool = False) -> None:
    """Append one line, with its digest. An incomplete line, left by a crash, is terminated first.

    synced: flush the file to disk before returning; a training run does so when it saves.
    """
    with refused(folder / NAME, "cannot be written", ModelFolderError), open(folder / NAME, "ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(sealed(record, indent=None, ensure_ascii=False).encode())
        if synced:
            file.flush()
            os.fsync(file.fileno())


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return all lines in order, without damaged ones, which a warning names; empty if there is no file."""
    try:
        lines = (folder / NAME).read_bytes().splitlines(keepends=True) or [b""]  # which no run leaves empty
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ModelFolderError(f"{folder / NAME}: cannot be read: {error.strerror}") from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(unsealed(line)[0])
        except (ValueError, RecursionError):
            what = "damaged or incomplete, and left out; restore it from a copy, or delete the line"
            logging.getLogger(__name__).warning("%s:%d: %s", folder / NAME, number, what)
    return records


def data_of_history(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what went into a model: "training", "validation", "files", and "base", those of its base model, if any.

    The first three are those of the last start; "training" counts the pairs of a stream up to the last end, if it is
    later. Logs of earlier versions lack some of them.
    """
    started = [record for record in history if record.get("event") == "started"]
    if not started:
        return {}
    bases = [base for record in started if (base := record.get("base"))]
    data = {name: started[-1].get(name) for name in ("training", "validation", "files")}
    counted = [record["training"] for record in history if record.get("training")]
    return {**data, "training": counted[-1] if counted else None, "base": bases[-1] if bases else None}


def record_evaluation(folder: Path, record: Mapping[str, Any]) -> None:
    """Add an evaluation to a model's history, and all scores of its current weights to its card.

    record: the files' names as "source" and "reference", and "scores" as `Score.to_dict` gives them.
    """
    append_history(folder, {"event": EVALUATED, **record}, synced=True)
    rewrite_scores(folder, score_lines(read_history(folder)))


def is_evaluation(line: bytes) -> bool:
    """Return whether a line of the log is about an evaluation or a calibration, not about training, or is damaged."""
    try:
        record, _ = unsealed(line)
    except ValueError:
        return line.endswith(b"\n")  # else it was cut off when a process was killed
    return record.get("event") in (EVALUATED, CALIBRATED)


def files_of(record: Mapping[str, Any]) -> list[str]:
    """Return the files of an evaluation; one for a table, or for the documents of a language model."""
    return [*dict.fromkeys(str(record[side]) for side in ("source", "reference") if record.get(side))]


def score_lines(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each score since the last training, without folders; of repeated scores only the last one."""
    lines: dict[tuple[str, str], str] = {}
    for record in history:
        if record.get("event") == EVALUATED:
            on = ", ".join(dict.fromkeys(Path(file).name for file in files_of(record)))
            for score in record.get("scores", []):
                name = f"{score['title']}|{score['signature']}"
                value = math.inf if score["value"] is None else score["value"]
                lines[on, name] = f"{on}: {name} = {value:.{score.get('digits', 2)}f}"
        elif record.get("event") != CALIBRATED:
            lines = {}  # the weights were trained since
    return list(lines.values())
