"""translume push"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.options import MODEL, json_option
from translume.cli.terminal import is_quiet, warn
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.interchange.push import Format


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
def command(model: Path, repository: str, format: "Format", private: bool, dry_run: bool, as_json: bool) -> None:
    """Upload MODEL and its model card to OWNER/NAME, which is created if it is new.

    The token is read from HF_TOKEN, or is that of `hf auth login`. The files of `resume/`, the log and the folders of
    training files are not uploaded. Afterwards, hf://OWNER/NAME names the model in every command.
    """
    try:
        from translume.interchange.push import push
    except ModuleNotFoundError as error:
        raise SettingsError(f"push: {error.name} is not installed; pip install 'translume[export]'") from None

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
