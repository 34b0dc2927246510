"""Files that a verb writes beside its output: whole or not at all."""

import os
from pathlib import Path

from translume.errors import DataError


def check_writable(path: Path) -> None:
    """Return if `path` could be written now; else raise DataError before hours of work are lost."""
    if _is_special(path):
        return
    part = _part(path)
    try:
        part.open("wb").close()
        part.unlink()
    except OSError as error:
        raise _refused(path, error) from None


def write_file(path: Path, content: bytes) -> None:
    """Write `path` aside and rename it; DataError, with what was there untouched, if there is no room."""
    part = path if _is_special(path) else _part(path)
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            if part is not path:
                os.fsync(file.fileno())
        if part is not path:
            os.replace(part, path)
    except OSError as error:
        if part is not path:
            part.unlink(missing_ok=True)
        raise _refused(path, error) from None


def _is_special(path: Path) -> bool:
    """Whether it is a pipe, a terminal or the like, which is written as it is."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _part(path: Path) -> Path:
    if path.is_dir():
        raise DataError(f"{path}: a folder, wanted a file to write")
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _refused(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be written: {error.strerror or error}")
