"""Write one output for each of many files. Each is complete or missing, so that a second call continues."""

import gzip
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import zstandard

from translume.atomic import beside, make_folder
from translume.data.pairs import expand_pattern
from translume.data.tables import KINDS, suffix_of
from translume.errors import DataError, SettingsError
from translume.translator.generator import Generation
from translume.translator.planning import LineError
from translume.translator.results import TargetScore, Translation

COMPRESSED = (".gz", ".zst")

R = TypeVar("R")


class Described(Protocol):
    """A result that has a form in JSON."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Shard:
    """An input file and its output.  targets: the file of the targets of the lines in `source`, if they have any."""

    source: str
    target: Path
    targets: str = ""


def shards_of(patterns: Sequence[str], folder: Path, ending: str = "") -> list[Shard]:
    """Return the inputs that names and patterns stand for, in the order of their names, and their outputs in `folder`.

    ending: of the names of outputs, before that of a compression. Without one, an output has the name of its input, and
    .txt after that of a table. Raises SettingsError for a pattern without files and for an output that is an input, and
    DataError for two inputs of the same name.
    """
    found: dict[str, str] = {}
    for source in dict.fromkeys(file for pattern in patterns for file in expand_pattern(pattern, "--input")):
        name = Path(source).name
        end = next((each for each in COMPRESSED if name.endswith(each)), "")
        added = ending or (".txt" if suffix_of(name) in KINDS else "")
        name = f"{name.removesuffix(end)}{added}{end}"
        if (folder / name).resolve() == Path(source).resolve():
            raise SettingsError(f"--output: {folder / name} would replace an input; expected another folder")
        if name in found:
            raise DataError(f"{source}: has the same name as {found[name]}; give each --input its own --output")
        found[name] = source
    return [Shard(source, folder / name) for name, source in found.items()]


def parallel_shards_of(patterns: Sequence[str], targets: Sequence[str], folder: Path, ending: str) -> list[Shard]:
    """Return the pairs of files that two lists of patterns stand for, and their outputs; see `shards_of`.

    Raises SettingsError unless both lists, and each pattern and that of its targets, stand for equally many files.
    """
    if len(patterns) != len(targets):
        raise SettingsError(f"--input: found {len(patterns)}, but --targets {len(targets)}; expected as many of each")
    others: dict[str, str] = {}
    for pattern, other in zip(patterns, targets, strict=True):
        first, second = expand_pattern(pattern, "--input"), expand_pattern(other, "--targets")
        if len(first) != len(second):
            raise SettingsError(
                f"--input: {pattern} stands for {len(first)} files, but {other} for {len(second)}; "
                "expected as many of each"
            )
        others.update(zip(first, second, strict=True))
    return [replace(shard, targets=others[shard.source]) for shard in shards_of(patterns, folder, ending)]


def write_shard(
    shard: Shard, found: Iterable[R | LineError], row: Callable[[R | LineError], str]
) -> Iterator[R | LineError]:
    """Write a row for the result of each of a file's lines, and yield it. The output appears when it is complete.

    row: returns the part of the output that stands for a line, line end included.
    Raises what `found` does, and DataError for an output that cannot be written; then there is no output.
    """
    with _written(shard.target) as file:
        for each in found:
            file.write(row(each))
            yield each


def as_line(found: Translation | LineError) -> str:
    """Return a translation as a line; an empty one for a line that could not be translated."""
    return "\n" if isinstance(found, LineError) else f"{found.text}\n"


def as_number(found: TargetScore | LineError) -> str:
    """Return the log-probability of a target as a line; an empty one for a line that could not be scored."""
    return "\n" if isinstance(found, LineError) else f"{found.log_prob:.6f}\n"


def as_text_object(found: Generation | LineError) -> str:
    """Return a prompt and its continuation as a JSON object, which keeps line breaks."""
    return (
        as_object({"prompt": found.prompt, "text": found.text}) if isinstance(found, Generation) else as_object(found)
    )


def as_object(found: "Mapping[str, object] | Described | LineError") -> str:
    """Return a result as a JSON object in a line; the reason, as `error`, for a line without one."""
    if isinstance(found, LineError):
        found = {"error": found.reason}
    return json.dumps(found if isinstance(found, Mapping) else found.to_dict(), ensure_ascii=False) + "\n"


def as_synthetic_pair(found: Translation | LineError, tag: str) -> str:
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
