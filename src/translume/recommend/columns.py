"""Which columns of a TSV file, or keys of a JSONL file, are source and target, or text and label."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from translume.config import DataSettings
from translume.data import read_lines, read_pairs
from translume.data.pairs import origins
from translume.errors import DataError, SettingsError
from translume.tasks import Task

Columns = tuple[int | str, ...]

LOOKED = 10_000
"""Lines by which a label is told from a text."""


def columns_told(told: str) -> Columns:
    """What --columns says: two numbers from 0, or two keys."""
    parts = [part.strip() for part in told.split(",")]
    if len(parts) != 2 or not all(parts):
        raise SettingsError(f"--columns: found '{told}', wanted two of them such as 0,1 or source,target")
    return tuple(int(part) if part.isascii() and part.isdigit() and len(part) < 10 else part for part in parts)


def columns_found(file: Path, task: Task) -> Columns:
    """The columns of a file that has two of them; empty where they stand as [data] expects them unless told.

    Raises DataError, which asks for --columns, where it cannot be told.
    """
    sides = " and ".join(task.keys)
    line = next(iter(read_lines(file)), None)
    if line is None:
        raise DataError(f"{file}: empty file, expected one {sides} per line")
    if is_json(file):
        return _keys(file, line, task)
    fields = line.split("\t")
    if len(fields) == 1:
        raise DataError(
            f"{file}:1: found no tab, wanted two parallel files, or one TSV or JSONL file with {sides} "
            "(named .jsonl, .ndjson or .json)"
        )
    if len(fields) > 2:
        raise DataError(f"{file}:1: found {len(fields)} columns; --columns 0,1 says which are {sides}, counted from 0")
    return (1, 0) if task.predicts == "classes" and _label_is_first(file) else ()


def language_of_columns(columns: Columns) -> tuple[str, str]:
    """The language codes that keys such as "en" or "translation.de" are; empty ones where they are none."""
    first, second = (str(column).rpartition(".")[2] for column in columns or ("", ""))
    codes = [re.fullmatch(r"[a-z]{2,3}([-_]\w+)?", name) for name in (first, second)]
    return (first, second) if all(codes) else ("", "")


def is_json(file: Path) -> bool:
    """Whether a file is read as JSON, an object a line, by its name."""
    (origin,) = origins(DataSettings(train=(str(file),)), "train")
    return origin.kind == "json"


def _keys(file: Path, line: str, task: Task) -> Columns:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # read_pairs says what is wrong with it
        return ()
    texts = dict(_texts(value)) if isinstance(value, dict) else {}
    if all(key in texts for key in task.keys):
        return ()
    if task.predicts == "classes" or len(texts) != 2:
        sides = " and ".join(task.keys)
        found = ", ".join(texts) or "none"
        raise DataError(f"{file}:1: found texts under: {found}; --columns KEY,KEY says which are {sides}")
    return tuple(texts)


def _texts(value: dict[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """The texts in an object and in those it holds, by the names that data.columns gives them."""
    for key, each in value.items():
        if isinstance(each, str):
            yield above + key, each
        elif isinstance(each, dict) and not above:
            yield from _texts(each, f"{key}.")


def _label_is_first(file: Path) -> bool:
    """Whether the first of two columns has fewer different values, as labels have."""
    pairs = islice(read_pairs(DataSettings(train=(str(file),)), "train"), LOOKED)
    first, second = (len(set(side)) for side in zip(*((pair.source, pair.target) for pair in pairs), strict=True))
    return first < second
