"""Find which columns of a TSV file, or keys of a JSONL file, are source and target, or text and label."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from translume.config import DataSettings
from translume.data import read_lines, read_pairs
from translume.data.pairs import origins
from translume.errors import DataError, SettingsError

Columns = tuple[int | str, ...]

SURVEYED_LINES = 10_000
"""Number of lines read to distinguish labels from texts."""


def parse_columns(option: str) -> Columns:
    """Parse --columns: two numbers from 0, or two keys."""
    parts = [part.strip() for part in option.split(",")]
    if len(parts) != 2 or not all(parts):
        raise SettingsError(f"--columns: found '{option}', expected two columns such as 0,1 or source,target")
    return tuple(int(part) if part.isascii() and part.isdigit() and len(part) < 10 else part for part in parts)


def find_columns(file: Path, keys: tuple[str, str], *, labelled: bool) -> Columns:
    """Return the columns of a file that has two of them; empty if they are the defaults of [data].

    keys: default keys of a JSONL file.  labelled: whether one of the columns contains labels.
    Raises DataError, which suggests --columns, if the columns are not clear.
    """
    sides = " and ".join(keys)
    line = next(iter(read_lines(file)), None)
    if line is None:
        raise DataError(f"{file}: empty file, expected one {sides} per line")
    if is_json(file):
        return _find_keys(file, line, keys, labelled=labelled)
    fields = line.split("\t")
    if len(fields) == 1:
        raise DataError(
            f"{file}:1: found no tab, expected two parallel files, or one TSV or JSONL file with {sides} "
            "(named .jsonl, .ndjson or .json)"
        )
    if len(fields) > 2:
        raise DataError(f"{file}:1: found {len(fields)} columns; --columns 0,1 says which are {sides}, counted from 0")
    return (1, 0) if labelled and _label_is_first(file) else ()


def languages_of_columns(columns: Columns) -> tuple[str, str]:
    """Return the language codes in keys such as "en" or "translation.de", or empty strings."""
    first, second = (str(column).rpartition(".")[2] for column in columns or ("", ""))
    codes = [re.fullmatch(r"[a-z]{2,3}([-_]\w+)?", name) for name in (first, second)]
    return (first, second) if all(codes) else ("", "")


def is_json(file: Path) -> bool:
    """Return whether a file is read as JSONL, by its name."""
    (origin,) = origins(DataSettings(train=(str(file),)), "train")
    return origin.kind == "json"


def is_text(file: Path) -> bool:
    """Return whether a file is text without columns: neither JSONL nor with a tab in its first lines, nor empty."""
    if is_json(file):
        return False
    lines = list(islice(read_lines(file), SURVEYED_LINES))
    return bool(lines) and not any("\t" in line for line in lines)


def _find_keys(file: Path, line: str, keys: tuple[str, str], *, labelled: bool) -> Columns:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # reading the pairs reports the error
        return ()
    texts = dict(_texts(value)) if isinstance(value, dict) else {}
    if all(key in texts for key in keys):
        return ()
    if labelled or len(texts) != 2:
        found = ", ".join(texts) or "none"
        raise DataError(f"{file}:1: found texts under: {found}; --columns KEY,KEY says which are {' and '.join(keys)}")
    return tuple(texts)


def _texts(value: dict[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts in an object and its inner objects, with their names for data.columns."""
    for key, each in value.items():
        if isinstance(each, str):
            yield above + key, each
        elif isinstance(each, dict) and not above:
            yield from _texts(each, f"{key}.")


def _label_is_first(file: Path) -> bool:
    """Return whether the first of two columns has fewer distinct values, as labels have."""
    pairs = islice(read_pairs(DataSettings(train=(str(file),)), "train"), SURVEYED_LINES)
    first, second = (len(set(side)) for side in zip(*((pair.source, pair.target) for pair in pairs), strict=True))
    return first < second
