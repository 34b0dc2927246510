"""The private folder of a server: records and results that all of its processes read, under locks."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from translume.atomic import replace_file
from translume.checksums import sealed, unsealed
from translume.locks import lock
from translume.serving.api.errors import RequestError

FOLDER_PREFIX: Final = "translume-files-"

log = logging.getLogger("translume.serving")
T = TypeVar("T")


class PrivateFolder:
    """A temporary folder that only its owner can read, and that `close` deletes. It is made when it is first needed.

    Folders of killed processes are deleted when the next one is created: the operating system releases the lock that
    each process holds.
    """

    def __init__(self, parent: Path | None = None, shared: Path | None = None) -> None:
        """parent: by default the system's folder for temporary files (TMPDIR).  shared: that of another process."""
        self.parent, self.shared = parent, shared
        self._lock: int | None = None

    @cached_property
    def path(self) -> Path:
        """The folder; OSError if there is no space."""
        if self.shared is not None:
            return self.shared
        for folder in (self.parent or Path(tempfile.gettempdir())).glob(f"{FOLDER_PREFIX}*"):
            with contextlib.suppress(OSError):
                if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                    with locked(folder, wait=False):  # until it is deleted: its owner may be about to lock
                        shutil.rmtree(folder, ignore_errors=True)
        path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=self.parent))
        self._lock = os.open(path, os.O_RDONLY)
        lock(self._lock, wait=True)
        # Another process may have deleted the folder before it was locked.
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def close(self) -> None:
        """Delete the folder and its content."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def no_space(reason: str) -> RequestError:
    """Return the error of a server whose disk is full."""
    return RequestError(507, f"there is no space for the translated file: {reason}", code="no_space")


@contextlib.contextmanager
def needing_space(what: str, cure: str = "try a smaller one, or later") -> Iterator[None]:
    """Turn OSError into RequestError (507), and log it.  what: for the log.  cure: for the client."""
    try:
        yield
    except OSError as error:
        log.error(what, extra={"fields": {"error": error.strerror or ""}})
        raise no_space(cure) from None


def write_record(path: Path, record: Any) -> None:
    """Store a dataclass, which `read_record` reads."""
    replace_file(path, sealed(asdict(record)).encode(), synced=False, permissions=0o600)


def read_record(path: Path, kind: type[T]) -> T | None:
    """Return a stored dataclass; None if it was deleted, or is damaged, which the log then says."""
    try:
        return kind(**unsealed(path.read_bytes(), ())[0])
    except OSError:
        return None
    except (ValueError, TypeError):
        log.error("what the server stored is damaged", extra={"fields": {"file": f"{path.parent.name}/{path.name}"}})
        return None


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a file or folder; OSError if there is none, or without `wait` if a process has locked it."""
    number = os.open(path, os.O_RDONLY)
    try:
        lock(number, wait=wait)
        yield
    finally:
        os.close(number)


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder."""
    try:
        with locked(folder, wait=False):
            return False
    except OSError as error:
        return isinstance(error, BlockingIOError)
