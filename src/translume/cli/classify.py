"""translume classify"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import MODEL, Compute, changed, compute_options, json_option, refuse_settings, set_option
from translume.cli.terminal import ProgressBar, warn

if TYPE_CHECKING:
    from translume.translator import Classification, Classifier


@click.command(
    "classify",
    short_help="Label lines of text.",
    epilog="Example: translume classify models/trec6 --nbest 3 < questions > labels",
)
@click.argument("model", type=MODEL)
@click.argument("file", default="-", metavar="[FILE]")
@click.option("--nbest", type=click.IntRange(min=1), default=1, metavar="N", help="Labels printed for each line.")
@json_option
@set_option
@compute_options
def command(model: Path, file: str, nbest: int, as_json: bool, overrides: tuple[str, ...], compute: Compute) -> None:
    """Label lines of standard input, or of FILE, with a trained classifier, one label for each line.

    With --nbest, every output line has three fields separated by tabs: the number of the input line, the probability,
    the label. --json prints the probabilities of all labels, or of the N likeliest.
    """
    from translume.data.evaluation_files import read_sources

    refuse_settings("classify", overrides, "classifier", allowed=("decoding.max_length_action",))
    classifier = load_classifier_with(model, overrides, compute)
    truncated = 0
    with (
        ProgressBar("classifying", unit="lines", prints=True) as bar,
        interrupt_hint(bar.hint),
    ):
        lines = read_sources(file, classifier.config.data)
        # A typed line is classified at once; files and pipes are read ahead, for batches of similar lengths.
        parts = ([line] for line in lines) if file == "-" and sys.stdin.isatty() else [lines]
        for found in (each for part in parts for each in classifier.classify_all(part)):
            bar.advance()
            truncated += bool(found.warnings)
            for line in _output_lines(found, bar.done, nbest=nbest, as_json=as_json):
                click.echo(line)
    note_truncated(truncated, bar.done)


def load_classifier_with(model: Path, overrides: tuple[str, ...], compute: Compute) -> "Classifier":
    """Return the classifier in a folder, with overrides of [decoding] and [data]."""
    from translume.translator import Classifier

    loaded = Classifier.load(model, compute.to_load())
    config = changed(loaded.config, overrides, "decoding", "data")
    return Classifier(replace(loaded.checkpoint, config=config))


def note_truncated(truncated: int, texts: int) -> None:
    """Print how many texts were truncated, if any."""
    if truncated:
        warn(f"{truncated:,} of {texts:,} texts were longer than the model reads and were truncated")


def _output_lines(found: "Classification", line: int, *, nbest: int, as_json: bool) -> Iterator[str]:
    if not found.source.strip():  # an empty line stays empty
        found = replace(found, labels=(), probabilities=())
    if as_json:
        yield json.dumps(found.to_dict(nbest if nbest > 1 else 0), ensure_ascii=False)
    elif nbest > 1 and found.probabilities:
        for label, probability in found.probabilities[:nbest]:
            yield f"{line}\t{probability:.6f}\t{label}"
    else:
        yield f"{line}\t0\t" if nbest > 1 else found.label
