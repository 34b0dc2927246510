"""Find which columns of a TSV or CSV file, or keys of a JSONL file, are source and target, or text and label."""

import json
import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from translume.data import read_lines
from translume.data.findings import HEADER_WORDS
from translume.data.tables import first_row, first_rows, has_keys, read_objects, table_kind
from translume.errors import DataError, SettingsError
from translume.recommend.survey import is_language

Columns = tuple[int | str, ...]

SURVEYED_LINES = 10_000
"""Number of lines read to distinguish labels from texts."""
LANGUAGES = {
    **dict.fromkeys(("english", "englisch", "anglais", "inglés", "en"), "en"),
    **dict.fromkeys(("german", "deutsch", "allemand", "alemán", "de"), "de"),
    **dict.fromkeys(("french", "französisch", "français", "francés", "fr"), "fr"),
    **dict.fromkeys(("spanish", "spanisch", "espagnol", "español", "es"), "es"),
    **dict.fromkeys(("italian", "italienisch", "italien", "italiano", "it"), "it"),
    **dict.fromkeys(("chinese", "chinesisch", "chinois", "chino", "zh"), "zh"),
    **dict.fromkeys(HEADER_WORDS, ""),
}
"""Language codes by names of columns in lower case, as the first lines of spreadsheets have them; "" for a side."""
_FOR_TEXTS = "; --task language_model trains on the texts alone"


def parse_columns(option: str, *, template: bool = False) -> Columns:
    """Parse --columns: two numbers from 0, or two names; one with a template, which names the rest."""
    parts = [part.strip() for part in option.split(",")]
    if template and (len(parts) != 1 or not parts[0]):
        raise SettingsError(f"--columns: found '{option}' with --template, expected the target's column")
    if not template and (len(parts) != 2 or not all(parts)):
        raise SettingsError(f"--columns: found '{option}', expected two columns such as 0,1 or source,target")
    return tuple(int(part) if part.isascii() and part.isdigit() and len(part) < 10 else part for part in parts)


def find_columns(file: Path, keys: tuple[str, str], *, labelled: bool) -> Columns:
    """Return the columns of a file that has two of them; empty if they are the defaults of [data].

    keys: default keys of a JSONL or Parquet file.  labelled: whether one of the columns contains labels.
    Raises DataError, which suggests --columns, if the columns are not clear.
    """
    sides = " and ".join(keys)
    line = next(iter(read_objects(str(file)) if has_keys(str(file)) else read_lines(file)), None)
    if line is None:
        raise DataError(f"{file}: empty file, expected one {sides} per line")
    if has_keys(str(file)):
        return _find_keys(file, line, keys, labelled=labelled)
    fields = first_row(str(file))
    if not labelled and "text" in [field.strip().lower() for field in fields]:
        raise DataError(
            f"{file}:1: found columns {', '.join(map(repr, fields))}; choose {sides} with --columns A,B{_FOR_TEXTS}"
        )
    if len(fields) == 1:
        raise DataError(
            f"{file}:1: found no tab, expected two parallel files, or one TSV, CSV, JSONL or Parquet file with {sides} "
            f"(named .csv, .jsonl, .ndjson, .json or .parquet){'' if labelled else _FOR_TEXTS}"
        )
    known = [field.strip() for field in fields if _language(field) is not None]
    if len(fields) > 2:
        first, second = known[:2] if len(known) > 1 else _text_and_label(file) if labelled else ("0", "1")
        names = [field.strip() for field in fields] if len(known) > 1 else [*map(str, range(len(fields)))]
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
    kind = table_kind(str(file))
    if kind not in ("csv", "tsv") or (kind == "tsv" and labelled):
        return []
    fields = first_row(str(file))
    words = all(field.strip().isalpha() and len(field.strip()) > 1 for field in fields)
    return fields if kind == "csv" or words else []


def languages_of_columns(columns: Columns) -> tuple[str, str]:
    """Return the language codes in keys such as "en" or "translation.de", or empty strings."""
    if len(columns) != 2:
        return "", ""
    named = [(str(column), _language(str(column))) for column in columns]
    first, second = (column.rpartition(".")[2] if found is None else found for column, found in named)
    return (first, second) if is_language(first) and is_language(second) else ("", "")


def _language(name: str) -> str | None:
    """Return the language code that a name in the first line stands for, "" if it names a side; None for other texts.

    "Englisch (Original)" stands for "en", and "de-DE" and "de_AT" for "de".
    """
    word = name.partition("(")[0].strip().lower()
    regional = re.fullmatch(r"([a-z]{2})[-_][a-z]{2}", word)
    return LANGUAGES.get(regional[1] if regional else word)


def is_text(file: Path) -> bool:
    """Return whether a file is text without columns: no JSONL or CSV, no tab in its first lines, not empty."""
    if table_kind(str(file)) != "tsv":
        return False
    lines = list(islice(read_lines(file), SURVEYED_LINES))
    return bool(lines) and not any("\t" in line for line in lines)


def _find_keys(file: Path, line: str, keys: tuple[str, str], *, labelled: bool) -> Columns:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # reading the pairs reports the error
        return ()
    if not isinstance(value, dict):
        return ()
    if all(key in dict(texts_of(value, labels=True)) for key in keys):
        return ()
    texts = dict(texts_of(value, labels=labelled))
    if labelled or len(texts) != 2:
        found = ", ".join(texts) or "none"
        more = _FOR_TEXTS if not labelled and "text" in texts else ""
        raise DataError(
            f"{file}:1: found texts under: {found}; choose {' and '.join(keys)} with --columns KEY,KEY{more}"
        )
    return tuple(texts)


def texts_of(value: dict[str, object], above: str = "", *, labels: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the texts in an object and its inner objects, with their names for data.columns.

    labels: also whole numbers and truth values.
    """
    for key, each in value.items():
        if isinstance(each, str):
            yield above + key, each
        elif isinstance(each, int) and labels:
            yield above + key, json.dumps(each)
        elif isinstance(each, dict) and not above:
            yield from texts_of(each, f"{key}.", labels=labels)


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
