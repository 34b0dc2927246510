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
            arrays = np.load(io.BytesIO(content), allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                return self.convert(arrays)
            names = list(arrays)
            if len(names) != 1:
                raise UnreadableError(f"holds {len(names)} arrays, expected one")
            return self.convert(arrays[names[0]])
        except DAMAGED:
            raise UnreadableError("not an array in .npy or .npz format, or truncated") from None

    def convert(self, source: object) -> NDArray[Any]:
        if not isinstance(source, np.ndarray):
            raise TypeError(f"found {type(source).__name__}, expected a path, bytes or an array")
        if source.ndim != 2 or source.dtype.kind not in "fiub":
            raise UnreadableError(
                f"holds an array of shape {list(source.shape)} and type {source.dtype}, "
                "expected numbers in frames [L, F]"
            )
        if source.shape[1] != self.settings.size:
            raise UnreadableError(
                f"holds frames of {source.shape[1]:,} values, expected {self.settings.size:,} (data.source.values)"
            )
        return source
