"""Lines of text files: plain, .gz and .zst, decoded strictly, ended by \\n or \\r\\n and by nothing else."""

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
"""What names it where a file is wanted."""


def shown(path: Path | str) -> str:
    """What messages call a file."""
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def refuse_one_input(first: Path | str, second: Path | str) -> None:
    """Raise DataError if two files shall both be standard input: the second would be found empty."""
    if str(first) == str(second) == STANDARD_INPUT:
        raise DataError("standard input: named twice, wanted a file for at least one side")


def read_lines(path: Path | str) -> Iterator[str]:
    """The lines of a file, without their ends; "-" is standard input, read as it arrives.

    A byte order mark at the beginning is left out. Where the bytes are not UTF-8, all lines before that one come first;
    then DataError names file and line.
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
    """How many lines `read_lines` finds, without decoding them."""
    count, last = 0, b"\n"
    for block in read_blocks(path):
        count += block.count(b"\n")
        last = block[-1:]
    return count + (last != b"\n")


def read_blocks(path: Path | str) -> Iterator[bytes]:
    """The bytes of a file, decompressed, in blocks that are never empty.

    Raises DataError, one line, when the file is missing, unreadable or its compression is damaged.
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
        raise DataError(f"{shown(path)}: damaged compression: {error}") from None


def unreadable(path: Path | str, error: OSError) -> str:
    """One line saying why a file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return f"{path}: no such file"
    if isinstance(error, IsADirectoryError):
        return f"{path}: a folder, wanted a file"
    if isinstance(error, gzip.BadGzipFile):
        return f"{path}: damaged compression: {error}"
    return f"{shown(path)}: cannot be read: {error.strerror or error}"


def _arriving(file: BinaryIO) -> Iterator[bytes]:
    """Blocks as soon as there is something, so that whoever wants single lines of a pipe gets them at once."""
    read = getattr(file, "read1", file.read)
    while block := read(_BLOCK):
        yield block


def _decompressed(file: BinaryIO) -> Iterator[bytes]:
    """Frames of zstd one after the other. The library's own stream reader takes a cut file for a whole one."""
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
    """Blocks that end with the end of a line, the last perhaps without its \\n."""
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
    return f"{shown(path)}:{line}: not UTF-8 (byte {block[error.start]:#04x} at column {column})"
