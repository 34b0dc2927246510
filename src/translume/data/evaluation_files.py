"""Read sources, and test sets: one file of pairs, or a file of sources and files of references."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, zip_longest
from pathlib import Path

from translume.config.data import DataSettings
from translume.data.lines import display_name, read_lines, refuse_one_input, unequal_lengths
from translume.data.tables import KINDS, Template, has_keys, read_columns, suffix_of, table_kind
from translume.errors import DataError, SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """Sources with one or more references each.

    references: lists as long as `sources`; None where a source has fewer references than others.
    places: file and line of each reference of the first list, for messages.
    documents: a value for each source that is the same for those of one document; empty if there are no documents.
    separators: the lines between documents, from 0, which are no pairs.
    """

    sources: list[str]
    references: list[list[str | None]]
    places: list[str]
    documents: Sequence[Hashable] = ()
    separators: Sequence[int] = ()

    @property
    def targets(self) -> list[str]:
        """The first reference of each source."""
        return [next(text for text in texts if text is not None) for texts in zip(*self.references, strict=True)]


def settings_for_files(files: Sequence[Path | str], data: DataSettings) -> DataSettings:
    """Return [data] with one file of pairs, or two parallel files, as its training files, for `read_pairs`."""
    names = ("train", "train_source", "train_target", "valid", "weights", "corpus")
    unset: dict[str, object] = {**dict.fromkeys(names, ()), "objective": "pairs", "sampling_temperature": 1.0}
    if len(files) == 1:
        ends = "line" if data.document_column != "" or not data.context.used else "file"
        return data.model_copy(update={**unset, "train": (str(files[0]),), "documents": ends})
    source, target = map(str, files)
    changes = {"train_source": (source,), "train_target": (target,), "columns": (), "template": ""}
    if data.context.used and data.documents == "line":
        changes["documents"] = "blank_line"
    return data.model_copy(update={**unset, **changes})


def is_table(file: Path | str) -> bool:
    """Return whether a file is a table, by its name."""
    return suffix_of(str(file)) in KINDS


def reads_tables(data: DataSettings) -> bool:
    """Return whether a model was trained on tables, or reads paths of other sources than text in tables."""
    tables = data.template or data.columns or data.train or data.valid
    return bool(data.source.reader or tables or any(each.train for each in data.corpus))


def holds_pairs(file: Path, data: DataSettings) -> bool:
    """Return whether a file is a table of sources and references for a model with these data.

    The columns of a .tsv file are references, unless [data] names the columns of the training data.
    """
    known = suffix_of(str(file)) != ".tsv" or bool(data.columns or data.template)
    return is_table(file) and reads_tables(data) and known


def refuse_table(file: Path) -> None:
    """Raise DataError for a table, whose rows are not the texts of a file of lines."""
    if is_table(file):
        raise DataError(f"{display_name(file)}: a table, expected one text a line")


def refuse_tables(source: Path, target: Path, data: DataSettings) -> None:
    """Raise DataError if one of two parallel files is a table.  data: of a model, which may read tables of sources."""
    for file in (*([source] if reads_tables(data) else []), target):
        refuse_table(file)


def read_sources(file: str, data: DataSettings, faults: list[str] | None = None) -> Iterator[str]:
    """Yield the lines of a file, or the sources in the rows of a table for a model of frames or one trained on tables.

    A path of a source of frames in a table is relative to the table's folder.
    A table is a file named .tsv, .csv, .jsonl, .ndjson, .json, compressed or not, or .parquet; it needs no target. Line
    ends in a source become spaces, so that one row stays one line.  faults: as for `read_columns`.
    Raises SettingsError for Parquet without columns.
    """
    if not reads_tables(data) or not is_table(file):
        if table_kind(file) == "parquet":
            raise SettingsError(f"{file}: a Parquet table; expected --column, that of the texts, with --input")
        return read_lines(file)
    template = Template.parse(data.template) if data.template else None
    from translume.data.pairs import source_columns

    columns = source_columns(data, file)
    rows = read_columns(file, columns, faults=faults)
    folder = Path(file).parent
    if data.source.reader:
        return (texts[0] and str(folder / texts[0]) for _, texts in rows)
    return (
        " ".join((texts[0] if template is None else template.fill(dict(zip(columns, texts, strict=True)))).splitlines())
        for _, texts in rows
    )


def read_documents(file: str, data: DataSettings, faults: list[str] | None = None) -> Iterator[str] | bool:
    """Return the document of each row of a table that has `data.document_column`, if the model reads context.

    For other files, return whether it does: then blank lines separate documents.  faults: as for `read_columns`.
    """
    if not data.context.used or data.document_column == "" or not (reads_tables(data) and is_table(file)):
        return data.context.used
    return (name for _, (name,) in read_columns(file, [data.document_column], faults=faults))


def read_column(file: str, column: str, *, line_breaks: bool = False, faults: list[str] | None = None) -> Iterator[str]:
    """Yield the texts in one column of a TSV, CSV, JSONL or Parquet file.

    column: a name, or for TSV and CSV a number from 0.  line_breaks: whether to keep those in a text, instead of making
    them spaces.  faults: as for `read_columns`.  Raises SettingsError for another kind of file.
    """
    if not is_table(file):
        raise SettingsError(f"--column: {file} is no table, expected a file named {', '.join(KINDS)}")
    numbered = column.isdecimal() and not has_keys(file)
    for _, (text,) in read_columns(file, (int(column) if numbered else column,), faults=faults):
        yield text if line_breaks else " ".join(text.splitlines())


def read_evaluation_set(files: Sequence[Path], data: DataSettings) -> EvaluationSet:
    """Read one table of pairs, or a file of sources followed by files of references.

    data: the columns and the template of a file of pairs.
    Raises DataError for files of unequal length, an empty file, and what cannot be read.
    """
    if len(files) == 1:
        if not is_table(files[0]) and not any("\t" in line for line in islice(read_lines(files[0]), 1)):
            raise DataError(f"{files[0]}: no references: one text a line and no tab; expected SOURCE REFERENCE")
        from translume.data.pairs import read_pairs

        pairs = list(read_pairs(settings_for_files(files, data), "train"))
        return EvaluationSet(
            sources=[pair.source for pair in pairs],
            references=[[pair.target for pair in pairs]],
            places=[f"{pair.file}:{pair.line}" for pair in pairs],
            documents=[pair.document for pair in pairs] if pairs and pairs[0].document else (),
        )
    source, *reference_files = files
    for file in reference_files:
        refuse_one_input(source, file)
    sources = list(read_sources(str(source), data))
    if not sources:
        raise DataError(f"{display_name(source)}: empty file, expected one sentence a line")
    references = read_references(reference_files, (source, len(sources)))
    separators = separators_of(data, sources, *references)
    lines = sorted({*range(len(sources))} - {*separators})
    documents = list(accumulate(not each.strip() for each in sources)) if _divides(data) else []
    return EvaluationSet(
        documents=[documents[line] for line in lines] if documents else (),
        sources=[sources[line] for line in lines],
        references=[[texts[line] for line in lines] for texts in references],
        places=[f"{display_name(reference_files[0])}:{line + 1}" for line in lines],
        separators=separators,
    )


def _divides(data: DataSettings) -> bool:
    """Return whether blank lines separate documents."""
    return data.context.used or (data.documents == "blank_line" and not data.source.reader)


def separators_of(data: DataSettings, *texts: Sequence[str | None]) -> list[int]:
    """Return the lines, from 0, that separate documents: those that are blank in all `texts`, if [data] has such."""
    lines = enumerate(zip(*texts, strict=True)) if _divides(data) else ()
    return [number for number, line in lines if not any(text and text.strip() for text in line)]


def read_references(files: Sequence[Path], texts: tuple[Path, int]) -> list[list[str | None]]:
    """Return lists of references, one or more for each file; tabs separate the references in a line of a .tsv file.

    texts: the file whose texts have these references, and how many they are; DataError if a file has more or fewer, or
    is another table.
    """
    lists: list[list[str | None]] = []
    for file in files:
        if is_table(file) and suffix_of(str(file)) != ".tsv":
            raise DataError(
                f"{display_name(file)}: a table, expected one reference a line, "
                "or a file named .tsv with tabs between the references of a text"
            )
        lines = list(read_lines(file))
        if len(lines) != texts[1]:
            raise DataError(unequal_lengths(texts[0], file, (texts[1], len(lines))))
        if suffix_of(str(file)) == ".tsv":
            # Empty cells are no references; a line without any has the empty reference.
            rows = [[text or None for text in line.split("\t")] if line.strip("\t") else [""] for line in lines]
            lists += [list(column) for column in zip_longest(*rows)] or [[]]
        else:
            lists.append(list(lines))
    return lists
