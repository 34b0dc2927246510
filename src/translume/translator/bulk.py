"""Translate many files into a folder. Each output is complete or missing, so that a second call continues."""

import gzip
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import IO, Any

import zstandard

from translume.atomic import beside, make_folder
from translume.data.pairs import files_like
from translume.data.tables import KINDS, suffix_of
from translume.errors import DataError
from translume.translator.planning import LineError
from translume.translator.workers import Outcome

COMPRESSED = (".gz", ".zst")

Row = Callable[[Outcome], str]
"""Makes the part of an output that stands for a line, line end included."""


@dataclass(frozen=True, slots=True)
class Shard:
    """An input file and the file of its translations."""

    source: str
    target: Path


def shards_of(patterns: Sequence[str], folder: Path, ending: str = "") -> list[Shard]:
    """Return the inputs that names and patterns stand for, in the order of their names, and their outputs in `folder`.

    ending: of the names of outputs, before that of a compression. Without one, an output has the name of its input, and
    .txt after that of a table. Raises SettingsError for a pattern without files, and DataError for two inputs of the
    same name.
    """
    found: dict[str, str] = {}
    for source in dict.fromkeys(file for pattern in patterns for file in files_like(pattern, "--input")):
        name = Path(source).name
        end = next((each for each in COMPRESSED if name.endswith(each)), "")
        added = ending or (".txt" if suffix_of(name) in KINDS else "")
        name = f"{name.removesuffix(end)}{added}{end}"
        if name in found:
            raise DataError(f"{source}: has the same name as {found[name]}; give each --input its own --output")
        found[name] = source
    return [Shard(source, folder / name) for name, source in found.items()]


def write_shard(shard: Shard, found: Iterable[Outcome], row: Row) -> Iterator[Outcome]:
    """Write the translations of a file's lines, and yield them. The output appears when it is complete.

    Raises what `found` does, and DataError for an output that cannot be written; then there is no output.
    """
    with _written(shard.target) as file:
        for each in found:
            file.write(row(each))
            yield each


def as_line(found: Outcome) -> str:
    """Return a translation as a line; an empty one for a line that could not be translated."""
    return "\n" if isinstance(found, LineError) else f"{found.text}\n"


def as_synthetic_pair(found: Outcome, tag: str) -> str:
    """Return a row of back-translation: tag and translation, and the text; nothing without a translation."""
    if isinstance(found, LineError) or not found.text or not found.source.strip():
        return ""
    return f"{tag} {_cell(found.text)}".strip() + f"\t{_cell(found.source)}\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("\t", " ").splitlines())


@contextmanager
def _written(path: Path) -> Iterator[IO[str]]:
    """Yield a text file that replaces `path` at the end of the block, compressed as its name says.

    Removes what a killed process left of the same file.
    """
    make_folder(path.parent)
    for left in path.parent.glob(f".{escape(path.name)}.????????.part"):
        left.unlink(missing_ok=True)
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
