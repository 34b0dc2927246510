"""translume import"""

import json
from pathlib import Path
from typing import Literal

import click

from translume.cli.options import FILE, FOLDER, Compute, json_option, limit_threads, threads_option
from translume.cli.terminal import warn


@click.command(
    "import",
    short_help="Convert a model of transformers or Marian.",
    epilog="Example: translume import hf://Helsinki-NLP/opus-mt-en-de models/en-de",
)
@click.argument("source", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option(
    "--positions",
    type=click.Choice(["hf", "marian"]),
    default="hf",
    show_default=True,
    help="Sinusoidal positions as transformers (hf) or Marian computes them.",
)
@click.option(
    "--vocabs",
    type=FILE,
    nargs=2,
    help="Vocabularies of source and target of a Marian model: .spm or .yml; by default those beside it.",
)
@json_option
@threads_option
def command(
    source: Path,
    out: Path,
    positions: Literal["hf", "marian"],
    vocabs: tuple[Path, Path] | None,
    as_json: bool,
    compute: Compute,
) -> None:
    """Convert the model of transformers or Marian in SOURCE to the new model folder OUT.

    SOURCE is a folder or hf://owner/name[@revision], a repository of the Hugging Face Hub. It contains config.json,
    the weights and a tokenizer: source.spm, target.spm and vocab.json of Marian, or the tokenizer.json of
    `translume export`. Or SOURCE is a .npz or .bin of Marian, or the folder that holds it with its vocabularies and
    decoder.yml. OUT is loaded, and its forced log-probabilities are compared with those of transformers, or of Marian
    if pymarian is installed. The difference is printed and stored in OUT. Features that Translume does not support are
    refused by name.
    """
    from translume.interchange.importing import import_model

    limit_threads(compute)
    imported = import_model(source, out, positions=positions, vocabularies=vocabs or ())
    if as_json:
        click.echo(json.dumps(imported.to_dict()))
        return
    for line in imported.notes:
        warn(f"Note: {line}")
    click.echo(f"{out}: {imported.certificate or 'written'}")
