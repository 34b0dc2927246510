"""translume translate"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.documents import check_output, is_document, translate_document, write_result
from translume.cli.group import interrupt_hint
from translume.cli.length_limit import LimitCount
from translume.cli.options import (
    FILE,
    FOLDER,
    MODEL,
    Compute,
    changed,
    decoding_options,
    engine_compute_options,
    ensemble_options,
    json_option,
    load_ensemble,
    set_option,
    workers_option,
)
from translume.cli.terminal import ProgressBar, note, warn
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.config import DecodingSettings
    from translume.decoding import Average
    from translume.translator import Translation, Translator

NOTHING_WRITTEN = "Interrupted; nothing was written."
Constraints = Iterable[Iterable[str]] | None
"""The phrases that each line's target must contain; None for no constraints."""


@click.command(
    "translate",
    short_help="Translate lines of text, or a document.",
    epilog="Example: translume translate models/en-de < test.en > test.de",
)
@click.argument("model", type=MODEL)
@click.argument("file", default="-", metavar="[FILE]")
@decoding_options
@click.option(
    "--constraints-per-line",
    "constraints",
    type=FILE,
    help="Words and phrases that each target must contain: one line for each input line, separated by tabs.",
)
@click.option("--out", type=FILE, help="File to write instead of standard output, once it is complete.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="PATTERN",
    help="Files to translate, such as 'corpus/*.zst', each to a file in --output. Files that are there are skipped.",
)
@click.option("--output", type=FOLDER, help="Folder for the translations of --input.")
@click.option("--column", help="Column of the sources in each --input: a name, or a number from 0; a key of JSONL.")
@json_option
@set_option
@ensemble_options
@workers_option
@engine_compute_options
def command(
    model: Path,
    file: str,
    constraints: Path | None,
    others: tuple[Path, ...],
    average: "Average | None",
    workers: int | None,
    out: Path | None,
    inputs: tuple[str, ...],
    output: Path | None,
    column: str | None,
    as_json: bool,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Translate lines of standard input, or of FILE, to standard output, one line for each input line.

    A FILE whose name ends in .docx, .pptx, .odt, .epub, .html, .htm, .srt or .vtt is translated as a document that
    keeps its format: `translume translate models/en-de report.docx > bericht.docx`. Of a .pdf the text is translated.

    For a model trained on tables, a FILE named .tsv, .csv or .jsonl is a table: the column of the sources, or the
    columns of the template, as in training. Its rows give one line each.

    With --nbest, every output line has three fields separated by tabs: the number of the input line, the score, the
    translation.

    With --input and --output, many files are translated with one process on each core. An output is written when it is
    complete, so the same command continues after an interruption. A line that cannot be translated is reported and
    becomes an empty line.
    """
    from translume.data import read_lines
    from translume.data.evaluation_files import read_sources
    from translume.translator.planning import splits_sentences

    if inputs or output or column:
        given = (("FILE", file != "-"), ("--out", out), ("--json", as_json), ("--constraints-per-line", constraints))
        _check_bulk(inputs, output, [option for option, value in given if value])
    check_output(file, out)
    translator = load_ensemble(model, others, average, compute)
    settings = changed(translator.config, overrides, "decoding").decoding
    if output is not None:
        if settings.nbest > 1:
            raise SettingsError("--nbest: found with --input, expected one translation for each line")
        _translate_files(model, translator, settings, inputs, output, column, workers)
        return
    if is_document(file):
        lines_only = {"--json": as_json, "--constraints-per-line": constraints, "--nbest": settings.nbest > 1}
        for option in (option for option, given in lines_only.items() if given):
            raise SettingsError(f"{option}: {file} is a document; expected lines of text")
        with interrupt_hint(NOTHING_WRITTEN), _translating(model, translator, workers) as translate:
            splits = splits_sentences(translator.checkpoint, settings.split)
            translate_document(
                file,
                out,
                translator.config.data.source_language if splits else None,
                lambda lines, aligned: translate(lines, _for_sentences(settings, aligned=aligned), None),
            )
        return
    printed: list[str] = []
    with (
        ProgressBar("translating", unit="lines", prints=out is None) as bar,
        interrupt_hint(bar.hint if out is None else NOTHING_WRITTEN),
        _translating(model, translator, workers) as translate,
    ):
        lines = read_sources(file, translator.config.data)
        phrases = None if constraints is None else _fields(read_lines(constraints))
        # A typed line is translated at once; files and pipes are read ahead, for batches of similar lengths.
        typed = (([line], phrases and islice(phrases, 1)) for line in lines)
        parts = typed if file == "-" and sys.stdin.isatty() else [(lines, phrases)]
        count = LimitCount()
        for translation in (each for part, required in parts for each in translate(part, settings, required)):
            bar.advance()
            count.add(translation)
            for warning in _warnings(translation):
                warn(f"line {bar.done}: {warning}")
            for line in _output_lines(translation, bar.done, as_json=as_json, nbest=settings.nbest > 1):
                if out is None:
                    click.echo(line)
                else:
                    printed.append(f"{line}\n")
        count.report()
    if out is not None:
        write_result("".join(printed).encode(), out)


def _check_bulk(inputs: tuple[str, ...], output: Path | None, others: list[str]) -> None:
    """Raise SettingsError for options that do not go together with --input, --output and --column."""
    if not inputs or output is None:
        raise SettingsError("--input, --output: found one of them, expected both; --column is for them")
    for option in others:
        raise SettingsError(f"{option}: found with --input, expected only --input and --output")


def _translate_files(
    model: Path,
    translator: "Translator",
    settings: "DecodingSettings",
    inputs: tuple[str, ...],
    output: Path,
    column: str | None,
    workers: int | None,
) -> None:
    """Translate the files of --input that have no output yet. Exits with 1 if a file or a line failed."""
    import torch

    from translume.data import count_lines
    from translume.data.evaluation_files import read_column, read_sources
    from translume.translator.bulk import Failure, shards_of, translate_shard

    shards = shards_of(inputs, output)
    missing = [shard for shard in shards if not shard.target.exists()]
    if len(missing) < len(shards):
        note(f"{output}: {len(shards) - len(missing)} of {len(shards)} files are there already")
    device = next(translator.checkpoint.model.parameters()).device
    if workers is None and device.type == "cpu" and len(translator.models) == 1:
        workers = torch.get_num_threads() if missing else 1
    failed, sizes = 0, dict[str, int]()
    for shard in missing:
        try:
            sizes[shard.source] = count_lines(shard.source)
        except DataError as error:
            failed += 1
            warn(f"warning: {error}; the other files are translated")
    hint = "Interrupted; the same command continues with the files that are missing."
    with (
        ProgressBar("translating", unit="lines", total=sum(sizes.values())) as bar,
        interrupt_hint(hint),
        _translating(model, translator, workers) as translate,
    ):
        for shard in (each for each in missing if each.source in sizes):
            if column is None:
                lines = read_sources(shard.source, translator.config.data)
            else:
                lines = read_column(shard.source, column)
            begun, done = time.monotonic(), bar.done
            try:
                for each in translate_shard(shard, lines, lambda part: translate(part, settings, None)):
                    bar.advance()
                    if isinstance(each, Failure):
                        failed += 1
                        warn(f"warning: {shard.source}:{each.line}: {each.reason}; its translation is empty")
                    else:
                        for warning in _warnings(each):
                            warn(f"{shard.source}:{bar.done - done}: {warning}")
            except DataError as error:
                failed += 1
                warn(f"warning: {error}; the other files are translated")
                continue
            count, seconds = bar.done - done, time.monotonic() - begun
            note(f"{shard.target}: {count:,} lines, {count / max(seconds, 1e-9):,.0f} lines/s")
    if failed:
        click.get_current_context().exit(1)


def _for_sentences(settings: "DecodingSettings", *, aligned: bool) -> "DecodingSettings":
    """Return settings for texts that are split already."""
    return settings.model_copy(update={"alignment": aligned, "split": "never"})


def _warnings(translation: "Translation") -> list[str]:
    """Return the warnings to print at once: all but signs that the target may be wrong, and targets far too short."""
    short = [each for each in translation.quality_warnings if each.startswith("low_source_use:")]
    return [*translation.warnings, *short]


@contextmanager
def _translating(
    model: Path, translator: "Translator", count: int | None
) -> Iterator[Callable[[Iterable[str], "DecodingSettings", Constraints], Iterator["Translation"]]]:
    """Yield a function that translates texts with the translator, or with `count` processes of the same model.

    None: with the translator, and with as many processes as it has threads once the work is long.
    """
    import torch

    from translume.translator import Workers, translate_with_workers

    several = count is not None and count > 1
    if several and len(translator.models) > 1:
        raise SettingsError(f"workers: found {count} with --ensemble, expected 1")
    weight = next(translator.checkpoint.model.parameters())
    device = weight.device
    if several and device.type != "cpu":
        raise SettingsError(f"workers: found {count} on {device}, expected 1; several are for the CPU")
    dtype = translator.engine.dtype if translator.engine else None
    start = partial(Workers, model, dtype=dtype, plain="bf16" if weight.element_size() < 4 else "fp32")
    if count is not None and count > 1:
        with start(count) as workers:
            yield workers.translate_all
        return
    threads = 1 if device.type != "cpu" else torch.get_num_threads()
    if count == 1 or threads == 1 or len(translator.models) > 1:
        yield lambda texts, settings, required: translator.translate_all(texts, settings=settings, constraints=required)
        return
    yield lambda texts, settings, required: translate_with_workers(
        translator, partial(start, threads), texts, settings, required
    )


def _fields(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the phrases of each line."""
    return ([field for field in line.split("\t") if field.strip()] for line in lines)


def _output_lines(translation: "Translation", line: int, *, as_json: bool, nbest: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(translation.to_dict(), ensure_ascii=False)
    elif nbest and translation.hypotheses:
        for hypothesis in translation.hypotheses:
            yield f"{line}\t{hypothesis.score:.6f}\t{hypothesis.text}"
    else:
        yield f"{line}\t0\t" if nbest else translation.text
