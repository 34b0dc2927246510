"""Read lines of text files, also compressed ones; strict UTF-8; lines end with \\n or \\r\\n and nothing else."""

import bz2
import errno
import gzip
import lzma
import shlex
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from translume.data.addresses import opened
from translume.errors import DataError, needed_by

_BLOCK = 1 << 20
COMPRESSED = {".gz": "zcat", ".zst": "zstdcat", ".bz2": "bzcat", ".xz": "xzcat"}
"""Suffixes of compressed files, each with the command that unpacks them."""

_SIGNATURES = {
    b"PK\x03\x04": "a zip archive, as spreadsheets and office documents are; save the table as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "an old office document; save the table as CSV in UTF-8",
    b"\x1f\x8b": "compressed with gzip; rename it to end in .gz",
    b"BZh": "compressed with bzip2; rename it to end in .bz2",
    b"\xfd7zXZ\x00": "compressed with xz; rename it to end in .xz",
    b"PAR1": "a Parquet table, which data.train and --column read if it is named .parquet",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; rename it to end in .zst",
}
"""How files begin that are no text, and what they are."""

_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""How text files in other encodings begin, and the name of the encoding for iconv."""

_TRANSLATE = r"tr '\r' '\n' <"
STANDARD_INPUT = "-"
"""The file name that stands for standard input."""


def display_name(path: Path | str) -> str:
    """Return the name of a file for messages."""
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def unequal_lengths(source_file: Path | str, target_file: Path | str, counts: tuple[int, int]) -> str:
    """Return the error message for parallel files of unequal length."""
    lines = "line" if counts[0] == 1 else "lines"
    names = display_name(source_file), display_name(target_file)
    return f"{names[0]} has {counts[0]:,} {lines} but {names[1]} has {counts[1]:,}; expected as many in both"


def without_compression(name: str) -> str:
    """Return the name of a file without the suffix of a compression."""
    suffix = Path(name).suffix
    return name.removesuffix(suffix) if suffix in COMPRESSED else name


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
        if number == 1:
            _refuse_old_ends(path, "\n" in text, "\r" in text.rstrip("\r"))
        number += len(lines)
        if "\r" in text:
            yield from (line.removesuffix("\r") for line in lines)
        else:
            yield from lines
        if broken is not None:
            raise DataError(broken)


def count_lines(path: Path | str) -> int:
    """Return the number of lines that `read_lines` yields, without decoding them."""
    count, last, old = 0, b"\n", False
    for block in read_blocks(path):
        count += block.count(b"\n")
        last = block[-1:]
        old = old or b"\r" in block.rstrip(b"\r")
    _refuse_old_ends(path, count > 0, old)
    return count + (last != b"\n")


def _refuse_old_ends(path: Path | str, ends: bool, returns: bool) -> None:
    """Raise DataError for a file whose only line ends are carriage returns: it would be one line."""
    if returns and not ends:
        raise DataError(
            f"{display_name(path)}: lines end with a carriage return only, expected \\n or \\r\\n; "
            f"convert it: {_conversion(path, _TRANSLATE, 'lines')}"
        )


def read_blocks(path: Path | str) -> Iterator[bytes]:
    """Yield the bytes of a file, by path or address, decompressed, in non-empty blocks.

    Raises DataError if the file is missing, unreadable or its compression is damaged.
    """
    name = str(path)
    try:
        if name == STANDARD_INPUT:
            yield from _arriving(sys.stdin.buffer)
        elif (suffix := Path(name).suffix) in _OPENERS:
            with opened(name) as raw, _OPENERS[suffix](raw) as file:
                while block := file.read(_BLOCK):
                    yield block
        else:
            with opened(name) as file:
                yield from _decompressed(file, name) if name.endswith(".zst") else _arriving(file)
    except OSError as error:
        raise DataError(unreadable(path, error)) from None
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{display_name(path)}: damaged compression: {error}") from None


def unreadable(path: Path | str, error: OSError) -> str:
    """Return a one-line message for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return f"{path}: no such file"
    if isinstance(error, IsADirectoryError):
        return f"{path}: is a folder, expected a file"
    if isinstance(error, gzip.BadGzipFile) or (error.errno is None and str(path).endswith(".bz2")):
        return f"{path}: damaged compression: {error}"
    if str(path) == STANDARD_INPUT and error.errno == errno.EBADF:
        return f"{display_name(path)}: is closed"
    return f"{display_name(path)}: cannot be read: {error.strerror or error}"


_OPENERS: Final[dict[str, Callable[[Any], Any]]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
}


def _arriving(file: BinaryIO) -> Iterator[bytes]:
    """Yield blocks as soon as bytes arrive, so that lines from a pipe are not delayed."""
    read = getattr(file, "read1", file.read)
    while block := read(_BLOCK):
        yield block


def _decompressed(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Decompress zstd frames one by one: the library's own stream reader does not notice a truncated file."""
    with needed_by(name):
        import zstandard

    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    begun = False
    while block := file.read(_BLOCK):
        while block:
            if frame.eof:
                frame = decompressor.decompressobj()
            try:
                text, begun = frame.decompress(block), True
            except zstandard.ZstdError as error:
                raise EOFError(error) from None
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
    """Return a one-line message with the place of the first bad byte, and how to convert the file if that is likely."""
    before = block[: error.start]
    if number == 1:
        for signature, what in _SIGNATURES.items():
            if block.startswith(signature):
                return f"{display_name(path)}: not text: {what}"
    line = number + before.count(b"\n")
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
    place = f"{display_name(path)}:{line}: not UTF-8 (byte {block[error.start]:#04x} at column {column})"
    encoding = _ENCODINGS.get(block[:2]) if number == 1 else None
    if encoding is not None:
        return f"{place} but {encoding}; convert it: {_conversion(path, _iconv(encoding))}"
    if before.isascii() and error.reason != "unexpected end of data":  # valid UTF-8 before: a damaged file, rather
        return f"{place}; if it is Windows-1252, convert it: {_conversion(path, _iconv('WINDOWS-1252'))}"
    return place


def _iconv(encoding: str) -> str:
    return f"iconv -f {encoding} -t UTF-8"


def _conversion(path: Path | str, convert: str, name: str = "utf-8") -> str:
    """Return a command that writes the converted file under another name with the same ending."""
    file, piped = Path(path), convert.removesuffix(" <")
    if str(path) == STANDARD_INPUT:
        return piped
    unpack = COMPRESSED.get(file.suffix)
    plain = file.with_suffix("") if unpack else file
    new = shlex.quote(str(plain.with_name(f"{plain.stem}.{name}{plain.suffix}")))
    old = shlex.quote(str(file))
    return f"{unpack} {old} | {piped} > {new}" if unpack else f"{convert} {old} > {new}"
