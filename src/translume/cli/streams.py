"""Standard streams that are closed, full or abandoned by their reader."""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class OutputError(Exception):
    """Standard output cannot be written.  pipe_closed: its reader is gone.

    Not an OSError: click and rich end the process on those of a closed pipe.
    """

    def __init__(self, reason: str, *, pipe_closed: bool = False) -> None:
        super().__init__(f"standard output: {reason}")
        self.pipe_closed = pipe_closed


def open_standard_streams() -> None:
    """Replace sys.stdin, sys.stdout and sys.stderr where they are closed or could fail without a clear error.

    A closed stream gets a descriptor that cannot be read or written, so that no file that is opened later becomes
    standard output. Afterwards writing standard output raises OutputError where it fails, and writing standard error
    never fails: what cannot be written is lost.
    """
    # The wrong direction makes reading standard input and writing standard output fail like closed descriptors.
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest free descriptor, which is `number`
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    if sys.stdout in (None, sys.__stdout__):
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    if sys.stderr in (None, sys.__stderr__):
        sys.stderr = _text(_Errors(2, "w", closefd=False), sys.stderr)


@contextmanager
def flushed_output() -> Iterator[None]:
    """Flush standard output at the end of the block, also if the block raises SystemExit."""
    try:
        yield
    finally:
        sys.stdout.flush()


def abandon_output() -> None:
    """Discard what was printed and will be: standard output cannot be written. Otherwise Python fails at its exit."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


class _Output(io.FileIO):
    """Standard output whose failures are OutputErrors."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError as error:
            reason = "is closed" if error.errno == errno.EBADF else error.strerror or str(error)
            raise OutputError(reason, pipe_closed=error.errno == errno.EPIPE) from None


class _Errors(io.FileIO):
    """Standard error, whose writes never fail."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError:
            return len(content)


def _text(file: io.FileIO, before: Any) -> io.TextIOWrapper:
    """Return a text stream with the encoding of the stream that it replaces."""
    encoding, errors = getattr(before, "encoding", "utf-8"), getattr(before, "errors", "backslashreplace")
    lines = isinstance(file, _Errors) or file.isatty()
    return io.TextIOWrapper(io.BufferedWriter(file), encoding=encoding, errors=errors, line_buffering=lines)
