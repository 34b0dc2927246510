"""Find the columns of tables with training data, and languages in the names of columns and files."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from translume.data.findings import HEADER_WORDS
from translume.data.lines import read_lines, without_compression
from translume.data.tables import column_of, first_row, first_rows, has_keys, read_objects, table_kind
from translume.errors import DataError, SettingsError
from translume.experiments.table import table

Columns = tuple[int | str, ...]

SURVEYED_LINES = 10_000
"""Number of lines read to distinguish labels from texts."""
_KEYED_ROWS = 100
"""Rows whose keys are taken together, since a row may lack some."""
_FOR_TEXTS = "; --task language_model trains on the texts alone"


def is_language(code: str) -> bool:
    """Return whether a word is a language code: "en", "zh-Hant", or three letters that are no usual suffix of files."""
    language = re.split("[-_]", code)[0]
    known = language in table()["codes"].split() if len(language) == 2 else language not in table()["no_codes"].split()
    return known and bool(re.fullmatch(r"[a-z]{2,3}([-_]\w+)?", code))


def language_of(path: Path) -> str:
    """Return the language code at the end of a file name ("train.en.gz": "en"), or an empty string."""
    _, dot, suffix = without_compression(path.name).rpartition(".")
    return suffix if dot and is_language(suffix) else ""


def languages_of(path: Path) -> tuple[str, str]:
    """Return the language codes in the name of a file with both sides ("train.en-de.tsv"), or empty strings."""
    for part in reversed(path.name.split(".")[1:]):
        codes = part.split("-")
        if len(codes) == 2 and all(map(is_language, codes)):
            return codes[0], codes[1]
    return "", ""


def languages_of_columns(columns: Columns) -> tuple[str, str]:
    """Return the language codes in keys such as "en" or "translation.de", or empty strings."""
    named = [(str(column), _language(str(column))) for column in columns]
    codes = [column.rpartition(".")[2] if code is None else code for column, code in named]
    return (codes[0], codes[1]) if len(codes) == 2 and all(map(is_language, codes)) else ("", "")


def _language(name: str) -> str | None:
    """Return the language code that a name in the first line stands for, "" if it names a side; None for other texts.

    "Englisch (Original)" stands for "en", and "de-DE" and "de_AT" for "de".
    """
    word = name.partition("(")[0].strip().lower()
    regional = re.fullmatch(r"([a-z]{2})[-_][a-z]{2}", word)
    word = regional[1] if regional else word
    code = next((code for code, names in table()["languages"].items() if word in names), None)
    return "" if word in HEADER_WORDS else code


def parse_columns(option: str, *, template: bool = False) -> Columns:
    """Parse --columns: two numbers from 0, or two names; one with a template, which names the rest."""
    parts = [part.strip() for part in option.split(",")]
    if len(parts) != 2 - template or not all(parts):
        wanted = " with --template, expected the target's column"
        wanted = wanted if template else ", expected two columns such as 0,1 or source,target"
        raise SettingsError(f"--columns: found '{option}'{wanted}")
    return tuple(map(column_of, parts))


def find_columns(file: Path, keys: tuple[str, str], *, labelled: bool) -> Columns:
    """Return the columns of a file that has two of them; empty if they are the defaults of [data].

    keys: default keys of a JSONL or Parquet file.  labelled: whether one of the columns contains labels.
    Raises DataError, which suggests --columns, if the columns are not clear.
    """
    sides = " and ".join(keys)
    lines = list(islice(read_objects(str(file)) if has_keys(str(file)) else read_lines(file), _KEYED_ROWS))
    if not lines:
        raise DataError(f"{file}: empty file, expected one {sides} per line")
    if has_keys(str(file)):
        return _find_keys(file, lines, keys, labelled=labelled)
    fields = [field.strip() for field in first_row(str(file))]
    if not labelled and "text" in map(str.lower, fields):
        found = ", ".join(map(repr, first_row(str(file))))
        raise DataError(f"{file}:1: found columns {found}; choose {sides} with --columns A,B{_FOR_TEXTS}")
    if len(fields) == 1:
        raise DataError(
            f"{file}:1: found no tab, expected two parallel files, or one TSV, CSV, JSONL or Parquet file with {sides} "
            f"(named .csv, .jsonl, .ndjson, .json or .parquet){'' if labelled else _FOR_TEXTS}"
        )
    known = [field for field in fields if _language(field) is not None]
    if len(fields) > 2:
        first, second = known[:2] if len(known) > 1 else _text_and_label(file) if labelled else ("0", "1")
        names = fields if len(known) > 1 else [*map(str, range(len(fields)))]
        more = next((name for name in names if name not in (first, second)), second)
        # Without names or labels, the target is more likely the last column than the second.
        target, part = (second, more) if labelled or len(known) > 1 else (more, second)
        raise DataError(
            f"{file}:1: found {len(fields)} columns; choose {sides} with --columns {shlex.quote(f'{first},{second}')} "
            "(by name or counted from 0), or make a source of several columns "
            f"with --template '{{{first}}} {{{part}}}' --columns {shlex.quote(target)}"
        )
    if len(known) == 2:
        return tuple(known)
    return (1, 0) if labelled and _text_and_label(file) == ("1", "0") else ()


def unknown_names(file: Path, *, labelled: bool) -> list[str]:
    """Return the first row if it may be names of columns: of CSV any, of TSV words of two letters or more.

    labelled: whether one column contains labels. Then TSV is left out, since a label that occurs once is noticed.
    """
    kind, fields = table_kind(str(file)), first_row(str(file))
    words = all(field.strip().isalpha() and len(field.strip()) > 1 for field in fields)
    return fields if kind == "csv" or (kind == "tsv" and words and not labelled) else []


def is_text(file: Path) -> bool:
    """Return whether a file is text without columns: no JSONL or CSV, no tab in its first lines, not empty."""
    lines = islice(read_lines(file), SURVEYED_LINES) if table_kind(str(file)) == "tsv" else ()
    tabs = ["\t" in line for line in lines]
    return bool(tabs) and not any(tabs)


def _find_keys(file: Path, lines: Iterable[str], keys: tuple[str, str], *, labelled: bool) -> Columns:
    value: dict[str, Any] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # reading the pairs reports the error
            break
        if not isinstance(row, dict):
            break
        _add(value, row)
    if not value or set(keys) <= set(dict(texts_of(value, labels=True))):
        return ()
    texts = dict(texts_of(value, labels=labelled))
    if labelled or len(texts) != 2:
        more = _FOR_TEXTS if not labelled and "text" in texts else ""
        found = f"found texts under: {', '.join(texts) or 'none'}"
        raise DataError(f"{file}:1: {found}; choose {' and '.join(keys)} with --columns KEY,KEY{more}")
    return tuple(texts)


def _add(value: dict[str, Any], row: dict[str, Any]) -> None:
    """Add the keys of a row, also of inner objects, to those of earlier rows, which may have null there."""
    for key, content in row.items():
        if isinstance(content, dict) and isinstance(value.get(key) or {}, dict):
            value[key] = value.get(key) or {}
            _add(value[key], content)
        elif value.get(key) is None:
            value[key] = content


def texts_of(value: dict[str, object], above: str = "", *, labels: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the texts in an object and its inner objects, with their names for data.columns.

    labels: also integers and truth values.
    """
    for key, content in value.items():
        if isinstance(content, str) or (isinstance(content, int) and labels):
            yield above + key, content if isinstance(content, str) else json.dumps(content)
        elif isinstance(content, dict) and not above:
            yield from texts_of(content, f"{key}.", labels=labels)


def _text_and_label(file: Path) -> tuple[str, str]:
    """Return the numbers of the columns that are most likely the text and its label, judged by the first lines.

    The label has the fewest distinct values, but more than one; of equals it is the last. The text is the longest of
    the other columns.
    """
    rows = first_rows(str(file), SURVEYED_LINES)
    columns = list(zip(*(row for row in rows if len(row) == len(rows[0])), strict=True))
    counts = [len(set(column)) for column in columns]
    label = min(range(len(columns)), key=lambda number: (counts[number] < 2, counts[number], -number))
    texts = [number for number in range(len(columns)) if number != label]
    return str(max(texts, key=lambda number: sum(map(len, columns[number])))), str(label)
