"""The tensors of a safetensors file as arrays, mapped into memory; no torch."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.errors import ModelFolderError, refused

Arrays = Mapping[str, NDArray[Any]]
LENGTH = 8
"""Bytes of the length of a file's header."""
SCALE = "|scale"
"""The end of the name of the scales [N], in fp32, of a weight [N, K] in int8."""
ALIGNMENT = 64
"""Bytes to a multiple of which the first tensor of a file is aligned, as torch aligns its own memory."""
DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "?"},
}
"""NumPy's names of the dtypes. It has no bf16: these numbers are their bits."""


def map_file(path: Path) -> NDArray[np.uint8]:
    """Map a file into memory. Raises ModelFolderError if it is empty or cannot be read.

    Its pages are read when they are used, and shared with other processes; what is written to them stays in this
    process. They stay readable when the file is removed.
    """
    try:
        with refused(path, "cannot be read", ModelFolderError):
            return np.memmap(path, np.uint8, "c").view(np.ndarray)
    except ValueError:
        raise ModelFolderError(f"{path}: damaged: it is empty") from None


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Map the tensors of a file, by name; those in bf16 as uint16. Raises ModelFolderError if it is damaged."""
    return arrays_in(map_file(path), path)[0]


def arrays_in(content: NDArray[np.uint8], path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the tensors of a mapped file as `map_arrays` does, and its metadata.  path: for errors."""
    begin = LENGTH + int.from_bytes(content[:LENGTH].tobytes(), "little")
    try:
        header = json.loads(content[LENGTH:begin].tobytes())
        metadata = header.pop("__metadata__", {})
        return {name: _array(content[begin:], **entry) for name, entry in header.items()}, metadata
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelFolderError(f"{path}: damaged: not tensors as safetensors writes them") from None


def header_of(entries: Mapping[str, tuple[str, Sequence[int], int]], metadata: Mapping[str, str], step: int) -> bytes:
    """Return the beginning of a file with tensors one after another, each at a multiple of `step` bytes.

    entries: a key of DTYPES, shape and bytes of each.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (kind, shape, size) in entries.items():
        start = end + -end % step
        end = start + size
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-(len(text) + LENGTH) % ALIGNMENT)
    return len(text).to_bytes(LENGTH, "little") + text


def _array(content: NDArray[np.uint8], *, dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    """Return a tensor by its entry in the header. Raises ValueError, KeyError or TypeError if that is wrong."""
    start, end = data_offsets
    kind = np.dtype(DTYPES[dtype])
    fits = 0 <= start <= end <= len(content) and end - start == math.prod(shape) * kind.itemsize
    if not fits or min(shape, default=0) < 0:
        raise ValueError
    return content[start:end].view(kind).reshape(shape)


def names_in(stored: Arrays) -> list[str]:
    """Return the names of the weights among the tensors of a file, without those of the scales of int8 weights."""
    return [name for name in stored if not name.endswith(SCALE)]


def weight_in(stored: Arrays, name: str) -> NDArray[Any]:
    """Return a weight of a file by `as_fp32`; one in int8 times the scales of its rows."""
    scales = stored.get(f"{name}{SCALE}")
    return as_fp32(stored[name] if scales is None else stored[name] * scales[:, None])


def as_fp32(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of floating point in fp32, aligned in memory, others as they are; uint16 is read as bf16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return np.require(array, np.float32 if array.dtype.kind == "f" else None, "A")
