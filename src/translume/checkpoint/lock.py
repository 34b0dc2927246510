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

_NAME = ".lock"


class FolderLock:
    """Holds `folder` for this process while it is open; freed by the system if the process dies.

    The lock is a POSIX one on `.lock`. Children do not inherit it: a worker that outlives a killed run keeps nothing.
    """

    def __init__(self, folder: Path) -> None:
        """Raises TrainingError naming the process that holds `folder`; makes the folder if it is missing."""
        self._made = not folder.exists()
        self._number = _locked(folder)
        self._folder = folder.resolve()
        _held.add(self._folder)
        # On a full disk the lock holds all the same, only its owner's number is not told.
        with suppress(OSError):
            os.ftruncate(self._number, 0)
            os.pwrite(self._number, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Free the folder; if the lock made it and nothing came into it, take it away. A second call does nothing."""
        if self._folder in _held:
            if self._made:
                with suppress(OSError):
                    if [path.name for path in self._folder.iterdir()] == [_NAME]:
                        (self._folder / _NAME).unlink()
                        self._folder.rmdir()
            _held.discard(self._folder)
            os.close(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _locked(folder: Path) -> int:
    """A locked handle of the file that is `.lock` now: one that was opened before it was taken away holds nothing."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if folder.resolve() in _held:
                raise TrainingError(f"{folder}: this process trains in it already")
            try:
                number = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue
        except OSError as error:
            raise ModelFolderError(f"{folder}: cannot be written: {error.strerror}") from None
        try:
            fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(number, 32).decode("ascii", "replace").strip()
            os.close(number)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise ModelFolderError(f"{folder}: cannot be locked: {error.strerror}") from None
            raise TrainingError(
                f"{folder}: process {owner or '?'} trains in it; wait until it has ended or choose another folder"
            ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(number), os.stat(folder / _NAME)):
                return number
        os.close(number)
