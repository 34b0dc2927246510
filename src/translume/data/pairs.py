"""Read pairs or documents lazily from the files in [data]: two parallel files, a table, or text."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

from translume.config.data import DataSettings
from translume.config.languages import NO_DIRECTION, Direction
from translume.data.addresses import is_address, matching
from translume.data.lines import count_lines, read_lines, refuse_one_input, unequal_lengths
from translume.data.tables import Column, Template, has_keys, read_columns, table_kind
from translume.errors import DataError, SettingsError
from translume.tasks import find_task

Split = Literal["train", "valid"]
SPLITS: tuple[Split, ...] = ("train", "valid")
_PAIR_KEYS = ("source", "target")
_SHOWN = 200


class Pair(NamedTuple):
    """A source and its target. `file` and `line` (from 1) say where the source was read.

    A document of a language model is a target with an empty source. A tuple, because corpora have millions of them and
    a frozen dataclass takes several times as long to create. target_file: where the target was read; empty: `file`.
    document: names its document: the place of the first pair; empty if there are none.
    """

    source: str
    target: str
    file: str
    line: int
    target_file: str = ""
    document: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the pair as a JSON object, without the place of its target."""
        return {"source": self.source, "target": self.target, "file": self.file, "line": self.line}

    def shortened(self, end: str = "") -> "Pair":
        """Return the pair with at most 200 characters of each text, as an example.  end: of a text that was longer."""
        source, target = (text if len(text) <= _SHOWN else text[:_SHOWN] + end for text in self[:2])
        return self._replace(source=source, target=target)

    def shown(self) -> str:
        """Return the place and both texts as one line."""
        return f"{self.file}:{self.line}: {self.source!r} | {self.target!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A source of pairs: two parallel files, or one table (`target_file` is empty).

    documents: where the documents of a text file end, as in `data.documents`; empty for a file of pairs.
    borders: where the documents of a file of pairs end: "blank_line", "file" or "column"; empty: there are none.
    document_column: the column for the last; the value is another in each document.
    direction: its languages.
    """

    file: str
    target_file: str
    columns: tuple[Column, ...]
    weight: float
    template: str = ""
    documents: str = ""
    borders: str = ""
    document_column: Column = ""
    direction: Direction = NO_DIRECTION
    paths: bool = False
    """Whether the sources are paths of files, relative to the folder of `file`."""
    both: bool = False
    """Whether documents are their own sources, to be denoised."""
    may_be_empty: bool = False
    """Whether a file without pairs is no error: one of several."""

    @property
    def files(self) -> tuple[str, ...]:
        """The one or two paths."""
        return (self.file, self.target_file) if self.target_file else (self.file,)

    @property
    def kind(self) -> str:
        """The format of the files: "parallel", or "json", "tsv" and so on; for documents, how they are divided."""
        if self.documents:
            kind = "json documents" if self._tabled else f"documents by {self.documents}"
            return f"{kind}, denoised" if self.both else kind
        return "parallel" if self.target_file else table_kind(self.file)

    def read(self, faults: list[str] | None = None) -> Iterator[Pair]:
        """Yield the pairs. Raises DataError for an empty file and for files of unequal length.

        faults: as for `read_columns`, if the file is a table.
        """
        folder, empty = Path(self.file).parent, True
        for pair in self._in_documents(self._pairs(faults)) if self.borders else self._pairs(faults):
            empty = False
            if self.both:
                pair = pair._replace(source=pair.target)
            yield pair._replace(source=pair.source and str(folder / pair.source)) if self.paths else pair
        if empty and not self.may_be_empty:
            expected = "text" if self.documents else "one sentence a line"
            raise DataError(f"{self.file}: empty file, expected {expected}")

    def _in_documents(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """Yield pairs with the names of their documents, without the blank lines between these."""
        name = value = ""
        for pair in pairs:
            if self.borders == "blank_line" and not pair.source.strip() and not pair.target.strip():
                name = ""
                continue
            if not name or pair.document != value:  # of a table, `document` is the value of the column
                name, value = f"{pair.file}:{pair.line}", pair.document
            yield pair._replace(document=name)

    @property
    def _tabled(self) -> bool:
        """Whether documents are the texts of a table rather than lines of a text file."""
        return has_keys(self.file) or table_kind(self.file) == "csv"

    def _pairs(self, faults: list[str] | None) -> Iterator[Pair]:
        if self.target_file:
            return _parallel(self.file, self.target_file)
        if self.documents:
            return _documents_of_table(self.file) if self._tabled else _documents(self.file, self.documents)
        return _table(self, faults)

    def check_lengths(self) -> None:
        """Raise DataError if two parallel files differ in length: a quick check before hours of tokenization."""
        if self.target_file:
            refuse_one_input(self.file, self.target_file)
            counts = count_lines(self.file), count_lines(self.target_file)
            if counts[0] != counts[1]:
                raise DataError(unequal_lengths(self.file, self.target_file, counts))


def read_pairs(settings: DataSettings, split: Split) -> Iterator[Pair]:
    """Yield all pairs of a split in the order of the files: parallel files first, then tables; each file once.

    Raises DataError for a missing or empty file, for parallel files of unequal length and for lines that are not pairs.
    """
    empty = True
    places = origins(settings, split)
    for origin in places:
        for pair in origin.read():
            empty = False
            yield pair
    if places and empty:
        raise DataError(f"{places[0].file}: empty file, like all {len(places)} of them; expected one sentence a line")


def origins(settings: DataSettings, split: Split) -> tuple[Origin, ...]:
    """Return the origins of a split, patterns expanded; empty only for "valid".

    Raises SettingsError if the lists do not match.
    """
    training = split == "train"
    sources = settings.train_source if training else settings.valid_source
    targets = settings.train_target if training else settings.valid_target
    both = settings.train if training else settings.valid
    own_weights = settings.weights if training else ()
    if len(sources) == len(targets) and not settings.corpus:
        weights = own_weights if len(own_weights) == len(sources) + len(both) else ()
        sources, targets, both, expanded = _expanded(split, sources, targets, both, weights)
        own_weights = expanded or own_weights
    if len(sources) != len(targets):
        raise SettingsError(
            f"data.{split}_source: {len(sources)} files, but data.{split}_target has {len(targets)}; "
            "expected as many of each"
        )
    if settings.corpus:
        return _of_corpora(settings, split)
    count = len(sources) + len(both)
    denoised = settings.noise is not None
    reader = "data.objective = 'denoise'" if denoised else "a language model"
    documents = settings.documents if denoised or find_task(settings.task).reads == "documents" else ""
    if documents and sources:
        raise SettingsError(f"data.{split}_source: {reader} reads documents; expected data.{split}")
    if documents and training and not count:
        raise SettingsError("data: no training files; expected data.train (text files)")
    for name in ("columns", "template"):
        if documents and getattr(settings, name):
            raise SettingsError(f"data.{name}: {reader} reads whole lines, or the key 'text' of JSONL files")
    if training and not count:
        raise SettingsError(
            "data: no training files; expected data.train_source and data.train_target, or data.train (a table)"
        )
    weights = own_weights or (1.0,) * count
    if len(weights) != count:
        raise SettingsError(f"data.weights: {len(weights)} numbers, expected {count}, one for each training file")
    if not all(0 <= weight < 1e6 for weight in weights) or not (sum(weights) or not count):
        raise SettingsError("data.weights: expected numbers from 0, such as 1 or 2.5, not all 0")
    _check_columns(settings)
    for script in (settings.cleaning.source_script, settings.cleaning.target_script):
        if script:
            from translume.data.scripts import refuse_unknown

            refuse_unknown(script)
    origin = Origin(
        file="",
        target_file="",
        columns=(),
        weight=1.0,
        direction=Direction(source=settings.source_language, target=settings.target_language),
        paths=bool(settings.source.reader),
        may_be_empty=count > 1,
    )
    ends = "" if documents or settings.documents == "line" else settings.documents
    of_rows = "column" if settings.document_column != "" else ends.replace("blank_line", "")
    if settings.context.used:
        found = f"data.documents: found '{settings.documents}' for"
        if sources and not ends:
            raise SettingsError(f"{found} {sources[0]}, expected 'blank_line' or 'file' for data.context")
        if both and not of_rows:
            raise SettingsError(f"{found} {both[0]}, expected 'file' or data.document_column for data.context")
    origin = replace(origin, borders=ends)
    parallel = zip(sources, targets, weights, strict=False)
    tables = zip(both, weights[len(sources) :], strict=True)
    table = replace(
        origin,
        template=settings.template,
        documents=documents,
        borders=of_rows,
        document_column=settings.document_column,
        both=denoised,
    )
    return (
        *(replace(origin, file=source, target_file=target, weight=weight) for source, target, weight in parallel),
        *(replace(table, file=file, columns=_columns(settings, file), weight=weight) for file, weight in tables),
    )


def _expanded(
    split: Split, sources: tuple[str, ...], targets: tuple[str, ...], both: tuple[str, ...], weights: tuple[float, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[float, ...]]:
    """Return the files that patterns such as "corpus/*.en.zst" stand for, in the order of their names.

    The weight of a pattern is that of each of its files. Raises SettingsError as `expand_pairs` does.
    """
    own_sources, own_targets, own_both, own_weights = list[str](), list[str](), list[str](), list[float]()
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        first, second = expand_pairs(source, target, f"data.{split}_source", f"data.{split}_target")
        own_sources += first
        own_targets += second
        own_weights += weights[number : number + 1] * len(first)
    for number, file in enumerate(both, len(sources)):
        files = expand_pattern(file, f"data.{split}")
        own_both += files
        own_weights += weights[number : number + 1] * len(files)
    return tuple(own_sources), tuple(own_targets), tuple(own_both), tuple(own_weights)


def expand_pairs(source: str, target: str, place: str, target_place: str) -> tuple[list[str], list[str]]:
    """Return the files of two patterns, which are pairs in the order of their names.

    place, target_place: the settings or options of the patterns. Raises SettingsError for a pattern without files, for
    different numbers of files, and for names that do not correspond: those of all pairs must differ in the same words.
    """
    first, second = expand_pattern(source, place), expand_pattern(target, target_place)
    if len(first) != len(second):
        raise SettingsError(
            f"{place}: {source} stands for {len(first)} files, but {target} for {len(second)}; expected as many of each"
        )
    differences = [_difference(*names) for names in zip(first, second, strict=True)]
    if len(set(differences)) > 1:
        ((usual, count),) = Counter(differences).most_common(1)
        number = next(number for number, each in enumerate(differences) if each != usual or count == 1)
        raise SettingsError(
            f"{place}: {source} and {target}: {first[number]} would be paired with {second[number]}, whose name does "
            "not correspond; expected names that differ in the language only, or a list of the files"
        )
    return first, second


_NAME_PARTS = re.compile(r"\d+|[^\W\d_]+")


def _difference(source: str, target: str) -> tuple[tuple[str, str], ...]:
    """Return the words and numbers in which two paths differ."""
    source_parts, target_parts = ([each.lstrip("0") for each in _NAME_PARTS.findall(path)] for path in (source, target))
    return tuple((a, b) for a, b in zip_longest(source_parts, target_parts, fillvalue="") if a != b)


def refuse_pipes(settings: DataSettings) -> None:
    """Raise DataError for a file of pairs that can be read only once, such as a pipe, and would block or be empty."""
    for split in SPLITS:
        for file in (file for origin in origins(settings, split) for file in origin.files):
            refuse_pipe(file)


def refuse_pipe(file: Path | str) -> None:
    """Raise DataError for a pipe or device. Does not open it, which may block."""
    if not is_address(file) and Path(file).exists() and not Path(file).is_file() and not Path(file).is_dir():
        raise DataError(
            f"{file}: a pipe or device, which can be read only once; expected a file: write it to one first"
        )


def expand_pattern(pattern: str, place: str) -> list[str]:
    """Return the sorted files that match a pattern with * ? or []; the name of a file, or without these, as it is.

    ** stands for any folders. It may be an address. Raises SettingsError, naming `place`, if there are none.
    """
    if not has_magic(pattern) or Path(pattern).exists():
        return [pattern]
    if is_address(pattern):
        files = matching(pattern)
    else:
        files = sorted(each for each in glob(pattern, recursive=True) if Path(each).is_file())
    if not files:
        raise SettingsError(f"{place}: {pattern}: no such file")
    return files


def _of_corpora(settings: DataSettings, split: Split) -> tuple[Origin, ...]:
    """Return the origins of all corpora, corpus after corpus."""
    by_corpus = []
    for number, corpus in enumerate(settings.corpus):
        try:
            by_corpus.append(origins(settings.of_corpus(corpus), split))
        except SettingsError as error:
            raise SettingsError(str(error).replace("data", f"data.corpus.{number}", 1)) from None
    for number, places in enumerate(by_corpus):
        if not places and any(by_corpus):
            raise SettingsError(
                f"data.corpus.{number}: no validation files, but another corpus has some; expected them in all or none"
            )
    return tuple(place for places in by_corpus for place in places)


def _check_columns(settings: DataSettings) -> None:
    """Raise SettingsError if [data] has too many or too few columns, or columns but no file that has any."""
    if settings.template:
        Template.parse(settings.template)
        if len(settings.columns) > 1:
            found = len(settings.columns)
            raise SettingsError(f"data.columns: {found} columns, expected 1 with data.template: the target")
    elif settings.columns and len(settings.columns) != 2:
        raise SettingsError(f"data.columns: {len(settings.columns)} columns, expected 2: source and target")
    for name in ("columns", "template"):
        if getattr(settings, name) and not (settings.train or settings.valid):
            raise SettingsError(
                f"data.{name}: there is no TSV, CSV or JSONL file; expected one in data.train or data.valid"
            )


def source_columns(settings: DataSettings, file: str) -> tuple[Column, ...]:
    """Return the columns of a table that make its sources."""
    if settings.template:
        return Template.parse(settings.template).columns
    return (_columns(settings, file) or _default_columns(file))[:1]


def _default_columns(file: str) -> tuple[Column, Column]:
    return _PAIR_KEYS if has_keys(file) else (0, 1)


def _columns(settings: DataSettings, file: str) -> tuple[Column, ...]:
    """Return the columns to read; empty for the default of pairs, and for documents."""
    keys = find_task(settings.task).keys
    if settings.template:
        return settings.columns or keys[1:]
    return settings.columns or (keys if has_keys(file) and keys != _PAIR_KEYS else ())


def _parallel(source_file: str, target_file: str) -> Iterator[Pair]:
    refuse_one_input(source_file, target_file)
    sources, targets = read_lines(source_file), read_lines(target_file)
    for line, (source, target) in enumerate(zip_longest(sources, targets), 1):
        if source is None or target is None:
            rest = 1 + sum(1 for _ in (targets if source is None else sources))
            counts = (line - 1, line - 1 + rest) if source is None else (line - 1 + rest, line - 1)
            raise DataError(unequal_lengths(source_file, target_file, counts))
        yield Pair(source, target, source_file, line, target_file)


def _table(origin: Origin, faults: list[str] | None) -> Iterator[Pair]:
    """Yield the pairs of a table; without columns, a JSONL file has keys, another file exactly two columns."""
    file, columns, template = origin.file, origin.columns, Template.parse(origin.template) if origin.template else None
    document = [origin.document_column] if origin.borders == "column" else []
    chosen = columns or _default_columns(file)
    if template is not None:
        (target,) = chosen
        chosen = (*template.columns, target)
    exactly = not columns and not document
    for line, texts in read_columns(file, (*document, *chosen), exactly=exactly, faults=faults):
        name = texts.pop(0) if document else ""
        source = texts[0] if template is None else template.fill(dict(zip(chosen, texts[:-1], strict=False)))
        yield Pair(source=source, target=texts[-1], file=file, line=line, document=name)


def _documents(file: str, end: str) -> Iterator[Pair]:
    """Yield the documents of a text file, which end as `end` says; the lines of one are joined by line breaks."""
    first, lines = 1, list[str]()
    for line, text in enumerate(read_lines(file), 1):
        if end == "line":
            yield Pair(source="", target=text, file=file, line=line)
        elif text.strip() or end == "file":
            first = first if lines else line
            lines.append(text)
        elif lines:
            yield Pair(source="", target="\n".join(lines), file=file, line=first)
            lines = []
    if lines:
        yield Pair(source="", target="\n".join(lines), file=file, line=first)


def _documents_of_table(file: str) -> Iterator[Pair]:
    """Yield the texts of the column `text`."""
    for line, (text,) in read_columns(file, ("text",)):
        yield Pair(source="", target=text, file=file, line=line)
