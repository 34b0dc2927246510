"""translume score"""

import json
import math
from pathlib import Path

import click

from translume.cli.options import FILE, MODEL, Compute, compute_options, json_option
from translume.cli.terminal import ProgressBar, warn


@click.command(
    "score",
    short_help="Print log-probabilities of given translations.",
    epilog="Example: translume score models/en-de test.en test.de > log_probs.txt",
)
@click.argument("model", type=MODEL)
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
@click.option("--to", metavar="CODE", help="Language of the targets, of a model with several.")
@click.option("--from", "from_", metavar="CODE", help="Language of the sources.")
@json_option
@compute_options
def command(
    model: Path, source: Path, target: Path, to: str | None, from_: str | None, as_json: bool, compute: Compute
) -> None:
    """Print the log-probability of each target given its source, end mark included, in nats, one a line."""
    from translume.config import DataSettings
    from translume.data import read_pairs

    translator = compute.load_plain(model)
    files = DataSettings(train_source=(str(source),), train_target=(str(target),))
    pairs = ((pair.source, pair.target) for pair in read_pairs(files, "train"))
    impossible = 0
    with ProgressBar("scoring", unit="pairs", prints=True) as bar:
        for score in translator.score_all(pairs, to=to, from_=from_):
            bar.advance()
            click.echo(json.dumps(score.to_dict(), ensure_ascii=False) if as_json else f"{score.log_prob:.6f}")
            impossible += score.log_prob == -math.inf
    if impossible:
        warn(f"{impossible} targets contain a token of probability 0")
