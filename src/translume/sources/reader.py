"""The interface of readers of frames."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.config import FrameSettings
from translume.errors import DataError

LARGEST_FILE = 1 << 30
"""The largest file that is read, in bytes."""


class FrameReader(ABC):
    """Reads sources of one kind as frames: float32 arrays [L, F].  settings: those of the kind."""

    def __init__(self, settings: FrameSettings) -> None:
        self.settings = settings

    def read(self, given: object) -> NDArray[np.float32]:
        """Return the frames [L, F] of a path, of the bytes of a file, or of an array.

        Raises DataError, which begins with the path if there is one, for a source that cannot be read; TypeError for an
        object of another type.
        """
        name = str(given) if isinstance(given, str | Path) else describe(given)
        try:
            if isinstance(given, str | Path):
                frames = self.decode(_content(Path(given)))
            elif isinstance(given, bytes):
                frames = self.decode(given)
            else:
                frames = self.convert(given)
        except UnreadableError as error:
            raise DataError(f"{name}: {error}") from None
        except OSError as error:
            raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None
        frames = np.ascontiguousarray(frames, np.float32)
        if not np.isfinite(frames).all():
            raise DataError(f"{name}: holds a number that is not finite")
        if abs(frames).max(initial=0.0) > _LARGEST:
            raise DataError(f"{name}: holds a number above {_LARGEST:,}")
        return frames

    @abstractmethod
    def decode(self, content: bytes) -> NDArray[Any]:
        """Return the frames in the content of a file. Raises UnreadableError with the reason."""

    @abstractmethod
    def convert(self, given: object) -> NDArray[Any]:
        """Return the frames of an object. Raises UnreadableError with the reason, TypeError for another type."""


_LARGEST = 65504
"""The largest number of 16 bits, in which frames are cached."""


class UnreadableError(Exception):
    """A source cannot be read. The message is the reason; `FrameReader.read` adds the place."""


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise UnreadableError("is a folder, expected a file" if path.is_dir() else "no such file")
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise UnreadableError(f"has {size:,} bytes, expected at most {LARGEST_FILE:,}")
    return path.read_bytes()


def describe(given: object) -> str:
    """Return a short description of a source that has no path."""
    if isinstance(given, bytes):
        return f"<{len(given):,} bytes>"
    shape = getattr(given, "shape", None) or getattr(given, "size", None)
    size = f" {' × '.join(map(str, shape))}" if isinstance(shape, tuple) else ""
    return f"<{type(given).__name__}{size}>"
