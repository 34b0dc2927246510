"""A folder that only this process uses and that goes with it."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "translume-files-"


class PrivateFolder:
    """A new folder for temporary files, readable by its owner alone. To be closed, which deletes it.

    Folders of processes that were killed before they could are deleted when the next one is made: an operating system
    gives up the lock that each holds.
    """

    def __init__(self, parent: Path | None = None) -> None:
        """parent: the system's folder for temporary files (TMPDIR) without. Raises OSError where there is no room."""
        _sweep(parent or Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Another process that swept between these lines may have taken it for a dead one's.
        self.path.mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def _sweep(parent: Path) -> None:
    """Delete the folders that nobody holds; those of other users stay."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            number = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(number)
