"""The interface of readers of frames."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.config import FrameSettings
from translume.errors import DataError

LARGEST_FILE = 1 << 30
"""The largest file that is read, in bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """A file that was read already.  values: its frames, float32 [L, F]."""

    values: NDArray[np.float32]


class FrameReader(ABC):
    """Reads sources of one kind as frames: float32 arrays [L, F]."""

    def __init__(self, settings: FrameSettings, largest: int = LARGEST_FILE) -> None:
        """settings: those of the kind.  largest: the most bytes of a file, and of what an archive unpacks to."""
        self.settings, self.largest = settings, largest

    def read(self, source: object) -> NDArray[np.float32]:
        """Return the frames [L, F] of a path, of the bytes of a file, of an array, or of `Frames`.

        Raises DataError, which begins with the path if there is one, for a source that cannot be read; TypeError for an
        object of another type.
        """
        if isinstance(source, Frames):
            return source.values
        name = str(source) if isinstance(source, str | Path) else describe(source)
        try:
            if isinstance(source, str | Path):
                frames = self.decode(self._content(Path(source)))
            elif isinstance(source, bytes):
                frames = self.decode(source)
            else:
                frames = self.convert(source)
        except UnreadableError as error:
            raise DataError(f"{name}: {error}") from None
        except OSError as error:
            raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None
        frames = np.ascontiguousarray(frames, np.float32)
        if not np.isfinite(frames).all():
            raise DataError(f"{name}: holds a number that is not finite")
        largest = float(abs(frames).max(initial=0.0))
        if largest > _LARGEST:
            raise DataError(f"{name}: holds a number above {_LARGEST:,}")
        if 0 < largest < _SMALLEST:
            raise DataError(f"{name}: all numbers are below {_SMALLEST}, which training rounds off; scale them")
        return frames

    @abstractmethod
    def decode(self, content: bytes) -> NDArray[Any]:
        """Return the frames in the content of a file. Raises UnreadableError with the reason."""

    @abstractmethod
    def convert(self, source: object) -> NDArray[Any]:
        """Return the frames of an object. Raises UnreadableError with the reason, TypeError for another type."""

    def _content(self, path: Path) -> bytes:
        if not path.is_file():
            raise UnreadableError("is a folder, expected a file" if path.is_dir() else "no such file")
        if (size := path.stat().st_size) > self.largest:
            raise UnreadableError(f"has {size:,} bytes, expected at most {self.largest:,}")
        return path.read_bytes()


_LARGEST = 65504
"""The largest number of 16 bits, in which frames are cached."""
_SMALLEST = 1e-4
"""Frames are stored in half precision for training, whose relative error is larger below this number."""


class UnreadableError(Exception):
    """A source cannot be read. The message is the reason; `FrameReader.read` adds the place."""


def describe(source: object) -> str:
    """Return a short description of a source that has no path."""
    if isinstance(source, bytes):
        return f"<{len(source):,} bytes>"
    if isinstance(source, Frames):
        return "file"
    shape = getattr(source, "shape", None) or getattr(source, "size", None)
    size = f" {' × '.join(map(str, shape))}" if isinstance(shape, tuple) else ""
    return f"<{type(source).__name__}{size}>"
