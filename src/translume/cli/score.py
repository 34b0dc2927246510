"""translume score"""

import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.bulk import FileOptions, FileWork, json_row, line_row, pair_file_options, pair_files
from translume.cli.options import FILE, MODEL, Compute, direction_options, engine_compute_options, json_option
from translume.cli.terminal import ProgressBar, warn
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.translator import TargetScore


class _Impossible:
    """Count the targets of probability 0."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, score: "TargetScore") -> None:
        self.count += score.log_prob == -math.inf

    def report(self) -> None:
        if self.count:
            warn(f"{self.count} targets contain a token of probability 0")


@click.command(
    "score",
    short_help="Print log-probabilities of given translations.",
    epilog="Example: translume score models/en-de test.en test.de > log_probs.txt",
)
@click.argument("model", type=MODEL)
@click.argument("source", type=FILE, required=False)
@click.argument("target", type=FILE, required=False)
@direction_options
@pair_file_options
@json_option
@engine_compute_options
def command(
    model: Path,
    source: Path | None,
    target: Path | None,
    to: str | None,
    from_: str | None,
    files: FileOptions,
    as_json: bool,
    compute: Compute,
) -> None:
    """Print the log-probability of each target given its source, EOS included, in nats, one a line.

    A model with context reads the lines before; blank lines separate documents.

    With --input and --output, the pairs of many files are scored, with --workers N by N processes. Each output,
    NAME.log_probs, appears when it is complete, so the same command continues after an interruption. A pair that cannot
    be scored is reported and becomes an empty line.
    """
    from translume.config import DataSettings
    from translume.data.evaluation_files import refuse_tables
    from translume.data.pairs import read_pairs
    from translume.translator import Translator

    folder = files.folder("SOURCE")
    if folder is None and (source is None or target is None):
        raise SettingsError("score: expected MODEL SOURCE TARGET, or --input and --output")
    translator = Translator.load(model, compute.to_load())
    impossible = _Impossible()

    def report(place: str, score: "TargetScore") -> None:
        impossible.add(score)
        for warning in score.warnings:
            warn(f"{place}: {warning}")

    if folder is not None:
        direction = translator.direction(to=to, from_=from_)
        languages = {"from_": direction.source, "to": direction.target}
        work = FileWork(
            model=model,
            loaded=translator,
            work=Translator.score_lines,
            settings=translator.config.decoding.model_copy(update=languages),
            files=files,
            row=json_row if as_json else partial(line_row, value=lambda found: f"{found.log_prob:.6f}"),
            report=report,
        )
        failed = work.process(pair_files(files, translator.config, ".jsonl" if as_json else ".log_probs"))
        impossible.report()
        if failed:
            click.get_current_context().exit(1)
        return
    assert source is not None
    assert target is not None
    refuse_tables(source, target, translator.config.data)
    data = DataSettings(train_source=(str(source),), train_target=(str(target),))
    pairs = ((pair.source, pair.target) for pair in read_pairs(data, "train"))
    with ProgressBar("scoring", unit="pairs", prints=True) as bar:
        for each in translator.score_all(pairs, documents=True, to=to, from_=from_):
            bar.advance()
            report(f"line {bar.done}", each)
            click.echo(json.dumps(each.to_dict(), ensure_ascii=False) if as_json else f"{each.log_prob:.6f}")
    impossible.report()
