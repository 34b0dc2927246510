"""translume keys"""

import json
import math
from pathlib import Path

import click

from translume.cli.group import Nearest
from translume.cli.options import FILE, json_option
from translume.cli.terminal import note
from translume.errors import SettingsError

EXAMPLE = "Example: translume keys add keys.json alice --requests-per-minute 60"


@click.group("keys", cls=Nearest, short_help="Keys of those who may ask a server.")
def command() -> None:
    """Make, list and remove the keys that `translume serve --keys FILE` asks for.

    A server that runs takes a changed FILE at SIGHUP.
    """


@command.command("add", short_help="Make a key.", epilog=EXAMPLE)
@click.argument("file", type=FILE)
@click.argument("name")
@click.option("--requests-per-minute", type=click.FloatRange(min=0, min_open=True, max=1e12), metavar="X")
@click.option("--burst", type=click.IntRange(min=1, max=10**12), metavar="N", help="Requests that may come at once.")
@click.option("--characters-per-day", type=click.IntRange(min=0, max=10**12), metavar="N", help="0: without end.")
def add(
    file: Path, name: str, requests_per_minute: float | None, burst: int | None, characters_per_day: int | None
) -> None:
    """Make a key for NAME, and print it: this once, for FILE keeps only its digest.

    Limits that are not given are the server's, `[keys]` of its settings.
    """
    from translume.serving.access.keys import add_key

    if requests_per_minute is not None and math.isnan(requests_per_minute):
        raise SettingsError("--requests-per-minute: found nan, wanted a number above 0")
    given = {
        "requests_per_minute": requests_per_minute,
        "burst": burst,
        "characters_per_day": characters_per_day,
    }
    secret = add_key(file, name, {name: value for name, value in given.items() if value is not None})
    click.echo(secret)
    note(f"added {name} to {file}; the key is shown this once")


@command.command("list", short_help="What keys there are.", epilog="Example: translume keys list keys.json")
@click.argument("file", type=FILE)
@click.option("--usage", type=FILE, metavar="FILE", help="Where a server counts.  [default: FILE.usage]")
@json_option
def list_(file: Path, usage: Path | None, as_json: bool) -> None:
    """Show name, id, date and limits of each key, and what it has used in all."""
    from translume.serving.access.keys import Keys
    from translume.serving.access.usage import totals_in

    keys = Keys.read(file)
    used = totals_in(usage or file.with_name(f"{file.name}.usage"))
    for key in keys.all:
        requests, characters = used.get(key.id, (0, 0))
        shown = {name: value for name, value in key.to_dict().items() if name not in ("salt", "digest")}
        if as_json:
            click.echo(json.dumps({**shown, "requests": requests, "characters": characters}, ensure_ascii=False))
            continue
        limits = [f"{name} {shown[name]:,}" for name in shown if name not in ("name", "id", "made")]
        own = f"; {', '.join(limits)}" if limits else ""
        click.echo(f"{key.name}  {key.id}  {key.made}  {requests:,} requests, {characters:,} characters{own}")


@command.command("remove", short_help="Take a key away.", epilog="Example: translume keys remove keys.json alice")
@click.argument("file", type=FILE)
@click.argument("name")
def remove(file: Path, name: str) -> None:
    """Take the key of NAME (or of that id) out of FILE."""
    from translume.serving.access.keys import remove_key

    remove_key(file, name)
    note(f"removed {name} from {file}; a server that runs forgets it at SIGHUP")
