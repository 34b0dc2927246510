"""The group of all verbs: finds them by name, and turns what goes wrong into one line and an exit code."""

import importlib
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from io import TextIOWrapper
from typing import Any

import click

from translume.errors import TranslumeError

VERBS = (
    "demo",
    "init",
    "train",
    "translate",
    "classify",
    "score",
    "evaluate",
    "inspect",
    "heads",
    "export",
    "import",
    "serve",
    "keys",
    "show",
    "config",
    "data",
    "tokenizer",
)
"""In the order in which a newcomer meets them."""
MODULES = {"import": "importing"}
"""Where a verb's module cannot be named like it."""

INTERRUPTED, PIPE_CLOSED = 130, 141
HINT = "translume.hint"
"""Key in the context's `meta` of what to say when Ctrl-C ends a verb: how to go on."""


class Nearest(click.Group):
    """A group that keeps its verbs in order and answers an unknown word with the nearest known one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if not word.startswith("-") and self.get_command(ctx, word) is None:
            known = self.list_commands(ctx)
            close = get_close_matches(word, known, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"
            click.echo(f"Error: {ctx.command_path} {word}: no such command{hint}", err=True)
            ctx.exit(2)
        return super().resolve_command(ctx, args)


class Verbs(Nearest):
    """The verbs of `translume`, each the `command` of the module in `translume.cli` that is named like it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"translume.cli.{MODULES.get(cmd_name, cmd_name)}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        _write_utf8()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except TranslumeError as error:
            _fail(ctx, str(error))
        except BrokenPipeError:
            _abandon_output()
            ctx.exit(PIPE_CLOSED)
        except KeyboardInterrupt:
            click.echo(f"\n{ctx.meta.get(HINT, 'Interrupted; the same command starts again.')}", err=True)
            ctx.exit(INTERRUPTED)
        except (MemoryError, RuntimeError) as error:
            if not _is_want_of_memory(error):
                raise
            _fail(
                ctx, f"not enough memory{_asked(error)}; wanted less at once: fewer tokens in a batch, a smaller beam"
            )
        except OSError as error:
            if not error.filename:
                _abandon_output()
            _fail(ctx, f"{error.filename or 'standard output'}: {error.strerror or error}")


def _is_want_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether it is torch's, which has a class for a device's memory only, or Python's."""
    return isinstance(error, MemoryError) or any(
        sign in str(error) for sign in ("can't allocate memory", "out of memory")
    )


def _asked(error: MemoryError | RuntimeError) -> str:
    found = re.search(r"tried to allocate ([\d.]+ ?\w+)", str(error), re.IGNORECASE)
    return f" for {found.group(1)} more" if found else ""


def _write_utf8() -> None:
    """Text comes in as UTF-8, so it goes out as UTF-8, whatever the locale, and a line ends with one character."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


def _abandon_output() -> None:
    """What is still in the buffer has nowhere to go: its reader has gone, or the disk is full."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(ctx: click.Context, message: str) -> None:
    click.echo(f"Error: {' '.join(message.splitlines())}", err=True)
    ctx.exit(1)


def version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """Print the installed version and stop."""
    if wanted:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            click.echo(f"translume {installed('translume')}")
        except PackageNotFoundError:
            click.echo("translume (not installed: run from its sources)")
        ctx.exit()


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with `translume demo`. Every verb has examples: `translume train --help`.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=version, help="Show the version.")
def main() -> None:
    """Train, measure and use translators: from two text files to a model."""


def resume_with(words: Sequence[str]) -> None:
    """Say this line when Ctrl-C ends the verb that runs now."""
    click.get_current_context().meta[HINT] = " ".join(words)
