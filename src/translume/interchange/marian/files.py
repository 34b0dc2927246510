"""Read the weights of Marian: .npz without pickle, and .bin, also with the integers of Bergamot's and Mozilla's models.

A .bin has a header of 64-bit numbers (version, count, and for each array the sizes of its name, type, shape and data),
then names, shapes in 32-bit numbers, padding, and the data. Quantised weights are integers with one multiplier after
them.
"""

import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.errors import DataError, ModelFolderError, SettingsError, refused
from translume.interchange.marian.options import MODEL_OPTIONS
from translume.interchange.marian.vocabulary import parse_yaml

Array = NDArray[np.float32]
VERSION = 1
_FLOATS: dict[int, np.dtype[Any]] = {0x404: np.dtype("<f4"), 0x402: np.dtype("<f2")}
_QUANTISED: dict[int, np.dtype[Any]] = {
    code + size: np.dtype(f"<i{size}") for code in (0x4100, 0x10000) for size in (1, 2)
}
"""intgemm8 and intgemm16 in row order, as Bergamot and as Marian number them; other types depend on a processor."""
_TEXT = 0x101
_DAMAGED = (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
"""What numpy raises for a damaged file, one of another kind, and a pickle."""


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """The arrays of a file of Marian.

    place: names the file in errors.  names: of its arrays.  read: returns one of them as fp32.  options: the model's.
    quantised: whether arrays were read from integers.
    """

    place: str
    names: Collection[str]
    read: Callable[[str], Array]
    options: Mapping[str, object]
    quantised: bool = False


def read_weights(path: Path) -> WeightsFile:
    """Open a file of weights. Raises DataError for a damaged one, SettingsError for the layout of one processor."""
    return (read_binary if path.suffix == ".bin" else read_npz)(path)


def read_npz(path: Path) -> WeightsFile:
    """Open a file; arrays are read when they are needed. Raises DataError for a damaged file or one of another kind."""
    try:
        with refused(path, "cannot be read"), zipfile.ZipFile(path) as archive:
            names = frozenset(name.removesuffix(".npy") for name in archive.namelist())
    except _DAMAGED:
        raise DataError(f"{path}: damaged, or not weights of Marian") from None
    if MODEL_OPTIONS not in names:
        raise ModelFolderError(f"{path}: no {MODEL_OPTIONS}, expected the options of the model, as Marian saves them")

    def read(name: str) -> Array:
        array = _member(path, name)
        if array.dtype.kind != "f":
            raise DataError(f"{path}: {name}: found {array.dtype}, expected numbers with a fraction")
        return array.astype(np.float32, copy=False)

    text = _member(path, MODEL_OPTIONS).tobytes().rstrip(b"\0 ").decode(errors="replace")
    options = parse_yaml(text, f"{path}: {MODEL_OPTIONS}")
    return WeightsFile(str(path), names, read, {str(name): value for name, value in options.items()})


def _member(path: Path, name: str) -> NDArray[Any]:
    try:
        with refused(path, "cannot be read"), np.load(path, allow_pickle=False) as archive:
            array: NDArray[Any] = archive[name]
    except _DAMAGED:
        raise DataError(f"{path}: {name} is damaged") from None
    return array


@dataclass(frozen=True, slots=True)
class _Item:
    """An array in the file: its name, type, shape, and bytes [begin, end)."""

    name: str
    kind: int
    shape: tuple[int, ...]
    begin: int
    end: int


def read_binary(path: Path) -> WeightsFile:
    """Read a file. Raises DataError for a damaged file, SettingsError for weights in the layout of one processor."""
    with refused(path, "cannot be read"):
        content = memoryview(path.read_bytes())
    try:
        items = {item.name: item for item in _items(content)}
    except (struct.error, UnicodeDecodeError, ValueError):
        raise DataError(f"{path}: damaged, or not weights of Marian") from None
    if MODEL_OPTIONS not in items or items[MODEL_OPTIONS].kind != _TEXT:
        raise ModelFolderError(f"{path}: no {MODEL_OPTIONS}, expected the options of the model, as Marian saves them")
    for item in items.values():
        if item.kind not in {_TEXT, *_FLOATS, *_QUANTISED}:
            raise SettingsError(
                f"{path}: {item.name}: found weights of type {item.kind:#x}, packed for one processor, expected "
                "float32 or intgemm8; import the .npz that the file was converted from"
            )

    def read(name: str) -> Array:
        item = items[name]
        array = _values(item, content[item.begin : item.end])
        if array is None:
            raise DataError(f"{path}: {name} is damaged")
        return array

    place = items[MODEL_OPTIONS]
    text = bytes(content[place.begin : place.end]).partition(b"\0")[0].decode(errors="replace")
    return WeightsFile(
        str(path),
        frozenset(items),
        read,
        {str(name): value for name, value in parse_yaml(text, f"{path}: {MODEL_OPTIONS}").items()},
        quantised=any(item.kind in _QUANTISED for item in items.values()),
    )


def _items(content: memoryview) -> Iterator[_Item]:
    """Yield the arrays. Raises struct.error, UnicodeDecodeError or ValueError for a malformed file."""
    version, count = struct.unpack_from("<QQ", content)
    if version != VERSION or 16 + 32 * count > len(content):
        raise ValueError("not a file of version 1")
    headers = [struct.unpack_from("<QQQQ", content, 16 + 32 * number) for number in range(count)]
    place = 16 + 32 * count
    names = []
    for size, *_ in headers:
        names.append(bytes(content[place : place + size]).rstrip(b"\0").decode())
        place += size
    shapes = []
    for _, _, axes, _ in headers:
        if place + 4 * axes > len(content):
            raise ValueError("a shape extends beyond the file")
        shapes.append(struct.unpack_from(f"<{axes}i", content, place))
        place += 4 * axes
    (padding,) = struct.unpack_from("<Q", content, place)
    place += 8 + padding
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        if min(shape, default=0) < 0 or place + size > len(content):
            raise ValueError("an array extends beyond the file")
        yield _Item(name, kind, shape, place, place + size)
        place += size


def _values(item: _Item, content: memoryview) -> Array | None:
    """Return an array as fp32; None if its bytes are too few. Quantised weights are transposed, embeddings are not."""
    count = prod(item.shape)
    if item.kind in _FLOATS:
        dtype = _FLOATS[item.kind]
        if len(content) < count * dtype.itemsize:
            return None
        plain: Array = np.frombuffer(content, dtype, count).reshape(item.shape).astype(np.float32, copy=False)
        return plain
    dtype = _QUANTISED.get(item.kind, np.dtype("<i1"))
    if len(content) < count * dtype.itemsize + 4 or len(item.shape) != 2:
        return None
    (multiplier,) = struct.unpack_from("<f", content, count * dtype.itemsize)
    array: Array = np.frombuffer(content, dtype, count).astype(np.float32) * (np.float32(1) / np.float32(multiplier))
    return array.reshape(item.shape) if "Wemb" in item.name else array.reshape(item.shape[::-1]).T
