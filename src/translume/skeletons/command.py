"""A command: translume --import my_part.py my_part MODEL."""

from pathlib import Path

import click

from translume.parts import part


@part("command", "my_part", interface=1)
@click.command("my_part", short_help="Print the number of parameters of a model.")
@click.argument("model", type=Path)
def my_part(model: Path) -> None:
    """Print the number of parameters of MODEL."""
    import translume

    click.echo(f"{translume.load(model).checkpoint.parameters:,}")
