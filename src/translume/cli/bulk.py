"""Many input files, each with an output: which is complete or missing, so that the same command continues."""

import bz2
import gzip
import io
import json
import lzma
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import FOLDER, option_group, refuse_options
from translume.cli.terminal import ProgressBar, note, warn
from translume.errors import DataError, SettingsError
from translume.locks import lock, release_to_move

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, DecodingSettings
    from translume.translator import Generator, Translation, Translator
    from translume.translator.planning import Line, LineError
    from translume.translator.workers import Work, Workers

R = TypeVar("R")
Lines = Iterator[tuple["Line", int]]
"""Lines with their sizes, for `windows`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """The options for many files.  targets, columns: empty or None for commands without targets."""

    inputs: tuple[str, ...] = ()
    output: Path | None = None
    targets: tuple[str, ...] = ()
    columns: str | None = None
    on_error: str | None = None
    address: str | None = None
    workers: int | None = None

    def folder(self, *others: str, shares_lines: bool = False) -> Path | None:
        """Return the folder of the outputs; None if the command reads no such files.

        others: options that cannot be combined with files.  shares_lines: whether --workers can do without.
        Raises SettingsError if one of the others is given, or if one of --input and --output is missing.
        """
        if self.inputs or self.output or self.targets or self.columns:
            if not self.inputs or self.output is None:
                raise SettingsError("--input, --output: found one of them, expected both; --column is for them")
            refuse_options("--input", *others)
            return self.output
        workers = None if shares_lines else self.workers
        for option, value in (("--ray", self.address), ("--on-error", self.on_error), ("--workers", workers)):
            if value is not None:
                raise SettingsError(f"{option}: expected --input and --output as well")
        return None


_OUTPUT = click.option("--output", type=FOLDER, help="Folder for the outputs of --input.")
_OF_ALL = [
    click.option(
        "--on-error",
        type=click.Choice(["skip", "stop"]),
        help="Whether a line or a file of --input that fails ends the work.  [default: skip]",
    ),
    click.option(
        "--ray", "address", metavar="ADDRESS", help="Process --input on a Ray cluster; local starts one here."
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Processes that share the lines, one CPU thread each.  [default: 1]",
    ),
]


def _input(example: str) -> Callable[[Any], Any]:
    return click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="PATTERN",
        help=f"Files to read, such as '{example}', each with a file in --output. Files that are there are skipped.",
    )


def _group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return option_group("files", lambda values, earlier: FileOptions(**values), [*options, *_OF_ALL])


bulk_options = _group()
"""--on-error, --ray and --workers, as `files`."""

file_options = _group(
    _input("corpus/*.zst"),
    _OUTPUT,
    click.option(
        "--column",
        "columns",
        help="Column of the texts in each --input: a name, or a number from 0; a key of JSONL or Parquet.",
    ),
)
"""--input, --output, --column, --on-error, --ray and --workers, for files of texts, as `files`."""

pair_file_options = _group(
    _input("corpus/*.tsv.zst"),
    click.option(
        "--targets",
        multiple=True,
        metavar="PATTERN",
        help="Files with the targets of the lines of --input, one for each --input. If omitted, --input are tables of "
        "pairs.",
    ),
    click.option(
        "--columns",
        metavar="SOURCE,TARGET",
        help="Columns of each table: names, or numbers from 0; keys of JSONL or Parquet.",
    ),
    _OUTPUT,
)
"""--input, --targets, --columns, --output, --on-error, --ray and --workers, for files of pairs, as `files`."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input and its output.  read: yields its lines.  count: returns their number, or None if it is not known."""

    source: str
    output: Path
    read: Callable[[], Lines]
    count: Callable[[], int | None]


def outputs_of(sources: Iterable[str], folder: Path, ending: str = "") -> dict[Path, str]:
    """Return the inputs by their outputs in a folder.

    ending: of the names of outputs, before that of a compression. Without one, an output has the name of its input, and
    .txt after that of a table. Raises SettingsError for an output that is an input, DataError for two inputs of the
    same name.
    """
    from translume.data.lines import without_compression
    from translume.data.tables import KINDS, suffix_of

    outputs: dict[Path, str] = {}
    for source in sources:
        name = Path(source).name
        plain = without_compression(name)
        added = ending or (".txt" if suffix_of(name) in KINDS else "")
        output = folder / f"{plain}{added}{name.removeprefix(plain)}"
        if output.resolve() == Path(source).resolve():
            raise SettingsError(f"--output: {output} would replace an input; expected another folder")
        if output in outputs:
            raise DataError(f"{source}: has the same name as {outputs[output]}; give each --input its own --output")
        outputs[output] = source
    return outputs


def text_files(
    files: FileOptions,
    data: "DataSettings",
    lines: "Callable[[Iterator[str]], Lines] | None" = None,
    ending: str = "",
    *,
    line_breaks: bool = False,
) -> list[InputFile]:
    """Return the files of texts with their outputs.  data: how to read tables without --column.

    lines: makes lines of the texts of a file; None: `numbered_lines`.  ending: see `outputs_of`.
    line_breaks: whether texts in a column keep theirs, which otherwise become spaces.
    """
    from translume.data.evaluation_files import read_column, read_documents, read_sources
    from translume.data.pairs import expand_pattern
    from translume.translator.planning import numbered_lines

    frames, column = bool(data.source.reader), files.columns

    def read(file: str) -> Lines:
        faults: list[str] = []
        if column is None:
            texts = read_sources(file, data, faults)
        else:
            texts = read_column(file, column, line_breaks=line_breaks, faults=faults)
            if frames:  # paths relative to the table's folder
                texts = (text and str(Path(file).parent / text) for text in texts)
        names = read_documents(file, data, faults)
        for line, size in lines(texts) if lines else numbered_lines(texts, frames=frames, documents=names):
            yield (replace(line, fault=faults[0]) if faults else line), size  # one row is read for each line
            faults.clear()

    sources = dict.fromkeys(file for pattern in files.inputs for file in expand_pattern(pattern, "--input"))
    return _with_outputs(sources, files, ending, read, _count)


def pair_files(files: FileOptions, config: "Config", ending: str) -> list[InputFile]:
    """Return the files of pairs with their outputs.  config: of the model, which says how to read tables.

    Raises SettingsError unless --input and --targets, and each pattern and that of its targets, stand for equally many
    files.
    """
    from translume.config import DataSettings
    from translume.data.evaluation_files import settings_for_files
    from translume.data.pairs import expand_pairs, expand_pattern, origins
    from translume.translator.context import History
    from translume.translator.planning import FRAMES_CHARACTERS, Line

    columns = _two_columns(files)
    if files.targets and len(files.inputs) != len(files.targets):
        given = f"found {len(files.inputs)}, but --targets {len(files.targets)}"
        raise SettingsError(f"--input: {given}; expected as many of each")
    pairs: dict[str, str] = {}
    for number, pattern in enumerate(files.inputs):
        if files.targets:
            sources, targets = expand_pairs(pattern, files.targets[number], "--input", "--targets")
        else:
            sources = targets = expand_pattern(pattern, "--input")
        pairs.update(zip(sources, targets, strict=True))

    def origin_of(source: str) -> Any:
        if files.targets:
            data = DataSettings(train_source=(source,), train_target=(pairs[source],))
        else:
            data = settings_for_files([source], config.data)
            if columns:
                data = data.model_copy(update={"columns": columns, "template": ""})
        (origin,) = origins(data, "train")
        return origin

    def count(source: str) -> int | None:
        if any(_count(file) is None for file in origin_of(source).files):
            return None
        origin_of(source).check_lengths()
        return _count(source)

    def read(source: str) -> Lines:
        faults: list[str] = []
        history = History(config.data.context)
        for pair in origin_of(source).read(faults):
            size = FRAMES_CHARACTERS if config.data.source.reader else len(pair.source) + len(pair.target)
            fault = faults.pop() if faults else ""
            before = history.add(pair.source, pair.target, pair.document or None)
            yield Line(number=pair.line, text=pair.source, target=pair.target, fault=fault, before=before), size

    return _with_outputs(pairs, files, ending, read, count)


def _with_outputs(
    sources: Iterable[str],
    files: FileOptions,
    ending: str,
    read: Callable[[str], Lines],
    count: Callable[[str], int | None],
) -> list[InputFile]:
    assert files.output is not None
    outputs = outputs_of(sources, files.output, ending)
    return [InputFile(source, path, partial(read, source), partial(count, source)) for path, source in outputs.items()]


def _count(file: str) -> int | None:
    from translume.data.addresses import is_address
    from translume.data.tables import count_rows

    return None if is_address(file) else count_rows(file)  # it would be downloaded twice


def _two_columns(files: FileOptions) -> tuple[int | str, ...]:
    """Return the columns that --columns names. Raises SettingsError unless there are two, and with --targets."""
    if files.columns is None:
        return ()
    if files.targets:
        raise SettingsError("--columns cannot be combined with --targets, whose files are not tables")
    names = [name.strip() for name in files.columns.split(",")]
    if len(names) != 2 or not all(names):
        raise SettingsError(f"--columns: found '{files.columns}', expected two such as en,de or 0,1")
    return tuple(int(name) if name.isdecimal() else name for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWork:
    """What to do with many files.

    loaded: the model in the folder `model`.  work: on consecutive lines.  row: makes the output of a line, line end
    included.  report: is called with the place and the result of each line that has one.
    """

    model: Path
    loaded: "Translator | Generator"
    work: "Work[Any]"
    settings: "DecodingSettings"
    files: FileOptions
    row: "Callable[[Any], str]"
    report: Callable[[str, Any], None] = lambda place, result: None

    def run(self, inputs: list[InputFile]) -> None:
        """Write the outputs that are missing, and end the command with 1 if something failed."""
        if self.process(inputs):
            click.get_current_context().exit(1)

    def process(self, inputs: list[InputFile]) -> int:
        """Write the outputs that are missing. Return how many files or lines failed; all are reported."""
        missing = [file for file in inputs if not file.output.exists()]
        if len(missing) < len(inputs):
            note(f"{inputs[0].output.parent}: {len(inputs) - len(missing)} of {len(inputs)} files are there already")
        others = "; the other files are processed" if len(inputs) > 1 else ""
        failed, counts = 0, dict[str, int | None]()
        for file in missing:
            with self._skipping(others) as skipped:
                counts[file.source] = file.count()
            failed += len(skipped)
        known = [count for count in counts.values() if count is not None]
        total = sum(known) if len(known) == len(counts) else None
        hint = "Interrupted; the same command continues with the files that are missing."
        if not counts:
            return failed
        busy: list[InputFile] = []
        with ProgressBar("processing", unit="lines", total=total) as bar, interrupt_hint(hint), self._runner() as run:
            for files in ([file for file in missing if file.source in counts], busy):
                for file in files:
                    try:
                        with self._skipping(others) as skipped:
                            with written(file.output, wait=files is busy) as output:
                                lines = run(self.work, file.read(), self.settings)
                                without, summary = self._write(file, output, lines, bar)
                            failed += without
                            note(summary)  # once the file is in its place
                        failed += len(skipped)
                    except BusyError:
                        what = "written by another process" if files is busy else "another process is writing it"
                        note(f"{file.output}: {what}")
                        if files is not busy:
                            busy.append(file)
        return failed

    @contextmanager
    def _skipping(self, others: str) -> Iterator[list[DataError]]:
        """Report a DataError and add it to the yielded list, unless failures end the work."""
        errors: list[DataError] = []
        try:
            yield errors
        except DataError as error:
            if self.files.on_error == "stop":
                raise
            warn(f"warning: {error}{others}")
            errors.append(error)

    def _write(
        self, file: InputFile, output: IO[str], results: "Iterator[Any | LineError]", bar: ProgressBar
    ) -> tuple[int, str]:
        """Write the output of a file. Return how many of its lines failed, and a line about it for the user.

        With --on-error stop, raise DataError.
        """
        from translume.translator.planning import LineError

        begun, failed, number = time.monotonic(), 0, 0
        for number, result in enumerate(results, 1):
            output.write(self.row(result))
            bar.advance()
            if not isinstance(result, LineError):
                self.report(f"{file.source}:{number}", result)
                continue
            place = f"{file.source}:{result.line.number}"
            if self.files.on_error == "stop":
                raise DataError(f"{place}: {result.reason}")
            failed += 1
            warn(f"warning: {place}: {result.reason}; it has no result")
        seconds = time.monotonic() - begun
        without = f", {failed:,} without a result" if failed else ""
        return failed, f"{file.output}: {number:,} lines{without}, {number / max(seconds, 1e-9):,.0f} lines/s"

    @contextmanager
    def _runner(self) -> "Iterator[Callable[[Work[Any], Lines, DecodingSettings], Iterator[Any | LineError]]]":
        """Yield what works on lines: the loaded model, processes of the same model, or actors of a cluster."""
        from translume.translator.workers import RayPool, Workers, options_of, run_lines

        if self.files.address is not None:
            refuse_sharing(self.loaded, f"--ray {self.files.address}")
            pool = RayPool(self.files.address, self.model, self.files.workers, options_of(self.loaded))
            with Workers(pool) as workers:
                yield workers.run
        elif (shared := start_workers(self.model, self.loaded, self.files)) is not None:
            with shared:
                yield shared.run
        else:
            yield partial(run_lines, self.loaded)


def start_workers(model: Path, loaded: "Translator | Generator", files: FileOptions) -> "Workers | None":
    """Return processes with the same model and engine as a loaded one; None for a single one.

    Raises SettingsError for an ensemble or a model on a GPU.
    """
    if files.workers is None or files.workers == 1:
        return None
    from translume.translator.workers import Workers, options_of

    refuse_sharing(loaded, f"--workers {files.workers}")
    return Workers.start(model, files.workers, options_of(loaded))


def refuse_sharing(loaded: "Translator | Generator", option: str) -> None:
    """Raise SettingsError for a model whose lines processes on CPUs cannot share."""
    if len(getattr(loaded, "models", ())) > 1:
        raise SettingsError(f"{option} cannot be combined with --ensemble")
    if not loaded.checkpoint.on_cpu:
        raise SettingsError(f"{option}: found a model on {loaded.checkpoint.device}, expected one on the CPU")


class BusyError(Exception):
    """Another process is writing an output, or wrote it while this one waited."""


@contextmanager
def written(path: Path, *, wait: bool = False) -> Iterator[IO[str]]:
    """Yield a text file that becomes the new file `path` at the end of the block, compressed as its name says.

    Replaces what a killed process left of the same file.  wait: for another process that is writing it.
    Raises DataError for an output that cannot be written, and BusyError; after an error there is no output.
    """
    from translume.atomic import make_folder, sync

    part = path.with_name(f".{path.name}.part")
    try:
        make_folder(path.parent)
        with _locked(part, wait=wait) as raw:
            try:
                if path.exists():
                    raise BusyError
                with ExitStack() as stack:
                    packed = stack.enter_context(_packed(raw, path.suffix))
                    text = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
                    stack.callback(text.detach)  # else its end closes the file
                    yield text
                raw.flush()
                os.fsync(raw.fileno())
                release_to_move(raw)
                os.replace(part, path)
                with suppress(OSError):  # the file is in its place
                    sync(path.parent)
            except BaseException:
                release_to_move(raw)
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None


@contextmanager
def _locked(part: Path, *, wait: bool) -> Iterator[BinaryIO]:
    """Yield a new file that is locked while it is written. Raises BusyError if another process has locked it."""
    while True:
        with part.open("ab") as file:
            try:
                lock(file.fileno(), wait=wait)
            except BlockingIOError:
                raise BusyError from None
            # A file that was renamed or removed before it was locked is not the one at the path any more.
            if part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat()):
                file.truncate(0)
                yield file
                return


def _packed(raw: BinaryIO, suffix: str) -> Any:
    """Return a context manager with a file that compresses into `raw`, as a suffix says."""
    if suffix == ".gz":
        return gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)
    if suffix == ".zst":
        import zstandard

        return zstandard.ZstdCompressor().stream_writer(raw, closefd=False)
    return {".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}.get(suffix, lambda file, mode: nullcontext(file))(raw, "wb")


def line_row(result: Any, value: Callable[[Any], str]) -> str:
    """Return a result as a line; an empty one for a line without a result."""
    from translume.translator.planning import LineError

    return "\n" if isinstance(result, LineError) else f"{value(result)}\n"


def json_row(result: Any, value: Callable[[Any], Mapping[str, object]] = lambda result: result.to_dict()) -> str:
    """Return a result as a JSON object in a line; the reason, as `error`, for a line without one."""
    from translume.translator.planning import LineError

    shown = {"error": result.reason} if isinstance(result, LineError) else value(result)
    return json.dumps(shown, ensure_ascii=False) + "\n"


def print_warnings(place: str, translation: "Translation") -> None:
    """Print the warnings about a translation."""
    for warning in warnings_of(translation):
        warn(f"{place}: {warning}")


def warnings_of(translation: "Translation") -> list[str]:
    """Return the warnings to print at once: all but signs that the target may be wrong, and targets far too short."""
    short = [each for each in translation.quality_warnings if each.startswith("low_source_use:")]
    return [*translation.warnings, *short]
