"""translume tokenizer"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.atomic import check_writable
from translume.cli.group import CommandGroup
from translume.cli.options import FILE, json_option, set_option
from translume.cli.terminal import ProgressBar, note, print_json

if TYPE_CHECKING:
    from translume.text import Tokenizer

MAX_DIGITS = 20
"""Maximum digits of an id, and of an invalid one in messages."""
KINDS = ["bpe", "unigram", "wordpiece", "character", "byte", "word"]


@click.group("tokenizer", cls=CommandGroup, short_help="Train and try a tokenizer.")
def command() -> None:
    """Train a tokenizer, and convert text to tokens and back."""


@command.command(
    "train",
    short_help="Learn a vocabulary.",
    epilog="Example: translume tokenizer train bpe --size 8000 --out tokenizer.json train.en train.de",
)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option(
    "--size", type=int, default=8000, show_default=True, help="Maximum number of tokens, special tokens included."
)
@click.option("--out", type=FILE, default=Path("tokenizer.json"), show_default=True, help="File to write.")
@set_option
def train(kind: str, files: tuple[Path, ...], size: int, out: Path, overrides: tuple[str, ...]) -> None:
    """Learn a vocabulary of this KIND from the lines of FILES. --set changes any tokenizer.* setting."""
    from translume.config import Config
    from translume.data.lines import read_lines
    from translume.errors import DataError, SettingsError
    from translume.text import train_tokenizer

    for assignment in overrides:
        if not assignment.startswith("tokenizer."):
            raise SettingsError(f"--set {assignment}: this command changes only tokenizer.*")
    check_writable(out)
    settings = Config.build({"tokenizer": {"kind": kind, "size": size}}, overrides, place="tokenizer").tokenizer
    with ProgressBar("reading", unit="lines") as bar:

        def lines() -> Iterator[str]:
            for file in files:
                before = bar.done
                for line in read_lines(file):
                    bar.advance()
                    yield line
                if bar.done == before:
                    raise DataError(f"{file}: empty file, expected one sentence a line")

        tokenizer = train_tokenizer(settings, lines())
    tokenizer.save(out)
    note(f"{out}: {len(tokenizer):,} tokens")


@command.command(
    "encode",
    short_help="Convert text to tokens.",
    epilog="Example: translume tokenizer encode models/en-de < text > tokens",
)
@click.argument("tokenizer", type=FILE)
@click.option("--target", is_flag=True, help="Use the target tokenizer, if the model has two.")
@click.option("--ids", is_flag=True, help="Print ids instead of tokens.")
@json_option
def encode(tokenizer: Path, target: bool, ids: bool, as_json: bool) -> None:
    """Print the tokens of each line of standard input, separated by spaces. TOKENIZER is a file or a model folder."""
    from translume.data.lines import read_lines

    loaded = _loaded(tokenizer, target=target)
    for line in read_lines("-"):
        numbers = loaded.encode(line)
        if as_json:
            print_json({"ids": numbers, "tokens": loaded.tokens(numbers)})
        else:
            click.echo(" ".join(map(str, numbers) if ids else loaded.tokens(numbers)))


@command.command(
    "decode", short_help="Convert ids to text.", epilog="Example: translume tokenizer decode models/en-de < ids > text"
)
@click.argument("tokenizer", type=FILE)
@click.option("--target", is_flag=True, help="Use the target tokenizer, if the model has two.")
def decode(tokenizer: Path, target: bool) -> None:
    """Print the text of each line of ids on standard input."""
    from translume.data.lines import read_lines
    from translume.errors import DataError

    loaded = _loaded(tokenizer, target=target)
    for number, line in enumerate(read_lines("-"), 1):
        words = line.split()
        for word in words:
            if not word.isascii() or not word.isdigit() or len(word) > MAX_DIGITS or int(word) >= len(loaded):
                raise DataError(f"line {number}: found '{word[:MAX_DIGITS]}', expected ids from 0 to {len(loaded) - 1}")
        click.echo(loaded.decode([int(word) for word in words]))


def _loaded(path: Path, *, target: bool) -> "Tokenizer":
    if path.is_dir():
        from translume.checkpoint import read_tokenizers

        return read_tokenizers(path)[1 if target else 0]
    from translume.text import Tokenizer

    return Tokenizer.load(path)
