"""Atomic file writes: a file is written under a temporary name and renamed, so that readers never see part of it."""

import os
import secrets
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from translume.errors import DataError


def replace_file(
    path: Path,
    content: bytes,
    *,
    synced: bool = True,
    permissions: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write `path` beside its place and rename it: whole at any moment, and as it was before where this fails.

    synced, permissions and owner are those of `write`.  A link is replaced itself; what it leads to stays.
    Raises OSError.
    """
    part = beside(path)
    try:
        write(part, [content], synced=synced, permissions=permissions, owner=owner)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if synced:
        # It is in its place: that a folder cannot be synced undoes nothing.
        with suppress(OSError):
            sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder onto the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write(
    path: Path,
    chunks: Iterable[bytes | memoryview],
    *,
    synced: bool = True,
    permissions: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write `path` piece by piece.

    synced: whether it is on the disk when this returns; else it is there when the system finds the time.
    permissions: those of a new file, whatever the umask; nobody else reads it meanwhile.  None: as the umask leaves.
    owner: the numbers of a user and a group, who get the file where this process may give it away.
    """
    with open(path, "wb", opener=None if permissions is None else _for_its_owner) as file:
        if owner is not None:
            # Who may not give a file away made it theirs before.
            with suppress(PermissionError):
                os.fchown(file.fileno(), *owner)
        if permissions is not None:
            os.fchmod(file.fileno(), permissions)
        for chunk in chunks:
            file.write(chunk)
        if synced:
            file.flush()
            os.fsync(file.fileno())


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def beside(path: Path) -> Path:
    """A name in the folder of `path` for what shall take its place: hidden, and another one for every call."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


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
        raise DataError(f"{path}: is a folder, expected a file to write")


def _refused(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be written: {error.strerror or error}")
