"""history.jsonl: the log of a model's training and evaluations, one JSON object per line, outside the manifest."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from translume.checkpoint.model_card import rewrite_scores
from translume.errors import ModelFolderError

NAME = "history.jsonl"
EVALUATED, CALIBRATED = "evaluated", "calibrated"
"""Events that are no part of training."""


def append_history(folder: Path, record: Mapping[str, Any]) -> None:
    """Add one line; a line that a crash left half written is closed first, so that it spoils no other."""
    try:
        with open(folder / NAME, "ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise ModelFolderError(f"{folder / NAME}: cannot be written: {error.strerror}") from None


def read_history(folder: Path) -> list[dict[str, Any]]:
    """All lines in order, without those that a crash left half written; empty where nothing was recorded."""
    records = []
    try:
        with open(folder / NAME, "rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    records.append(record)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ModelFolderError(f"{folder / NAME}: cannot be read: {error.strerror}") from None
    return records


def record_evaluation(folder: Path, record: Mapping[str, Any]) -> None:
    """Add an evaluation to the history of a model, and to its card all scores of its present weights.

    record: the files' names as "source" and "reference", and "scores" as `Score.to_dict` gives them.
    """
    append_history(folder, {"event": EVALUATED, **record})
    rewrite_scores(folder, score_lines(read_history(folder)))


def score_lines(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each score measured since the last training; of one measured twice, the last. No folders are named."""
    lines: dict[tuple[str, str], str] = {}
    for record in history:
        if record.get("event") == EVALUATED:
            files = dict.fromkeys(Path(str(record.get(side, ""))).name for side in ("source", "reference"))
            on = ", ".join(files)
            for score in record.get("scores", []):
                name = f"{score['title']}|{score['signature']}"
                lines[on, name] = f"{on}: {name} = {score['value']:.2f}"
        elif record.get("event") != CALIBRATED:
            lines = {}  # of weights that were trained on since
    return list(lines.values())
