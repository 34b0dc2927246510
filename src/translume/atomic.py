"""Atomic file writes: a file is written under a temporary name and renamed, so that readers never see part of it."""

import errno
import hashlib
import os
import secrets
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from translume.errors import DataError, refused
from translume.locks import WINDOWS


def make_folder(path: Path) -> None:
    """Make a folder and its parents if they are missing, so that they outlive a power cut.

    Raises DataError if one of them is a file.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            with suppress(OSError):  # the folder is there; its parent may not be readable
                sync(each.parent)
    except (FileExistsError, NotADirectoryError):
        file = next(each for each in (path, *path.parents) if each.exists() or each.is_symlink())
        raise DataError(f"{file}: is a file, expected a folder") from None


def replace_file(
    path: Path,
    content: bytes,
    *,
    synced: bool = True,
    permissions: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write a temporary file in the same folder and rename it to `path`. On failure the old file is unchanged.

    Other arguments as for `write`. A symbolic link is replaced; its target is unchanged. Raises OSError, also for a
    device, pipe or socket, which the rename would remove; `write_file` writes into these.
    """
    if _is_special(path):
        raise OSError(errno.EINVAL, "expected a regular file")
    part = beside(path)
    try:
        write(part, [content], synced=synced, permissions=permissions, owner=owner)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if synced:
        # The file is already in place, so a failure to sync the folder is no failure of the write.
        with suppress(OSError):
            sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file that other code has written, or the entries of a folder, to disk, where the file system can."""
    if WINDOWS and path.is_dir():  # folders cannot be opened there, and files cannot be flushed by who only reads
        return
    number = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # folders of some network file systems
            raise
    finally:
        os.close(number)


def sync_all(folder: Path) -> None:
    """Flush everything in a folder to disk."""
    for path in (folder, *folder.rglob("*")):
        sync(path)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(
    path: Path,
    chunks: Iterable[bytes | memoryview],
    *,
    synced: bool = True,
    permissions: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write chunks to `path`.

    synced: flush the file to disk before returning.
    permissions: mode of the file, regardless of the umask; only the owner can read it until it is set. None: by umask.
    owner: user and group id to set if this process is allowed to.
    """
    with open(path, "wb", opener=None if permissions is None else _open_private) as file:
        if owner is not None:
            # A process without the right to change owners writes files of its own user anyway.
            with suppress(PermissionError, AttributeError):  # Windows has neither this nor, before Python 3.13, fchmod
                os.fchown(file.fileno(), *owner)
        if permissions is not None and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), permissions)
        for chunk in chunks:
            file.write(chunk)
        if synced:
            file.flush()
            os.fsync(file.fileno())


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def beside(path: Path) -> Path:
    """Return an unused hidden path in the folder of `path`, for a temporary file that will be renamed to `path`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
"""Paths that mean standard output."""


def check_writable(path: Path) -> None:
    """Raise DataError if `path` cannot be written now. Called before long work whose result goes there."""
    if _is_special(path):
        return
    _refuse_folder(path)
    part = beside(path.resolve())
    with refused(path, "cannot be written"):
        part.open("wb").close()
        part.unlink()


def write_file(path: Path, content: bytes, *, permissions: int | None = None) -> None:
    """Write `path` atomically. Raises DataError, with the old file unchanged, if it cannot be written.

    permissions: mode of a new file; None: by umask. An old file's mode is kept. For a symbolic link, the target is
    replaced. Standard output is flushed before and after.
    """
    if str(path) in STANDARD_OUTPUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    special = _is_special(path)
    if not special:
        _refuse_folder(path)
    with refused(path, "cannot be written"):
        if special:
            path.write_bytes(content)
        else:
            target = path.resolve()
            mode = target.stat().st_mode & 0o777 if target.exists() else permissions
            replace_file(target, content, permissions=mode)


def _is_special(path: Path) -> bool:
    """Return whether a path is a pipe, terminal or other device, which must be opened directly and not replaced.

    Includes standard streams that are redirected to a file: renaming a file to /dev/stderr would replace the device.
    """
    if str(path) in STANDARD_OUTPUT or str(path).startswith(("/dev/stderr", "/dev/fd/", "/proc/")):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: is a folder, expected a file to write")
