"""translume config"""

from pathlib import Path

import click

from translume.cli.options import FILE, decoding_options, json_option, set_option


@click.command(
    "config",
    short_help="Print every setting that a run would use.",
    epilog="Example: translume config en-de.toml --set model.width=128",
)
@click.argument("file", type=FILE)
@click.option("--comments/--no-comments", default=True, help="Explain each setting.  [default: comments]")
@decoding_options
@json_option
@set_option
def command(file: Path, comments: bool, as_json: bool, overrides: tuple[str, ...]) -> None:
    """Print every setting that a run with FILE (a TOML file or a model folder) would use."""
    from translume.config import Config

    if file.is_dir():
        from translume.checkpoint import read_config

        settings = read_config(file).change(*overrides)
    else:
        settings = Config.read(file, overrides)
    click.echo(settings.model_dump_json() if as_json else settings.to_toml(comments=comments).rstrip("\n"))
