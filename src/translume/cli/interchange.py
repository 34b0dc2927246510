"""translume export, translume import and translume push"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from translume.cli.options import FILE, FOLDER, MODEL, Compute, json_option, limit_threads, threads_option
from translume.cli.terminal import is_quiet, warn

if TYPE_CHECKING:
    from translume.interchange.push import Format

DTYPES = ("float32", "float16", "bfloat16", "int16", "int8")


@click.command(
    "export",
    short_help="Convert a model for another toolkit.",
    epilog="Example: translume export models/en-de ctranslate2 out/ --weights int8",
)
@click.argument("model", type=MODEL)
@click.argument("target")
@click.argument("out", type=FOLDER)
@click.option("--weights", "dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@json_option
@threads_option
def export_(model: Path, target: str, out: Path, dtype: str, as_json: bool, compute: Compute) -> None:
    """Convert MODEL for TARGET (ctranslate2, huggingface, marian or onnx) into the new folder OUT.

    The export is loaded, and its forced log-probabilities are compared with the model's. The difference is printed and
    stored in OUT. Features that the target does not support are refused by name. For ctranslate2, `tokenizer.json` (or
    `source.json` and `target.json`) is a tokenizer of the library `tokenizers`. For huggingface, post-norm models
    become MarianMTModel, pre-norm models Pegasus, with AutoTokenizer. For onnx, the folder is what Optimum and
    transformers.js load, and onnx/translate.onnx translates ids by greedy search in ONNX Runtime alone. For marian, the
    model must be one that was imported from Marian.
    """
    from translume.interchange.export import export

    limit_threads(compute)
    certificate = export(model, target, out, dtype=dtype)
    if as_json:
        click.echo(json.dumps(certificate.to_dict()))
        return
    click.echo(f"{out}: {target}, {dtype}; {certificate}")
    if certificate.same_translations is not None:
        click.echo(f"{certificate.same_translations} of {certificate.sentences} greedy translations are the same ids")


@click.command(
    "import",
    short_help="Convert a model of another toolkit.",
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
    help="Vocabularies of source and target of Marian (.spm or .yml) or fairseq (dict); by default those beside it.",
)
@json_option
@threads_option
def import_(
    source: Path,
    out: Path,
    positions: Literal["hf", "marian"],
    vocabs: tuple[Path, Path] | None,
    as_json: bool,
    compute: Compute,
) -> None:
    """Convert the model of another toolkit in SOURCE to the new model folder OUT.

    SOURCE is a folder or hf://owner/name[@revision], a repository of the Hugging Face Hub. It contains config.json,
    the weights and a tokenizer: source.spm, target.spm and vocab.json of Marian, or the tokenizer.json of
    `translume export`. Or SOURCE is a .npz or .bin of Marian, or the folder that holds it with its vocabularies and
    decoder.yml; or a checkpoint of fairseq, OpenNMT-py, JoeyNMT or Sockeye, or the folder that holds it, or one of
    EOLE. OUT is loaded, and its forced log-probabilities are compared with those of transformers, or of Marian
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


@click.command(
    "push",
    short_help="Upload a model to the Hugging Face Hub.",
    epilog="Example: translume push models/en-de me/en-de --dry-run",
)
@click.argument("model", type=MODEL)
@click.argument("repository", metavar="OWNER/NAME")
@click.option(
    "--format",
    type=click.Choice(["translume", "huggingface", "onnx", "ctranslate2"]),
    default="translume",
    show_default=True,
    help="The model folder, or an export of it.",
)
@click.option("--private", is_flag=True, help="Create a private repository. An existing one stays as it is.")
@click.option("--dry-run", is_flag=True, help="Print the files and the model card instead of uploading them.")
@json_option
def push_(model: Path, repository: str, format: "Format", private: bool, dry_run: bool, as_json: bool) -> None:
    """Upload MODEL and its model card to OWNER/NAME, which is created if it is new.

    The token is read from HF_TOKEN, or is that of `hf auth login`. The files of `resume/`, the log and the folders of
    training files are not uploaded. Afterwards, hf://OWNER/NAME names the model in every command.
    """
    from translume.interchange.push import push

    pushed = push(model, repository, format=format, private=private, dry_run=dry_run, progress=not is_quiet())
    for line in pushed.notes:
        warn(f"Note: {line}")
    if as_json:
        click.echo(json.dumps(pushed.to_dict(), ensure_ascii=False))
    elif dry_run:
        for name, size in pushed.files.items():
            click.echo(f"{size:>15,}  {name}")
        click.echo(f"{sum(pushed.files.values()):>15,}  bytes to {pushed.address}\n\n{pushed.card.rstrip()}")
    else:
        click.echo(
            f"{pushed.address}: {len(pushed.files)} files, {sum(pushed.files.values()):,} bytes, {pushed.commit}"
        )
