"""Translate many files into a folder, for several commands."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import FOLDER, Command
from translume.cli.terminal import ProgressBar, note, warn
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.config import DataSettings, DecodingSettings
    from translume.translator import Translation, Translator, Workers
    from translume.translator.bulk import Row, Shard
    from translume.translator.workers import EngineDtype, Outcome, PlainDtype

    class ComputeArguments(TypedDict):
        """The arguments of workers that say how to compute."""

        dtype: EngineDtype | None
        plain: PlainDtype


FindOutcomes = Callable[[Iterable[str], "DecodingSettings"], Iterator["Outcome"]]


@dataclass(frozen=True, slots=True)
class Work:
    """An input and its output.  count: returns the number of lines, or None if it is not known.  read: yields them."""

    shard: "Shard"
    count: Callable[[], int | None]
    read: Callable[[], Iterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """How to translate many files.

    count: of processes; None: one for each core.  cluster: the address of one, instead of processes here.
    stops: whether a line or a file that fails ends the work.  row: makes the output of a line.
    """

    model: Path
    translator: "Translator"
    settings: "DecodingSettings"
    count: int | None
    cluster: str | None
    stops: bool
    row: "Row"


def bulk_options(command: Command) -> Command:
    """--on-error and --ray, as `on_error` and `address`; None if they are not given."""
    on_error = click.option(
        "--on-error",
        type=click.Choice(["skip", "stop"]),
        help="Whether a line or a file of --input that fails ends the work.  [default: skip]",
    )
    address = click.option(
        "--ray", "address", metavar="ADDRESS", help="Translate --input on a Ray cluster; local starts one here."
    )
    return on_error(address(command))


def input_options(command: Command) -> Command:
    """--input, --output and --column, as `inputs`, `output` and `column`."""
    options = (
        click.option(
            "--input",
            "inputs",
            multiple=True,
            metavar="PATTERN",
            help="Files to translate, such as 'corpus/*.zst', each to a file in --output. Files that are there are "
            "skipped.",
        ),
        click.option("--output", type=FOLDER, help="Folder for the translations of --input."),
        click.option(
            "--column", help="Column of the sources in each --input: a name, or a number from 0; a key of JSONL."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def work_of(
    inputs: tuple[str, ...], output: Path, column: str | None, data: "DataSettings", ending: str = ""
) -> list[Work]:
    """Return the files of --input with their outputs.  data: how to read tables without --column.

    ending: of the names of outputs; see `shards_of`.
    """
    from translume.data import count_lines
    from translume.data.addresses import is_address
    from translume.data.evaluation_files import read_column, read_sources
    from translume.translator.bulk import shards_of

    def read(file: str) -> Iterator[str]:
        return read_sources(file, data) if column is None else read_column(file, column)

    shards = shards_of(inputs, output, ending)

    def count(file: str) -> int | None:
        return None if is_address(file) else count_lines(file)  # it would be downloaded twice

    return [Work(each, partial(count, each.source), partial(read, each.source)) for each in shards]


def start_workers(model: Path, translator: "Translator", count: int) -> "Callable[[], Workers]":
    """Return what starts processes with the same model and engine as a translator.

    Raises SettingsError for several workers of an ensemble or of a model on a GPU.
    """
    from translume.translator import Workers

    if count > 1:
        _refuse_sharing(translator, f"workers: found {count}", "expected 1; several are for the CPU")
    return partial(Workers, model, count, **_computing(translator))


def translate_files(works: list[Work], bulk: Bulk) -> int:
    """Write the outputs that are missing. Return how many files or lines failed; all are reported."""
    missing = [work for work in works if not work.shard.target.exists()]
    if len(missing) < len(works):
        folder = works[0].shard.target.parent
        note(f"{folder}: {len(works) - len(missing)} of {len(works)} files are there already")
    failed, ready, counts = 0, list[Work](), list[int | None]()
    for work in missing:
        try:
            counts.append(work.count())
            ready.append(work)
        except DataError as error:
            failed += _skip(error, stops=bulk.stops)
    if not ready:
        return failed
    hint = "Interrupted; the same command continues with the files that are missing."
    known = [count for count in counts if count is not None]
    total = sum(known) if len(known) == len(counts) else None
    with ProgressBar("translating", unit="lines", total=total) as bar, interrupt_hint(hint), _pool(bulk) as find:
        for work in ready:
            try:
                failed += _translate(work.shard, find(work.read(), bulk.settings), bar, bulk)
            except DataError as error:
                failed += _skip(error, stops=bulk.stops)
    return failed


def _skip(error: DataError, *, stops: bool) -> int:
    """Report a file that fails, and return 1 for it.  stops: raise the error instead."""
    if stops:
        raise error
    warn(f"warning: {error}; the other files are translated")
    return 1


def _translate(shard: "Shard", found: "Iterator[Outcome]", bar: ProgressBar, bulk: Bulk) -> int:
    """Write the output of a file. Return how many of its lines failed. Raises DataError for the first if it stops."""
    from translume.translator.bulk import write_shard
    from translume.translator.planning import LineError

    begun, failed, number = time.monotonic(), 0, 0
    for number, each in enumerate(write_shard(shard, found, bulk.row), 1):
        bar.advance()
        place = f"{shard.source}:{number}"
        if not isinstance(each, LineError):
            for warning in warnings_of(each):
                warn(f"{place}: {warning}")
        elif bulk.stops:
            raise DataError(f"{place}: {each.reason}")
        else:
            failed += 1
            warn(f"warning: {place}: {each.reason}; it has no translation")
    seconds = time.monotonic() - begun
    note(f"{shard.target}: {number:,} lines, {number / max(seconds, 1e-9):,.0f} lines/s")
    return failed


def warnings_of(translation: "Translation") -> list[str]:
    """Return the warnings to print at once: all but signs that the target may be wrong, and targets far too short."""
    short = [each for each in translation.quality_warnings if each.startswith("low_source_use:")]
    return [*translation.warnings, *short]


@contextmanager
def _pool(bulk: Bulk) -> Iterator[FindOutcomes]:
    """Yield what translates texts: the translator, processes of the same model, or actors of a cluster."""
    import torch

    from translume.translator.cluster import RayWorkers
    from translume.translator.planning import numbered_lines, windows
    from translume.translator.workers import outcomes

    model, translator, count = bulk.model, bulk.translator, bulk.count
    frames = bool(translator.config.data.source.reader)
    if bulk.cluster is not None:
        _refuse_sharing(translator, f"--ray {bulk.cluster}", "expected a CPU")
        with RayWorkers(bulk.cluster, model, count, **_computing(translator)) as actors:
            yield partial(actors.outcomes, frames=frames)
        return
    device = next(translator.checkpoint.model.parameters()).device
    if count is None and device.type == "cpu" and len(translator.models) == 1:
        count = torch.get_num_threads()
    start = start_workers(model, translator, count or 1)
    if count is not None and count > 1:
        with start() as workers:
            yield partial(workers.outcomes, frames=frames)
        return

    def alone(texts: Iterable[str], settings: "DecodingSettings") -> Iterator["Outcome"]:
        for window in windows(numbered_lines(texts, frames=frames)):
            yield from outcomes(lambda lines: translator.translate_lines(lines, settings), window)

    yield alone


def _refuse_sharing(translator: "Translator", found: str, expected: str) -> None:
    """Raise SettingsError for a translator whose lines processes on CPUs cannot share."""
    device = next(translator.checkpoint.model.parameters()).device
    if len(translator.models) > 1:
        raise SettingsError(f"{found} with --ensemble, expected 1")
    if device.type != "cpu":
        raise SettingsError(f"{found} on {device}, {expected}")


def _computing(translator: "Translator") -> "ComputeArguments":
    """Return how a translator computes, as workers take it."""
    weight = next(translator.checkpoint.model.parameters())
    return {
        "dtype": translator.engine.dtype if translator.engine else None,
        "plain": "bf16" if weight.element_size() < 4 else "fp32",
    }
