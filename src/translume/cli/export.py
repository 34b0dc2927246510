"""translume export"""

import json
from pathlib import Path

import click

from translume.cli.options import FOLDER, MODEL, Compute, json_option, limit_threads, threads_option

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
def command(model: Path, target: str, out: Path, dtype: str, as_json: bool, compute: Compute) -> None:
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
