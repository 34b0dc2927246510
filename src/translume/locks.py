"""Locks of open files. The system releases a lock when its file is closed or the process ends."""

import errno
import os
import time
from importlib import import_module
from typing import IO

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]  # mypy expects a module

WINDOWS = fcntl is None
"""Whether locks are those of Windows, which also neither renames nor removes files that are open."""
_PLACE = 0x7FFF_0000
"""The byte that is locked on Windows. Others cannot read a locked byte, so it is one beyond the end of the file."""


def lock(number: int, *, wait: bool, inherited: bool = True) -> None:
    """Lock the file with a descriptor.

    wait: for another process that has locked it.  inherited: by child processes; not on Windows.
    Raises BlockingIOError, without `wait`, if another process has locked it, or another OSError if it cannot be locked.
    """
    if WINDOWS:
        _lock_byte(number, wait=wait)
    else:
        apply = fcntl.flock if inherited else fcntl.lockf
        try:
            apply(number, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except PermissionError as error:  # POSIX allows both errors for lockf
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error


def _lock_byte(number: int, *, wait: bool) -> None:
    """Lock one byte as Windows does. Its own way to wait gives up after ten seconds."""
    windows = import_module("msvcrt")
    os.lseek(number, _PLACE, os.SEEK_SET)
    try:
        while True:
            try:
                windows.locking(number, windows.LK_NBLCK, 1)
                return
            except PermissionError:
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
                time.sleep(0.1)
    finally:
        os.lseek(number, 0, os.SEEK_SET)


def release_to_move(file: IO[bytes]) -> None:
    """Close a locked file before it, or its folder, is renamed or removed, where the system demands that."""
    if WINDOWS:
        file.close()
