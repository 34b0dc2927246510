"""Features: arrays of frames that another program computed, in .npy and .npz files."""

import io
import struct
import tokenize
import zipfile
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from translume.sources.reader import FrameReader, UnreadableError

DAMAGED: Final = (
    *(ValueError, EOFError, OSError, KeyError, SyntaxError, MemoryError, TypeError, OverflowError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)
"""What numpy raises for a damaged file: the header of an array is a Python literal, and an archive may be compressed or
encrypted in any way."""


class FeatureReader(FrameReader):
    """Reads arrays [L, F] as they are."""

    def decode(self, content: bytes) -> NDArray[Any]:
        if not content:
            raise UnreadableError("empty file, expected an array in .npy or .npz format")
        try:
            if content[:2] == b"PK":
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    size = sum(each.file_size for each in archive.infolist())
                if size > self.largest:
                    raise UnreadableError(f"holds {size:,} bytes, expected at most {self.largest:,}")
            found = np.load(io.BytesIO(content), allow_pickle=False)
            if isinstance(found, np.ndarray):
                return self.convert(found)
            names = list(found)
            if len(names) != 1:
                raise UnreadableError(f"holds {len(names)} arrays, expected one")
            return self.convert(found[names[0]])
        except DAMAGED:
            raise UnreadableError("not an array in .npy or .npz format, or truncated") from None

    def convert(self, given: object) -> NDArray[Any]:
        if not isinstance(given, np.ndarray):
            raise TypeError(f"found {type(given).__name__}, expected a path, bytes or an array")
        if given.ndim != 2 or given.dtype.kind not in "fiub":
            raise UnreadableError(
                f"holds an array of shape {list(given.shape)} and type {given.dtype}, expected numbers in frames [L, F]"
            )
        if given.shape[1] != self.settings.size:
            raise UnreadableError(
                f"holds frames of {given.shape[1]:,} values, expected {self.settings.size:,} (data.source.values)"
            )
        return given
