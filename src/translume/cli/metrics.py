"""translume metrics"""

import shlex
import sys

import click

from translume.cli.group import CommandGroup


@click.group("metrics", cls=CommandGroup, short_help="Prepare learned metrics.")
def command() -> None:
    """Prepare metrics that need packages in an environment of their own."""


@command.command(
    "install", short_help="Print how to install a metric.", epilog="Example: translume metrics install comet"
)
@click.argument("name", type=click.Choice(["comet"]))
def install(name: str) -> None:
    """Print the commands that make the environment of NAME, where `translume evaluate` looks for it.

    Pipe them to a shell to run them: translume metrics install comet | sh
    """
    from translume.evaluation.comet import PACKAGES, environment

    python = sys.executable if sys.version_info < (3, 13) else "python3.12"  # the last one with a NumPy below 2
    folder = environment()
    click.echo(shlex.join([python, "-m", "venv", str(folder)]))
    click.echo(shlex.join([str(folder / "bin" / "pip"), "install", *PACKAGES]))
