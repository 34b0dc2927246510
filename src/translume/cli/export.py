"""translume export"""

import json
from pathlib import Path

import click

from translume.cli.options import FOLDER, json_option, limit_threads, threads_option

DTYPES = ("float32", "float16", "bfloat16", "int16", "int8")


@click.command(
    "export",
    short_help="Write a model for another toolkit.",
    epilog="Example: translume export models/en-de ctranslate2 out/ --weights int8",
)
@click.argument("model", type=FOLDER)
@click.argument("target")
@click.argument("out", type=FOLDER)
@click.option("--weights", "dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@json_option
@threads_option
def command(model: Path, target: str, out: Path, dtype: str, as_json: bool) -> None:
    """Write MODEL for TARGET (ctranslate2 or huggingface) into the new folder OUT.

    The export is read back and its forced log-probabilities are compared with the model's; how far they are apart is
    printed and kept in OUT. What the target cannot express is refused by name. For ctranslate2, `tokenizer.json` (or
    `source.json` and `target.json`) beside it is the tokenizer as Translume reads it; for huggingface, post-norm models
    become MarianMTModel and pre-norm ones Pegasus, with a tokenizer.json that AutoTokenizer reads.
    """
    from translume.interchange.export import export

    limit_threads()
    certificate = export(model, target, out, dtype=dtype)
    if as_json:
        click.echo(json.dumps(certificate.to_dict()))
        return
    click.echo(
        f"{out}: {target}, {dtype}; {certificate.tokens} tokens of {certificate.sentences} random sentences differ by "
        f"at most {certificate.difference:.2g} nats, {certificate.mean_difference:.2g} on average"
    )
