"""The tensors of a safetensors file as arrays, mapped into memory; no torch."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.errors import ModelFolderError

Arrays = Mapping[str, NDArray[Any]]
LENGTH = 8
"""Bytes of the length of a file's header."""
DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "?"},
}
"""NumPy's names of the dtypes. It has no bf16: these numbers are their bits."""


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Map the tensors of a file into memory, by name; those in bf16 as uint16.

    Their pages are read when they are used, and shared with other processes; what is written to them stays in this
    process. They stay readable when the file is removed. Raises ModelFolderError if it is damaged or cannot be read.
    """
    try:
        content = np.memmap(path, np.uint8, "c").view(np.ndarray)
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ModelFolderError(f"{path}: damaged: it is empty") from None
    begin = LENGTH + int.from_bytes(content[:LENGTH].tobytes(), "little")
    try:
        header = json.loads(content[LENGTH:begin].tobytes())
        header.pop("__metadata__", None)
        return {name: _array(content[begin:], **entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelFolderError(f"{path}: damaged: not tensors as safetensors writes them") from None


def _array(content: NDArray[np.uint8], *, dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    """Return a tensor by its entry in the header. Raises ValueError, KeyError or TypeError if that is wrong."""
    start, end = data_offsets
    kind = np.dtype(DTYPES[dtype])
    fits = 0 <= start <= end <= len(content) and end - start == math.prod(shape) * kind.itemsize
    if not fits or min(shape, default=0) < 0:
        raise ValueError
    return content[start:end].view(kind).reshape(shape)


def as_fp32(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of floating point in fp32, aligned in memory, others as they are; uint16 is read as bf16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return np.require(array, np.float32 if array.dtype.kind == "f" else None, "A")
