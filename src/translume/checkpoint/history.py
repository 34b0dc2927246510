"""history.jsonl: what happened while a model was trained, one JSON object a line, outside the manifest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from translume.errors import ModelFolderError

NAME = "history.jsonl"


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
