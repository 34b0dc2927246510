"""translume classify"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.group import resume_with
from translume.cli.options import FOLDER, changed, compute, compute_options, json_option, set_option
from translume.cli.terminal import Meter, note

if TYPE_CHECKING:
    from translume.translator import Classification, Classifier


@click.command(
    "classify",
    short_help="Label lines of text.",
    epilog="Example: translume classify models/trec6 --nbest 3 < questions > labels",
)
@click.argument("model", type=FOLDER)
@click.argument("file", default="-", metavar="[FILE]")
@click.option("--nbest", type=click.IntRange(min=1), default=1, metavar="N", help="Labels shown for each line.")
@json_option
@set_option
@compute_options
def command(model: Path, file: str, nbest: int, as_json: bool) -> None:
    """Label lines of standard input, or of FILE, by a trained classifier: a line in, a label out.

    With --nbest, each line out has three fields parted by tabs: the number of the line in, the probability, the label.
    --json shows the probabilities of all labels, or of the N likeliest.
    """
    from translume.data import read_lines

    classifier = load_as_told(model)
    cut = 0
    with Meter("classifying", unit="lines", prints=True) as meter:
        lines = read_lines(file)
        # Whoever types wants an answer to each line; files and pipes are read ahead, for batches of like lengths.
        parts = ([line] for line in lines) if file == "-" and sys.stdin.isatty() else [lines]
        for found in (each for part in parts for each in classifier.classify_all(part)):
            meter.advance()
            cut += bool(found.warnings)
            for line in _shown(found, meter.done, nbest=nbest, as_json=as_json):
                click.echo(line)
            resume_with([f"Interrupted after line {meter.done}; go on with `tail -n +{meter.done + 1}`"])
    tell_of_cuts(cut, meter.done)


def load_as_told(model: Path) -> "Classifier":
    """The classifier in a folder, on the device of the running verb, with its --set."""
    from dataclasses import replace

    from translume.translator import Classifier, load_classifier

    where = compute()
    loaded = load_classifier(model, device=where.device, dtype=where.plain_dtype, threads=where.threads)
    config = changed(loaded.config, "decoding", "data")
    return Classifier(replace(loaded.checkpoint, config=config))


def tell_of_cuts(cut: int, texts: int) -> None:
    """Say it if some texts were not read whole."""
    if cut:
        note(f"{cut:,} of {texts:,} texts were longer than the model reads and were cut")


def _shown(found: "Classification", line: int, *, nbest: int, as_json: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(found.to_dict(nbest if nbest > 1 else 0), ensure_ascii=False)
    elif nbest > 1:
        for label, probability in found.probabilities[:nbest]:
            yield f"{line}\t{probability:.6f}\t{label}"
    else:
        yield found.label
