"""One process trains in a folder at a time."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from translume.errors import ModelFolderError, TrainingError

_held: set[Path] = set()
"""Folders this process holds: POSIX locks do not keep a process from itself, and closing any handle gives them up."""


class FolderLock:
    """Holds `folder` for this process while it is open; freed by the system if the process dies.

    The lock is a POSIX one on `.lock`. Children do not inherit it: a worker that outlives a killed run keeps nothing.
    """

    def __init__(self, folder: Path) -> None:
        """Raises TrainingError naming the process that holds `folder`; makes the folder if it is missing."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._folder = folder.resolve()
            if self._folder in _held:
                raise TrainingError(f"{folder}: this process trains in it already")
            self._number = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ModelFolderError(f"{folder}: cannot be written: {error.strerror}") from None
        try:
            fcntl.lockf(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._number, 32).decode("ascii", "replace").strip()
            os.close(self._number)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise ModelFolderError(f"{folder}: cannot be locked: {error.strerror}") from None
            raise TrainingError(
                f"{folder}: process {owner or '?'} trains in it; wait until it has ended or choose another folder"
            ) from None
        _held.add(self._folder)
        # On a full disk the lock holds all the same, only its owner's number is not told.
        with suppress(OSError):
            os.ftruncate(self._number, 0)
            os.pwrite(self._number, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Free the folder; a second call does nothing."""
        if self._folder in _held:
            _held.discard(self._folder)
            os.close(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
