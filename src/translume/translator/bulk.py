"""Translate many files into a folder. Each output is complete or missing, so that a second call continues."""

import gzip
import io
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import zstandard

from translume.atomic import beside, make_folder
from translume.data.pairs import files_like
from translume.data.tables import KINDS, suffix_of
from translume.errors import DataError, TranslationError
from translume.translator.results import Translation

COMPRESSED = (".gz", ".zst")
_FAILED_LINE = re.compile(r"line \d+: (.*)", re.DOTALL)

TranslateLines = Callable[[Iterable[str]], Iterable[Translation]]
"""Translates lines in order; raises TranslationError after the lines before the one that fails."""


@dataclass(frozen=True, slots=True)
class Shard:
    """An input file and the file of its translations."""

    source: str
    target: Path


@dataclass(frozen=True, slots=True)
class Failure:
    """A line that could not be translated.  line: its number, from 1.  reason: without the place."""

    line: int
    reason: str


def shards_of(patterns: Sequence[str], folder: Path) -> list[Shard]:
    """Return the inputs that names and patterns stand for, in the order of their names, and their outputs in `folder`.

    An output has the name of its input, and .txt after that of a table. Raises SettingsError for a pattern without
    files, and DataError for two inputs of the same name.
    """
    found: dict[str, str] = {}
    for source in dict.fromkeys(file for pattern in patterns for file in files_like(pattern, "--input")):
        name = Path(source).name
        end = next((each for each in COMPRESSED if name.endswith(each)), "")
        if suffix_of(name) in KINDS:
            name = f"{name.removesuffix(end)}.txt{end}"
        if name in found:
            raise DataError(f"{source}: has the same name as {found[name]}; give each --input its own --output")
        found[name] = source
    return [Shard(source, folder / name) for name, source in found.items()]


def translate_shard(shard: Shard, lines: Iterable[str], translate: TranslateLines) -> Iterator[Translation | Failure]:
    """Write the translations of a file's lines, and yield them in order. The output appears when it is complete.

    A line that cannot be translated becomes an empty line. Raises DataError if `lines` does, or for an output that
    cannot be written; then there is no output.
    """
    with _written(shard.target) as file:
        for number, each in enumerate(_translations(lines, translate), 1):
            if isinstance(each, str):
                file.write("\n")
                yield Failure(number, each)
            else:
                file.write(f"{each.text}\n")
                yield each


def _translations(lines: Iterable[str], translate: TranslateLines) -> Iterator[Translation | str]:
    """Yield the translation of each line, or why it has none."""
    waiting: deque[str] = deque()
    rest = iter(lines)

    def read_ahead() -> Iterator[str]:
        for line in rest:
            waiting.append(line)
            yield line

    again: list[str] = []
    while True:
        try:
            for translation in translate(chain(again, read_ahead())):
                waiting.popleft()
                yield translation
        except TranslationError as error:
            reason = _FAILED_LINE.fullmatch(str(error))
            if reason is None or not waiting:
                raise
            waiting.popleft()
            yield reason.group(1)
            again = list(waiting)
        else:
            return


@contextmanager
def _written(path: Path) -> Iterator[IO[str]]:
    """Yield a text file that replaces `path` at the end of the block, compressed as its name says."""
    make_folder(path.parent)
    part = beside(path)
    try:
        with part.open("wb") as raw:
            with ExitStack() as stack:
                packed: Any = raw
                if path.suffix == ".gz":
                    packed = stack.enter_context(gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0))
                elif path.suffix == ".zst":
                    packed = stack.enter_context(zstandard.ZstdCompressor().stream_writer(raw, closefd=False))
                text = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
                stack.callback(text.detach)  # else its end closes the file
                yield text
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(part, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
