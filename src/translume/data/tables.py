"""Read columns of TSV, CSV, JSONL and Parquet files, and fill templates with them."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from string import Formatter
from typing import Any, Literal

from translume.data.addresses import opened
from translume.data.lines import count_lines, read_lines, unreadable, without_compression
from translume.errors import DataError, SettingsError, nearest, needed_by

Column = int | str
"""A key of JSONL or a name of Parquet; for TSV and CSV, a number from 0, or a name in the first line."""
TableKind = Literal["json", "csv", "tsv", "parquet"]
KINDS: Mapping[str, TableKind] = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
"""Formats of tables by the suffix of the file."""
DELIMITERS = (";", "\t", ",")
_SNIFFED_LINES = 50
_MAX_FIELD = 1 << 24
"""Maximum characters of a CSV cell, so that a quote that is never closed does not make one cell of all the rest."""
_LOOKED_AT = 1000
"""Rows of JSONL of which one must have each key; without it in a row, its text is missing there."""
_PARQUET_ROWS = 4096
"""Rows of Parquet in memory at a time."""


class RowError(DataError):
    """A row of a table that cannot be used; those after it can.

    texts: of the row, if it only lacks some, which are empty; else None.
    """

    def __init__(self, place: str, reason: str, texts: list[str] | None = None) -> None:
        super().__init__(f"{place}: {reason}")
        self.reason, self.texts = reason, texts


def table_kind(file: str) -> TableKind:
    """Return the format of a file by its name: "tsv" unless it is .jsonl, .ndjson, .json, .csv or .parquet."""
    return KINDS.get(suffix_of(file), "tsv")


def has_keys(file: str) -> bool:
    """Return whether the columns of a file have names only, as those of JSONL and Parquet, and no numbers."""
    return table_kind(file) in ("json", "parquet")


def suffix_of(file: str) -> str:
    """Return the suffix of a file's name in lower case, without that of a compression; empty if there is none."""
    return Path(without_compression(file)).suffix.lower()


@dataclass(frozen=True, slots=True)
class Template:
    """A text with columns in braces, such as "{question} | {passage}"; {{ and }} stand for braces."""

    parts: tuple[tuple[str, Column | None], ...]
    """Literal texts, each with the column that follows it, if any."""

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Parse a template; SettingsError if it names no column, or anything more than a column."""
        try:
            parts = tuple(Formatter().parse(text))
        except ValueError:
            parts = ()
        columns = [name for _, name, _, _ in parts if name is not None]
        if not columns or not all(columns) or any(form or conversion for _, _, form, conversion in parts):
            raise SettingsError(
                f"data.template: found '{text}', expected columns in braces such as '{{question}} | {{passage}}'"
            )
        return cls(tuple((literal, None if name is None else column_of(name)) for literal, name, _, _ in parts))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that the template names, each once."""
        return tuple(dict.fromkeys(column for _, column in self.parts if column is not None))

    def fill(self, values: dict[Column, str]) -> str:
        """Return the text with the values of the columns in place."""
        return "".join(literal + ("" if column is None else values[column]) for literal, column in self.parts)


def column_of(name: str) -> Column:
    """Return a column as it is written: a number, or a name."""
    return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else name


def read_columns(
    file: str, columns: Sequence[Column], *, exactly: bool = False, faults: list[str] | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number, from 1, and the texts in these columns for each row; empty ones for null.

    columns: if any is a name, the first line of a TSV or CSV file contains the names of its columns.
    exactly: refuse rows of TSV and CSV files that have more columns.
    faults: gets the reason before a row is yielded that cannot be used, which then has empty texts, or lacks a text.
    Raises DataError for a missing column, without `faults` also RowError, and SettingsError for a column that is no
    name or number.
    """
    for line, row in _rows(file, columns, exactly=exactly):
        if not isinstance(row, RowError):
            yield line, row
        elif faults is not None:
            faults.append(row.reason)
            yield line, [""] * len(columns)
        elif row.texts is not None:
            yield line, row.texts
        else:
            raise row


Rows = Iterator[tuple[int, list[str] | RowError]]


def _rows(file: str, columns: Sequence[Column], *, exactly: bool) -> Rows:
    kind = table_kind(file)
    if kind == "json":
        keys = [str(column) for column in columns]
        objects = (_object(text, f"{file}:{line}", keys) for line, text in enumerate(read_lines(file), 1))
        yield from _keyed_columns(file, keys, objects)
        return
    if kind == "parquet":
        keys = [str(column) for column in columns]
        yield from _keyed_columns(file, keys, _parquet_rows(file, keys))
        return
    rows = _csv_rows(file) if kind == "csv" else _tsv_rows(file)
    what = "columns" if kind == "csv" else "tab-separated fields"
    places = [_place(column) for column in columns if not isinstance(column, str)]
    if len(places) < len(columns):
        header = next(rows, None)
        if header is None:
            return
        line, names = header[0], [name.strip() for name in header[1]]
        places = [_named(file, line, names, column) for column in columns]
    count = max(places) + 1
    for line, fields in rows:
        if len(fields) < count or (exactly and len(fields) != count):
            expected = f"{count}" if exactly else f"at least {count}"
            yield line, RowError(f"{file}:{line}", f"{len(fields)} {what}, expected {expected}")
        else:
            yield line, [fields[place] for place in places]


def count_rows(file: str) -> int:
    """Return the number of rows of a Parquet file, and of lines of any other."""
    if table_kind(file) != "parquet":
        return count_lines(file)
    with _parquet(file) as table:
        return int(table.metadata.num_rows)


def read_objects(file: str) -> Iterator[str]:
    """Yield the rows of a JSONL or Parquet file as JSON."""
    if table_kind(file) != "parquet":
        yield from read_lines(file)
        return
    for row in _parquet_rows(file):
        yield json.dumps(row, default=str)


def first_rows(file: str, count: int) -> list[list[str]]:
    """Return the fields of the first lines, at most `count`, of a TSV or CSV file."""
    return [fields for _, fields in islice(_csv_rows(file) if table_kind(file) == "csv" else _tsv_rows(file), count)]


def first_row(file: str) -> list[str]:
    """Return the fields of the first line of a TSV or CSV file; none if it is empty."""
    return next(iter(first_rows(file, 1)), [])


def _place(column: Column) -> int:
    if not isinstance(column, int) or column < 0:
        raise SettingsError(f"data.columns: found {column!r}, expected a number from 0, or a name in the first line")
    return column


def _named(file: str, line: int, names: list[str], column: Column) -> int:
    if not isinstance(column, str):
        return _place(column)
    if column not in names:
        raise DataError(f"{file}:{line}: no column '{column}'{nearest(column, names)}")
    if names.count(column) > 1:
        raise DataError(f"{file}:{line}: {names.count(column)} columns '{column}', expected one; rename the others")
    return names.index(column)


def _tsv_rows(file: str) -> Iterator[tuple[int, list[str]]]:
    for line, text in enumerate(read_lines(file), 1):
        yield line, text.split("\t")


def _csv_rows(file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows of a CSV file whose delimiter is a semicolon (as German Excel writes), a tab or a comma."""
    csv.field_size_limit(_MAX_FIELD)
    lines = (f"{line}\n" for line in read_lines(file))
    first = list(islice(lines, _SNIFFED_LINES))
    skipped = 0
    if first and first[0].lower().startswith("sep=") and len(first[0]) == len("sep=;\n"):  # a line that Excel writes
        delimiter, skipped = first.pop(0)[4], 1
    else:
        delimiter = _delimiter(first)
    reader = csv.reader(chain(first, lines), delimiter=delimiter, strict=True)
    begin = 1
    try:
        for fields in reader:
            yield begin + skipped, fields
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{file}:{begin + skipped}: not CSV: {error}") from None


def _delimiter(lines: list[str]) -> str:
    """Return the delimiter that gives all rows the same number of fields, or else the first row the most."""
    counts = {}
    for delimiter in DELIMITERS:
        try:
            rows = [len(fields) for fields in csv.reader(lines, delimiter=delimiter)]
        except csv.Error:
            rows = []
        if rows and rows[0] > 1 and len(set(rows)) == 1:
            return delimiter
        counts[delimiter] = rows[0] if rows else 0
    return max(reversed(DELIMITERS), key=counts.__getitem__)


def _keyed_columns(file: str, keys: Sequence[str], objects: Iterable[dict[str, object] | RowError]) -> Rows:
    """Yield the texts under keys of a file's rows. Raises DataError for a key that none of the first rows has."""
    rows = enumerate(objects, 1)
    first, lacking, names = [], list(keys), ""
    for line, row in islice(rows, _LOOKED_AT):  # usually one
        first.append((line, row))
        if isinstance(row, RowError):
            break
        names = names or ", ".join(row)
        lacking = [key for key in lacking if not _has(row, key)]
        if not lacking:
            break
    else:
        if first:
            raise DataError(f"{file}:1: no '{lacking[0]}'; it has: {names or 'nothing'}")
    for line, row in chain(first, rows):
        yield line, row if isinstance(row, RowError) else _texts(row, keys, f"{file}:{line}")


def _object(text: str, place: str, keys: Sequence[str]) -> dict[str, object] | RowError:
    """Return the object in a line of JSONL."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # a number of thousands of digits is a ValueError, too
        begun = "the beginning of a JSON array" if place.endswith(":1") and text.strip() == "[" else "not JSON"
        return RowError(place, f"{begun}; expected one object a line")
    if isinstance(value, dict):
        return value
    expected = " and ".join(f"'{key}'" for key in keys)
    found = "a JSON array" if isinstance(value, list) else "not a JSON object"
    return RowError(place, f"{found}; expected one object a line, with {expected}")


def _parquet_rows(file: str, keys: Sequence[str] = ()) -> Iterator[dict[str, object]]:
    """Yield the rows of a Parquet file, with only the columns of these keys if there are any."""
    with _parquet(file) as table:
        names = table.schema_arrow.names
        chosen = [key if key in names else key.split(".")[0] for key in keys]
        for key, name in zip(keys, chosen, strict=True):
            if name not in names:
                raise DataError(f"{file}: no column '{key}'{nearest(key, names)}")
        for batch in table.iter_batches(_PARQUET_ROWS, columns=chosen or None, use_threads=False):
            yield from batch.to_pylist()


@contextmanager
def _parquet(file: str) -> Iterator[Any]:
    """Open a Parquet file. Raises SettingsError without pyarrow, and DataError for a file that cannot be read."""
    with needed_by(file):
        import pyarrow
        import pyarrow.parquet
    try:
        with opened(file) as raw, pyarrow.parquet.ParquetFile(raw) as table:
            yield table
    except pyarrow.ArrowException as error:
        raise DataError(f"{file}: not Parquet: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise DataError(unreadable(file, error)) from None


def _texts(value: dict[str, object], keys: Sequence[str], place: str) -> list[str] | RowError:
    """Return the texts under keys, or why the row cannot be used."""
    texts, missing = [], ""
    for key in keys:
        text = _value_at(value, key)
        if isinstance(text, int):
            text = json.dumps(text)
        if text is None:
            text, missing = "", missing or f"'{key}' is {'null' if _has(value, key) else 'missing'}"
        if not isinstance(text, str):
            return RowError(place, f"'{key}' is not text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return RowError(place, f"'{key}' holds half a surrogate pair, which is not text")
        texts.append(text)
    return RowError(place, missing, texts) if missing else texts


_MISSING: Any = object()


def _has(value: dict[str, object], key: str) -> bool:
    return _value_at(value, key, _MISSING) is not _MISSING


def _value_at(value: dict[str, object], key: str, missing: object = None) -> object:
    """Return the value under a key; "translation.de" also reads {"translation": {"de": …}}."""
    if key in value:
        return value[key]
    content: object = value
    for part in key.split("."):
        content = content.get(part, missing) if isinstance(content, dict) else missing
    return content
