"""translume serve"""

from pathlib import Path

import click

from translume.cli.engines import engine, engine_option, translator_at
from translume.cli.group import resume_with
from translume.cli.options import FOLDER, compute, compute_options
from translume.cli.terminal import note
from translume.errors import SettingsError


@click.command(
    "serve",
    short_help="Answer requests for translations over HTTP.",
    epilog="Example: translume serve models/en-de --port 8000",
)
@click.argument("models", type=FOLDER, nargs=-1, required=True, metavar="MODEL...")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="0.0.0.0 is all of them.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 is any free one.")
@click.option("--metrics", is_flag=True, help="Offer counts for Prometheus at /metrics.")
@engine_option
@compute_options
def command(models: tuple[Path, ...], host: str, port: int, metrics: bool) -> None:
    """Translate for programs, over HTTP, with one or more models.

    A model is called like its folder, or as NAME=MODEL says. /openapi.json lists all addresses; docs/serving.md has
    examples. Ctrl-C or SIGTERM ends it once what was begun is answered.
    """
    try:
        from translume.serving.app import build_app
        from translume.serving.models import Models, Served
        from translume.serving.run import listen, serve
        from translume.serving.server import Server
    except ModuleNotFoundError as error:
        raise SettingsError(f"serve: {error.name} is not installed; pip install 'translume[serve]'") from None

    where = compute()
    resume_with(["Stopped."])
    served = [Served.of(name, translator_at(folder, where, engine())) for name, folder in map(_named, models)]
    with listen(host, port) as bound:
        found = Server(models=Models(served))
        address = f"[{host}]" if ":" in host else host
        note(f"serving {', '.join(each.name for each in served)} at http://{address}:{bound.getsockname()[1]}")
        serve(build_app(found, metrics=metrics), bound, found.limits)


def _named(model: Path) -> tuple[str, Path]:
    """A model's name and folder."""
    name, equals, folder = str(model).partition("=")
    if equals and name and "/" not in name and not model.exists():
        return name, Path(folder)
    return model.resolve().name, model
