"""translume import"""

import json
from pathlib import Path
from typing import Literal

import click

from translume.cli.options import FOLDER, Compute, json_option, limit_threads, threads_option
from translume.cli.terminal import warn


@click.command(
    "import",
    short_help="Convert a model of transformers.",
    epilog="Example: translume import opus-mt-en-de/ models/en-de",
)
@click.argument("folder", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option(
    "--positions",
    type=click.Choice(["hf", "marian"]),
    default="hf",
    show_default=True,
    help="Sinusoidal positions as transformers (hf) or Marian computes them.",
)
@json_option
@threads_option
def command(folder: Path, out: Path, positions: Literal["hf", "marian"], as_json: bool, compute: Compute) -> None:
    """Convert the model of transformers in FOLDER to the new model folder OUT.

    FOLDER contains a MarianMTModel, such as OPUS-MT's, or a PegasusForConditionalGeneration: config.json,
    model.safetensors and a tokenizer, either source.spm, target.spm and vocab.json or the tokenizer.json of
    `translume export`. OUT is loaded, and its forced log-probabilities are compared with those of transformers. The
    difference is printed and stored in OUT. Features that Translume does not support are refused by name.
    """
    from translume.interchange.importing import import_model

    limit_threads(compute)
    found = import_model(folder, out, positions=positions)
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return
    for line in found.notes:
        warn(f"Note: {line}")
    certificate = found.certificate
    click.echo(
        f"{out}: {certificate.tokens} tokens of {certificate.sentences} random sentences differ by at most "
        f"{certificate.difference:.2g} nats, {certificate.mean_difference:.2g} on average"
    )
