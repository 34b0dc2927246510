"""Read lines of text files: plain, .gz and .zst; strict UTF-8; lines end with \\n or \\r\\n and nothing else."""

import errno
import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from translume.errors import DataError

_BLOCK = 1 << 20

STANDARD_INPUT = "-"
"""The file name that stands for standard input."""


def display_name(path: Path | str) -> str:
    """Return the name of a file for messages."""
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def refuse_one_input(first: Path | str, second: Path | str) -> None:
    """Raise DataError if both files are standard input, since the second would be empty."""
    if str(first) == str(second) == STANDARD_INPUT:
        raise DataError("standard input: given twice; at least one side must be a file")


def read_lines(path: Path | str) -> Iterator[str]:
    """Yield the lines of a file without line ends; "-" is standard input, read as it arrives.

    A byte order mark at the beginning is skipped. If a line is not UTF-8, the lines before it are yielded first; then
    DataError names the file and the line.
    """
    number = 1
    first = True
    for block in _whole_lines(path):
        broken = None
        try:
            text = block.decode("utf-8")
        except UnicodeDecodeError as error:
            broken = _not_utf8(path, block, error, number)
            text = block[: block.rfind(b"\n", 0, error.start) + 1].decode("utf-8")
        if first:
            text, first = text.removeprefix("\ufeff"), False
        lines = text.removesuffix("\n").split("\n") if text or broken is None else []
        number += len(lines)
        if "\r" in text:
            yield from (line.removesuffix("\r") for line in lines)
        else:
            yield from lines
        if broken is not None:
            raise DataError(broken)


def count_lines(path: Path | str) -> int:
    """Return the number of lines that `read_lines` yields, without decoding them."""
    count, last = 0, b"\n"
    for block in read_blocks(path):
        count += block.count(b"\n")
        last = block[-1:]
    return count + (last != b"\n")


def read_blocks(path: Path | str) -> Iterator[bytes]:
    """Yield the bytes of a file, decompressed, in non-empty blocks.

    Raises DataError if the file is missing, unreadable or its compression is damaged.
    """
    name = str(path)
    try:
        if name == STANDARD_INPUT:
            yield from _arriving(sys.stdin.buffer)
        elif name.endswith(".gz"):
            with gzip.open(name, "rb") as file:
                while block := file.read(_BLOCK):
                    yield block
        else:
            with open(name, "rb") as file:
                yield from _decompressed(file) if name.endswith(".zst") else _arriving(file)
    except OSError as error:
        raise DataError(unreadable(path, error)) from None
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{display_name(path)}: damaged compression: {error}") from None


def unreadable(path: Path | str, error: OSError) -> str:
    """Return a one-line message for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return f"{path}: no such file"
    if isinstance(error, IsADirectoryError):
        return f"{path}: is a folder, expected a file"
    if isinstance(error, gzip.BadGzipFile):
        return f"{path}: damaged compression: {error}"
    if str(path) == STANDARD_INPUT and error.errno == errno.EBADF:
        return f"{display_name(path)}: is closed"
    return f"{display_name(path)}: cannot be read: {error.strerror or error}"


def _arriving(file: BinaryIO) -> Iterator[bytes]:
    """Yield blocks as soon as bytes arrive, so that lines from a pipe are not delayed."""
    read = getattr(file, "read1", file.read)
    while block := read(_BLOCK):
        yield block


def _decompressed(file: BinaryIO) -> Iterator[bytes]:
    """Decompress zstd frames one by one: the library's own stream reader does not notice a truncated file."""
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    begun = False
    while block := file.read(_BLOCK):
        while block:
            if frame.eof:
                frame = decompressor.decompressobj()
            text, begun = frame.decompress(block), True
            block = frame.unused_data if frame.eof else b""
            if text:
                yield text
    if begun and not frame.eof:
        raise EOFError("the file ends inside a frame")


def _whole_lines(path: Path | str) -> Iterator[bytes]:
    """Yield blocks that end at the end of a line; the last may lack its \\n."""
    parts: list[bytes] = []
    for block in read_blocks(path):
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, block[:end]])
            parts = []
        if end < len(block):
            parts.append(block[end:])
    if parts:
        yield b"".join(parts)


def _not_utf8(path: Path | str, block: bytes, error: UnicodeDecodeError, number: int) -> str:
    before = block[: error.start]
    line = number + before.count(b"\n")
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
    return f"{display_name(path)}:{line}: not UTF-8 (byte {block[error.start]:#04x} at column {column})"
