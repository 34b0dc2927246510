"""Files that a verb writes beside its output: whole or not at all."""

import sys
from pathlib import Path

from translume.errors import DataError
from translume.replacing import beside, replace_file

STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
"""What names it where a file is wanted."""


def check_writable(path: Path) -> None:
    """Return if `path` could be written now; else raise DataError before hours of work are lost."""
    if _is_special(path):
        return
    _refuse_folder(path)
    part = beside(path.resolve())
    try:
        part.open("wb").close()
        part.unlink()
    except OSError as error:
        raise _refused(path, error) from None


def write_file(path: Path, content: bytes) -> None:
    """Write `path` aside and rename it; DataError, with what was there untouched, if there is no room.

    What a link points to is replaced, not the link. Standard output gets it after what was printed so far.
    """
    if str(path) in STANDARD_OUTPUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    special = _is_special(path)
    if not special:
        _refuse_folder(path)
    try:
        if special:
            path.write_bytes(content)
        else:
            whole = path.resolve()
            replace_file(whole, content, permissions=whole.stat().st_mode & 0o777 if whole.exists() else None)
    except OSError as error:
        raise _refused(path, error) from None


def _is_special(path: Path) -> bool:
    """Whether it is a pipe, a terminal or the like, which is written as it is.

    So are streams that lead to a file: a file put in the place of /dev/stderr would be in everybody's way.
    """
    if str(path) in STANDARD_OUTPUT or str(path).startswith(("/dev/stderr", "/dev/fd/", "/proc/")):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: a folder, wanted a file to write")


def _refused(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be written: {error.strerror or error}")
