"""A token cache that is being built: locked, and continued where an interrupted build stopped."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from translume.atomic import replace_file
from translume.checksums import sealed, unsealed
from translume.data.corpus import FORMAT, is_whole
from translume.errors import DataError, TranslumeError, reason_of
from translume.locks import lock, release_to_move
from translume.parallel import ProcessLostError

LOCK = "lock"
PROGRESS = "progress.json"
"""Files of a partial cache that are not in a complete one."""

_PREFIX = ".partial-"
_ABANDONED_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a build came.

    place: number of the origin that is being read.  pairs: number of its pairs that were written or dropped.
    part: the counts of the `Writer`.  accounts: those of each direction, as `Account.to_dict` returns them.
    sample: the pairs that may be held out, as `Sample.to_values` returns them.
    """

    place: int = 0
    pairs: int = 0
    part: Mapping[str, Any] = field(default_factory=dict)
    accounts: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    sample: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the progress of a partial cache; none if the file is missing or damaged."""
        try:
            values, has_digest = unsealed((folder / PROGRESS).read_text(encoding="utf-8"))
            return cls(**values) if has_digest else cls()
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self, folder: Path) -> None:
        """Write the progress. Everything that it counts must have been synced before."""
        replace_file(folder / PROGRESS, sealed(asdict(self)).encode())


def build(home: Path, write: Callable[[Path], dict[str, object]]) -> None:
    """Build a cache, unless it is complete. `write` fills a partial folder and returns the content of the index.

    If another process builds it, wait for its end. A build that is killed, or loses a process that tokenizes, leaves
    its folder, which the next one gets. After an error the folder is removed. Raises DataError if the cache cannot be
    written.
    """
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(home)
        with _locked(home) as locked:
            if locked is None:
                return
            partial, file_of_lock = locked
            try:
                index = {**write(partial), "format": FORMAT, "digest": home.name}
                with (partial / "index.json").open("w", encoding="utf-8") as file:
                    file.write(sealed(index))
                    file.flush()
                    os.fsync(file.fileno())
                release_to_move(file_of_lock)
                for name in (PROGRESS, LOCK):
                    (partial / name).unlink(missing_ok=True)
                _move(partial, home)
            except (OSError, TranslumeError):
                release_to_move(file_of_lock)
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        raise DataError(f"{home.parent}: cannot be written: {reason_of(error)}") from None
    except ProcessLostError as lost:
        raise DataError(f"tokenizing: {lost}, perhaps because memory ran out; the same command continues") from None


@contextmanager
def _locked(home: Path) -> Iterator[tuple[Path, IO[bytes]] | None]:
    """Lock the folder in which `home` is built, and yield it and its lock; None if the cache is complete.

    The lock is a file in the folder, so it goes when the folder is renamed. The system unlocks it when a process ends.
    """
    partial = home.parent / f"{_PREFIX}{home.name}"
    while not is_whole(home):
        partial.mkdir(exist_ok=True)
        try:
            file = (partial / LOCK).open("ab")
        except FileNotFoundError:  # renamed by another process just now
            continue
        with file:
            lock(file.fileno(), wait=True)
            if _is_open(file, partial / LOCK):
                if is_whole(home):  # finished after the check above
                    release_to_move(file)
                    shutil.rmtree(partial, ignore_errors=True)
                    break
                yield partial, file
                return
    yield None


def _is_open(file: IO[bytes], path: Path) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _move(partial: Path, home: Path) -> None:
    """Rename `partial` to `home`, which is missing or damaged."""
    if home.is_dir():
        trash = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home.parent))
        try:
            os.rename(home, trash / "damaged")
        finally:
            shutil.rmtree(trash, ignore_errors=True)
    os.rename(partial, home)


def _remove_abandoned(home: Path) -> None:
    """Remove partial caches, other than that of `home`, that killed processes left a day ago or earlier."""
    for path in home.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # removed, finished or locked by another process
            if path.name != f"{_PREFIX}{home.name}" and time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                with (path / LOCK).open("ab") as file:
                    lock(file.fileno(), wait=False)
                    release_to_move(file)
                    shutil.rmtree(path, ignore_errors=True)
