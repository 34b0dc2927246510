"""translume keys"""

import json
from pathlib import Path

import click

from translume.cli.group import CommandGroup
from translume.cli.options import FILE, json_option
from translume.cli.terminal import note

EXAMPLE = "Example: translume keys add keys.json alice --requests-per-minute 60"


@click.group("keys", cls=CommandGroup, short_help="Manage the API keys of a server.")
def command() -> None:
    """Add, list and remove the API keys that `translume serve --keys FILE` accepts.

    A running server reloads FILE on SIGHUP.
    """


@command.command("add", short_help="Add a key.", epilog=EXAMPLE)
@click.argument("file", type=FILE)
@click.argument("name")
@click.option("--requests-per-minute", type=click.IntRange(min=1, max=10**12), metavar="N")
@click.option("--characters-per-day", type=click.IntRange(min=0, max=10**12), metavar="N", help="0: no limit.")
def add(file: Path, name: str, requests_per_minute: int | None, characters_per_day: int | None) -> None:
    """Create a key for NAME and print it. It is printed only once: FILE stores only its digest.

    Limits that are not given are those in [keys] of the server's settings.
    """
    from translume.serving.access.keys import add_key

    limits = {"requests_per_minute": requests_per_minute, "characters_per_day": characters_per_day}
    click.echo(add_key(file, name, {limit: value for limit, value in limits.items() if value is not None}))
    note(f"added {name} to {file}; the key is not shown again")


@command.command("list", short_help="List the keys.", epilog="Example: translume keys list keys.json")
@click.argument("file", type=FILE)
@click.option("--usage", metavar="PLACE", help="Where the server counts, as keys.usage.  [default: FILE.usage]")
@json_option
def list_(file: Path, usage: str | None, as_json: bool) -> None:
    """Print the name, id, date and limits of each key, and its requests of this minute and characters of this day."""
    from translume.serving.access.keys import Keys
    from translume.serving.access.quotas import open_counts, used_of

    place = usage or f"{file}.usage"
    keys = Keys.read(file).all
    counts = open_counts(place) if "://" in place or Path(place).exists() else None
    for key in keys:
        requests, characters = used_of(counts, key) if counts is not None else (0, 0)
        shown = {name: value for name, value in key.to_dict().items() if name not in ("salt", "digest")}
        if as_json:
            click.echo(json.dumps({**shown, "requests": requests, "characters": characters}, ensure_ascii=False))
            continue
        limits = [f"{name} {shown[name]:,}" for name in ("requests_per_minute", "characters_per_day") if shown[name]]
        described = f"; {', '.join(limits)}" if limits else ""
        click.echo(f"{key.name}  {key.id}  {key.made}  {requests:,} requests, {characters:,} characters{described}")


@command.command("remove", short_help="Remove a key.", epilog="Example: translume keys remove keys.json alice")
@click.argument("file", type=FILE)
@click.argument("name")
def remove(file: Path, name: str) -> None:
    """Remove the key with this NAME or id from FILE."""
    from translume.serving.access.keys import remove_key

    remove_key(file, name)
    note(f"removed {name} from {file}; a running server rejects it after SIGHUP")
