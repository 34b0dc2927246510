"""Translate, score, continue or inspect the lines of many files, for several commands."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypedDict, TypeVar

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import FOLDER, option_group
from translume.cli.terminal import ProgressBar, note, warn
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, DecodingSettings
    from translume.data.tables import Column
    from translume.translator import Generator, Translation, Translator, Workers
    from translume.translator.bulk import Shard
    from translume.translator.jobs import Job
    from translume.translator.planning import Line, LineError
    from translume.translator.workers import EngineDtype, PlainDtype

    class ComputeArguments(TypedDict):
        """The arguments of workers that say how to compute."""

        dtype: EngineDtype | None
        plain: PlainDtype


R = TypeVar("R")
Lines = Iterator[tuple["Line", int]]
"""Lines with their sizes, for `windows`."""


class Verb(NamedTuple):
    """How messages name the work on a line."""

    doing: str
    done: str
    result: str


TRANSLATE: Final = Verb("translating", "translated", "translation")
SCORE: Final = Verb("scoring", "scored", "score")
CONTINUE: Final = Verb("generating", "continued", "continuation")
INSPECT: Final = Verb("inspecting", "inspected", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """The options for many files.  targets, columns: empty or None for commands without targets."""

    inputs: tuple[str, ...] = ()
    output: Path | None = None
    targets: tuple[str, ...] = ()
    columns: str | None = None
    on_error: str | None = None
    address: str | None = None

    def folder(self, others: Mapping[str, object]) -> Path | None:
        """Return the folder of the outputs; None if the command reads no such files.

        others: options by name that do not go together with files. Raises SettingsError if one of them is given, or if
        one of --input and --output is missing.
        """
        if self.inputs or self.output or self.targets or self.columns:
            if not self.inputs or self.output is None:
                raise SettingsError("--input, --output: found one of them, expected both; --column is for them")
            for option in (option for option, value in others.items() if value):
                raise SettingsError(f"{option}: found with --input, expected only --input and --output")
            return self.output
        for option, value in (("--ray", self.address), ("--on-error", self.on_error)):
            if value is not None:
                raise SettingsError(f"{option}: found without --input, expected --input and --output")
        return None


_ON_ERROR = click.option(
    "--on-error",
    type=click.Choice(["skip", "stop"]),
    help="Whether a line or a file of --input that fails ends the work.  [default: skip]",
)
_RAY = click.option(
    "--ray", "address", metavar="ADDRESS", help="Process --input on a Ray cluster; local starts one here."
)
_OUTPUT = click.option("--output", type=FOLDER, help="Folder for the outputs of --input.")


def _input(example: str) -> Callable[[Any], Any]:
    return click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="PATTERN",
        help=f"Files to read, such as '{example}', each with a file in --output. Files that are there are skipped.",
    )


def _file_options(values: dict[str, Any], earlier: object) -> FileOptions:
    return FileOptions(**values)


bulk_options = option_group("files", _file_options, [_ON_ERROR, _RAY])
"""--on-error and --ray, as `files`."""

file_options = option_group(
    "files",
    _file_options,
    [
        _input("corpus/*.zst"),
        _OUTPUT,
        click.option(
            "--column",
            "columns",
            help="Column of the texts in each --input: a name, or a number from 0; a key of JSONL or Parquet.",
        ),
        _ON_ERROR,
        _RAY,
    ],
)
"""--input, --output, --column, --on-error and --ray, for files of texts, as `files`."""

pair_file_options = option_group(
    "files",
    _file_options,
    [
        _input("corpus/*.tsv.zst"),
        click.option(
            "--targets",
            multiple=True,
            metavar="PATTERN",
            help="Files with the targets of the lines of --input, which else are tables of pairs. As often as --input.",
        ),
        click.option(
            "--columns",
            metavar="SOURCE,TARGET",
            help="Columns of each table: names, or numbers from 0; keys of JSONL or Parquet.",
        ),
        _OUTPUT,
        _ON_ERROR,
        _RAY,
    ],
)
"""--input, --targets, --columns, --output, --on-error and --ray, for files of pairs, as `files`."""


@dataclass(frozen=True, slots=True)
class Work:
    """An input and its output.  count: returns the number of lines, or None if it is not known.  read: yields them."""

    shard: "Shard"
    count: Callable[[], int | None]
    read: Callable[[], Lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk(Generic[R]):
    """How to process many files.

    loaded: the model in the folder `model`.  count: of processes; None: one for each core.  cluster: the address of
    one, instead of processes here.  stops: whether a line or a file that fails ends the work.
    row: makes the output of a line.  report: is called with the place and the result of each line that has one.
    """

    model: Path
    loaded: "Translator | Generator"
    job: "Job[R]"
    verb: Verb
    settings: "DecodingSettings"
    count: int | None
    cluster: str | None
    stops: bool
    row: "Callable[[R | LineError], str]"
    report: Callable[[str, R], None] = lambda place, result: None


def text_works(
    files: FileOptions,
    folder: Path,
    data: "DataSettings",
    lines: "Callable[[Iterator[str]], Lines]",
    ending: str = "",
    *,
    line_breaks: bool = False,
) -> list[Work]:
    """Return the files of texts with their outputs.  data: how to read tables without --column.

    lines: makes lines of the texts of a file.  ending: of the names of outputs; see `shards_of`.
    line_breaks: whether texts in a column keep theirs, which otherwise become spaces.
    """
    from translume.data.evaluation_files import read_column, read_sources
    from translume.translator.bulk import shards_of

    column = files.columns

    def read(file: str) -> Lines:
        if column is None:
            return lines(read_sources(file, data))
        return lines(read_column(file, column, line_breaks=line_breaks))

    shards = shards_of(files.inputs, folder, ending)
    return [Work(each, partial(_count, each.source), partial(read, each.source)) for each in shards]


def pair_works(files: FileOptions, folder: Path, config: "Config", ending: str) -> list[Work]:
    """Return the files of pairs with their outputs.  config: of the model, which says how to read tables."""
    from translume.config import DataSettings
    from translume.data.evaluation_files import settings_for_files
    from translume.data.pairs import origins
    from translume.translator.bulk import parallel_shards_of, shards_of
    from translume.translator.planning import FRAMES_CHARACTERS, Line

    columns = _two_columns(files)
    frames = bool(config.data.source.reader)
    if files.targets:
        shards = parallel_shards_of(files.inputs, files.targets, folder, ending)
    else:
        shards = shards_of(files.inputs, folder, ending)

    def origin_of(shard: "Shard") -> Any:
        if shard.targets:
            data = DataSettings(train_source=(shard.source,), train_target=(shard.targets,))
        else:
            data = settings_for_files([shard.source], config.data)
            if columns:
                data = data.model_copy(update={"columns": columns, "template": ""})
        (origin,) = origins(data, "train")
        return origin

    def count(shard: "Shard") -> int | None:
        if any(_count(file) is None for file in origin_of(shard).files):
            return None
        origin_of(shard).check_lengths()
        return _count(shard.source)

    def read(shard: "Shard") -> Lines:
        for pair in origin_of(shard).read():
            size = FRAMES_CHARACTERS if frames else len(pair.source) + len(pair.target)
            yield Line(number=pair.line, text=pair.source, target=pair.target), size

    return [Work(each, partial(count, each), partial(read, each)) for each in shards]


def _count(file: str) -> int | None:
    from translume.data.addresses import is_address
    from translume.data.tables import count_rows

    return None if is_address(file) else count_rows(file)  # it would be downloaded twice


def _two_columns(files: FileOptions) -> "tuple[Column, ...]":
    """Return the columns that --columns names. Raises SettingsError unless there are two, and with --targets."""
    if files.columns is None:
        return ()
    if files.targets:
        raise SettingsError("--columns: found with --targets, expected tables, whose pairs have both sides")
    names = [name.strip() for name in files.columns.split(",")]
    if len(names) != 2 or not all(names):
        raise SettingsError(f"--columns: found '{files.columns}', expected two such as en,de or 0,1")
    return tuple(int(name) if name.isdecimal() else name for name in names)


def start_workers(model: Path, loaded: "Translator | Generator", count: int) -> "Callable[[], Workers]":
    """Return what starts processes with the same model and engine as a loaded one.

    Raises SettingsError for several workers of an ensemble or of a model on a GPU.
    """
    from translume.translator import Workers

    if count > 1:
        _refuse_sharing(loaded, f"workers: found {count}", "expected 1; several are for the CPU")
    return partial(Workers, model, count, **_computing(loaded))


def process_files(works: list[Work], bulk: Bulk[R]) -> int:
    """Write the outputs that are missing. Return how many files or lines failed; all are reported."""
    missing = [work for work in works if not work.shard.target.exists()]
    if len(missing) < len(works):
        folder = works[0].shard.target.parent
        note(f"{folder}: {len(works) - len(missing)} of {len(works)} files are there already")
    rest = f"; the other files are {bulk.verb.done}" if len(works) > 1 else ""
    failed, ready, counts = 0, list[Work](), list[int | None]()
    for work in missing:
        try:
            counts.append(work.count())
            ready.append(work)
        except DataError as error:
            failed += _skip(error, rest, stops=bulk.stops)
    if not ready:
        return failed
    hint = "Interrupted; the same command continues with the files that are missing."
    known = [count for count in counts if count is not None]
    total = sum(known) if len(known) == len(counts) else None
    with ProgressBar(bulk.verb.doing, unit="lines", total=total) as bar, interrupt_hint(hint), _pool(bulk) as find:
        for work in ready:
            try:
                failed += _process(work.shard, find(work.read()), bar, bulk)
            except DataError as error:
                failed += _skip(error, rest, stops=bulk.stops)
    return failed


def _skip(error: DataError, rest: str, *, stops: bool) -> int:
    """Report a file that fails, and return 1 for it.  rest: about the others.  stops: raise the error instead."""
    if stops:
        raise error
    warn(f"warning: {error}{rest}")
    return 1


def _process(shard: "Shard", found: "Iterator[R | LineError]", bar: ProgressBar, bulk: Bulk[R]) -> int:
    """Write the output of a file. Return how many of its lines failed. Raises DataError for the first if it stops."""
    from translume.translator.bulk import write_shard
    from translume.translator.planning import LineError

    begun, failed, number = time.monotonic(), 0, 0
    for number, each in enumerate(write_shard(shard, found, bulk.row), 1):
        bar.advance()
        if not isinstance(each, LineError):
            bulk.report(f"{shard.source}:{number}", each)
            continue
        place = f"{shard.source}:{each.line.number}"
        if bulk.stops:
            raise DataError(f"{place}: {each.reason}")
        failed += 1
        warn(f"warning: {place}: {each.reason}; it has no {bulk.verb.result}")
    seconds = time.monotonic() - begun
    note(f"{shard.target}: {number:,} lines, {number / max(seconds, 1e-9):,.0f} lines/s")
    return failed


def print_warnings(place: str, translation: "Translation") -> None:
    """Print the warnings about a translation."""
    for warning in warnings_of(translation):
        warn(f"{place}: {warning}")


def warnings_of(translation: "Translation") -> list[str]:
    """Return the warnings to print at once: all but signs that the target may be wrong, and targets far too short."""
    short = [each for each in translation.quality_warnings if each.startswith("low_source_use:")]
    return [*translation.warnings, *short]


@contextmanager
def _pool(bulk: Bulk[R]) -> "Iterator[Callable[[Lines], Iterator[R | LineError]]]":
    """Yield what processes lines: the loaded model, processes of the same model, or actors of a cluster."""
    import torch

    from translume.translator.cluster import RayWorkers
    from translume.translator.planning import windows
    from translume.translator.workers import outcomes

    model, loaded, count, settings = bulk.model, bulk.loaded, bulk.count, bulk.settings
    if bulk.cluster is not None:
        _refuse_sharing(loaded, f"--ray {bulk.cluster}", "expected a CPU")
        with RayWorkers(bulk.cluster, model, count, **_computing(loaded)) as actors:
            yield lambda lines: actors.outcomes(bulk.job, lines, settings)
        return
    device = next(loaded.checkpoint.model.parameters()).device
    if count is None and device.type == "cpu" and _members(loaded) == 1:
        count = torch.get_num_threads()
    start = start_workers(model, loaded, count or 1)
    if count is not None and count > 1:
        with start() as workers:
            yield lambda lines: workers.outcomes(bulk.job, lines, settings)
        return

    def alone(lines: Lines) -> "Iterator[R | LineError]":
        for window in windows(lines):
            yield from outcomes(lambda rest: bulk.job.run(loaded, rest, settings), window)

    yield alone


def _members(loaded: "Translator | Generator") -> int:
    """Return the number of models in an ensemble; 1 for any other model."""
    from translume.translator import Translator

    return len(loaded.models) if isinstance(loaded, Translator) else 1


def _refuse_sharing(loaded: "Translator | Generator", found: str, expected: str) -> None:
    """Raise SettingsError for a model whose lines processes on CPUs cannot share."""
    device = next(loaded.checkpoint.model.parameters()).device
    if _members(loaded) > 1:
        raise SettingsError(f"{found} with --ensemble, expected 1")
    if device.type != "cpu":
        raise SettingsError(f"{found} on {device}, {expected}")


def _computing(loaded: "Translator | Generator") -> "ComputeArguments":
    """Return how a model computes, as workers take it."""
    weight = next(loaded.checkpoint.model.parameters())
    return {
        "dtype": loaded.engine.dtype if loaded.engine else None,
        "plain": "bf16" if weight.element_size() < 4 else "fp32",
    }
