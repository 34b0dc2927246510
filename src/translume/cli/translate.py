"""translume translate"""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.engines import engine, engine_option, ensemble_at, ensemble_options, translating, workers_option
from translume.cli.group import resume_with
from translume.cli.options import (
    FILE,
    FOLDER,
    changed,
    compute,
    decoding_options,
    engine_compute_options,
    json_option,
    set_option,
)
from translume.cli.terminal import Meter, note

if TYPE_CHECKING:
    from translume.decoding import Average
    from translume.translator import Translation


@click.command(
    "translate",
    short_help="Translate lines of text.",
    epilog="Example: translume translate models/en-de --beam 8 < test.en > test.de",
)
@click.argument("model", type=FOLDER)
@click.argument("file", default="-", metavar="[FILE]")
@decoding_options
@click.option(
    "--constraints-per-line",
    "constraints",
    type=FILE,
    help="What each line's target must hold: words and phrases parted by tabs, a line for each line.",
)
@json_option
@set_option
@ensemble_options
@engine_option
@workers_option
@engine_compute_options
def command(
    model: Path,
    file: str,
    constraints: Path | None,
    others: tuple[Path, ...],
    average: "Average | None",
    workers: int | None,
    as_json: bool,
) -> None:
    """Translate lines of standard input, or of FILE, to standard output: a line in, a line out.

    With --nbest, each line out has three fields parted by tabs: the number of the line in, the score, the target.
    """
    from translume.data import read_lines

    where = compute()
    translator = ensemble_at(model, others, average, where, engine())
    settings = changed(translator.config, "decoding").decoding
    with Meter("translating", unit="lines", prints=True) as meter, translating(model, translator, workers) as translate:
        lines = read_lines(file)
        # Whoever types wants an answer to each line; files and pipes are read ahead, for batches of like lengths.
        wanted = None if constraints is None else _fields(read_lines(constraints))
        typed = (([line], wanted and islice(wanted, 1)) for line in lines)
        parts = typed if file == "-" and sys.stdin.isatty() else [(lines, wanted)]
        translations = (each for part, held in parts for each in translate(part, settings, held))
        for translation in translations:
            meter.advance()
            for warning in translation.warnings:
                note(f"line {meter.done}: {warning}")
            for line in _shown(translation, meter.done, as_json=as_json, many=settings.nbest > 1):
                click.echo(line)
            resume_with([f"Interrupted after line {meter.done}; go on with `tail -n +{meter.done + 1}`"])


def _fields(lines: Iterable[str]) -> Iterator[list[str]]:
    """The phrases of each line."""
    return ([field for field in line.split("\t") if field.strip()] for line in lines)


def _shown(translation: "Translation", line: int, *, as_json: bool, many: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(translation.to_dict(), ensure_ascii=False)
    elif many and translation.hypotheses:
        for hypothesis in translation.hypotheses:
            yield f"{line}\t{hypothesis.score:.6f}\t{hypothesis.text}"
    else:
        yield f"{line}\t0\t" if many else translation.text
