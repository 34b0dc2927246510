"""The `translume` command: finds subcommands by name and turns errors into one line and an exit code."""

import atexit
import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import Any

import click

from translume.cli.terminal import (
    QUIET,
    OutputError,
    abandon_output,
    expected_text,
    flushed_output,
    open_standard_streams,
    undecoded_byte,
)
from translume.errors import ModelFolderError, TranslumeError, nearest, needed_by, reason_of
from translume.parts import find, load_parts

COMMANDS: dict[str, Any] = {
    "demo": "translume.cli.demo:demo",
    "init": "translume.cli.init:command",
    "train": "translume.cli.train:command",
    "translate": "translume.cli.translate:command",
    "backtranslate": "translume.cli.synthetic:backtranslate",
    "distil": "translume.cli.synthetic:distil",
    "classify": "translume.cli.classify:command",
    "generate": "translume.cli.generate:command",
    "score": "translume.cli.score:command",
    "evaluate": "translume.cli.evaluate:command",
    "inspect": "translume.cli.inspect:command",
    "sweep": "translume.cli.sweep:sweep",
    "heads": "translume.cli.sweep:heads",
    "tune": "translume.cli.tune:command",
    "export": "translume.cli.interchange:export_",
    "import": "translume.cli.interchange:import_",
    "push": "translume.cli.interchange:push_",
    "models": "translume.cli.interchange:models",
    "serve": "translume.cli.serve:command",
    "keys": "translume.cli.keys:command",
    "show": "translume.cli.show:command",
    "pack": "translume.cli.show:pack",
    "config": "translume.cli.show:config",
    "data": "translume.cli.data:command",
    "metrics": "translume.cli.metrics:command",
    "tokenizer": "translume.cli.tokenizer:command",
    "new": "translume.cli.new:new",
    "docs": "translume.cli.docs:command",
    "completion": "translume.cli.group:completion",
}
"""The commands, in the order of --help."""

_WORDS = "translume.words"
"""Key of the arguments in the context of the command line."""
MANIFEST = "manifest.json"
"""The file that a model folder has."""
HUNG_UP, INTERRUPTED, PIPE_CLOSED, TERMINATED = 129, 130, 141, 143
"""Exit codes: 128 and the number of the signal."""

COLLECTED_OBJECTS = 10_000
"""New objects after which Python looks for cycles of garbage. With its default, 700, it takes a tenth of a start."""
BURST_SECONDS = 1.0
"""A repeated Ctrl-C within this time is the same one: wrappers and terminals may send several."""


class CommandInterruptedError(Exception):
    """Ctrl-C ended a command; the text says how to continue."""


@contextmanager
def interrupt_hint(hint: str | Callable[[], str]) -> Iterator[None]:
    """Print `hint`, or what it returns, if Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandInterruptedError(hint if isinstance(hint, str) else hint()) from None


class CommandGroup(click.Group):
    """A group that lists its commands in order of definition and suggests the nearest one for an unknown word."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if not word.startswith("-") and self.get_command(ctx, word) is None:
            hint = nearest(word, self.list_commands(ctx))
            click.echo(f"Error: {ctx.command_path} {word}: no such command{hint}", err=True)
            ctx.exit(2)
        return super().resolve_command(ctx, args)


def _set_quiet(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta[QUIET] = value


_QUIET_OPTION = click.Option(
    ["--quiet"],
    is_flag=True,
    is_eager=True,  # models are downloaded while the other parameters are read
    expose_value=False,
    callback=_set_quiet,
    help="Print no notes and no progress; warnings and errors remain.",
)


def _import_parts(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    load_parts(values)


_IMPORT_OPTION = click.Option(
    ["--import"],
    metavar="MODULE",
    multiple=True,
    is_eager=True,  # settings may name its parts
    expose_value=False,
    callback=_import_parts,
    help="Import parts from my_parts.py, a module or an entry point. Repeatable.",
)


def _set_index(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        from translume.interchange.argos_index import VARIABLE

        os.environ[VARIABLE] = value  # worker processes read it, too


_INDEX_OPTION = click.Option(
    ["--index"],
    metavar="FILE|URL",
    is_eager=True,  # as --quiet
    expose_value=False,
    callback=_set_index,
    help="Index of the packages that argos:en-de names, instead of Argos Translate's.",
)


def add_common_options(command: click.Command) -> None:
    """Give a command, or each command of a group, --import and --quiet, and --index if it reads models."""
    from translume.cli.options import MODEL

    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_common_options(each)
    elif _QUIET_OPTION not in command.params:
        if command.name == "import" or any(parameter.type is MODEL for parameter in command.params):
            command.params.append(_INDEX_OPTION)
        command.params += [_IMPORT_OPTION, _QUIET_OPTION]


class LazyCommands(CommandGroup):
    """The commands of `translume`, imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = find("command", cmd_name)
        add_common_options(command)
        return command

    def main(  # type: ignore[override]  # without click's other keywords
        self, args: Sequence[str] | None = None, prog_name: str | None = None, *, standalone_mode: bool = True
    ) -> Any:
        gc.set_threshold(COLLECTED_OBJECTS)
        atexit.register(gc.freeze)  # else Python searches all objects for cycles when it ends, a quarter of the time
        open_standard_streams()
        try:
            with _one_interrupt(), flushed_output():
                return super().main(args, prog_name, standalone_mode=standalone_mode)
        except OutputError as error:
            abandon_output()
            if error.pipe_closed:
                sys.exit(PIPE_CLOSED)
            click.echo(f"Error: {error}", err=True)
            sys.exit(1)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if isinstance(sys.stdout, TextIOWrapper):  # whatever the locale: input is read as UTF-8 too
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        try:
            with needed_by(f"{ctx.command_path} {ctx.meta[_WORDS][0]}"):
                return super().invoke(ctx)
        except click.UsageError as error:
            if ctx.meta[_WORDS][:1] != ["train"] or "unexpected extra argument" not in error.message:
                raise
            hint = "expected one file of settings: `translume init` proposes it for training files"
            raise click.UsageError(f"{error.message}; {hint}", error.ctx) from None
        except ModelFolderError as error:
            words = ctx.meta[_WORDS][2:]
            model = next((word for word in words if os.path.isfile(os.path.join(word, MANIFEST))), None)
            swapped = model is not None and str(error) == f"{ctx.meta[_WORDS][1]}: not a model folder: it is a file"
            _fail(ctx, f"{error}; did you mean {model} first?" if swapped else str(error))
        except TranslumeError as error:
            _fail(ctx, str(error))
        except (CommandInterruptedError, KeyboardInterrupt) as error:
            click.echo(f"\n{str(error) or 'Interrupted; the same command starts again.'}", err=True)
            ctx.exit(INTERRUPTED)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            _fail(ctx, f"not enough memory{_requested(error)}; try fewer tokens in a batch or a smaller beam")
        except UnicodeEncodeError as error:
            byte = undecoded_byte(error.object[error.start])
            if not byte and error.encoding == "utf-8":
                raise
            found = f"the byte {byte:#04x}" if byte else f"'{error.object[error.start]}'"
            _fail(ctx, f"found {found} in an argument or a file name, {expected_text()}")
        except OSError as error:
            reason = reason_of(error)
            _fail(ctx, f"{error.filename}: {reason}" if error.filename else reason)


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt once for a burst of SIGINT, so that no second one disturbs the end of the command.

    If SIGINT is ignored, as in a script's background command, it stays so.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not in_main_thread:
        yield
        return
    last = -BURST_SECONDS

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        last, before = time.monotonic(), last
        if last - before > BURST_SECONDS:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Return whether memory ran out. torch has an error class only for the memory of a device."""
    return isinstance(error, MemoryError) or any(
        sign in str(error) for sign in ("can't allocate memory", "out of memory")
    )


def _requested(error: MemoryError | RuntimeError) -> str:
    match = re.search(r"tried to allocate ([\d.]+ ?\w+)", str(error), re.IGNORECASE)
    return f" for {match.group(1)} more" if match else ""


def _fail(ctx: click.Context, message: str) -> None:
    click.echo(f"Error: {' '.join(message.splitlines())}", err=True)
    ctx.exit(1)


def version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the installed version and exit."""
    if value:
        from translume import __version__

        click.echo(f"translume {__version__}")
        ctx.exit()


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `translume translate demo`, or `translume demo`, which trains. Every command has an example"
    " (`translume train --help`), and `translume docs` has the documentation.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=version, help="Show the version.")
def main() -> None:
    """Train, evaluate, inspect and serve encoder-decoder Transformers."""


main.params.append(_IMPORT_OPTION)


@click.command(
    "completion",
    short_help="Print a script that completes commands in a shell.",
    epilog="Example: translume completion bash > translume.bash",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script for SHELL that completes the commands, options and file names of translume.

    \b
    bash, in ~/.bashrc:                 eval "$(translume completion bash)"
    zsh, in ~/.zshrc, after compinit:   eval "$(translume completion zsh)"
    fish:  translume completion fish > ~/.config/fish/completions/translume.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(main, {}, "translume", "_TRANSLUME_COMPLETE")
    click.echo(script.source_template % script.source_vars())
