"""Read `model.bin` of CTranslate2: variables by name, mapped into memory. No torch, no ctranslate2.

The file has a version, the name and revision of the layout, the variables (name, shape, type, data), and aliases. Texts
have their length in 16 bits and end with a zero byte. Integers are weights times a scale, which is a variable too.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from translume.checkpoint.arrays import as_fp32
from translume.errors import DataError, ModelFolderError, SettingsError, refused

Array = NDArray[Any]
BINARY, METADATA = "model.bin", "metadata.json"
OLDEST, NEWEST = 4, 6
"""The versions that are read: those of CTranslate2 from 2.0 to 4.8."""
_DTYPES = ("<f4", "<i1", "<i2", "<i4", "<f2", "<u2")
"""By number: float32, int8, int16, int32, float16, bfloat16."""
_DEFAULT_INT16_SCALE = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """The content of a file.

    place: its path.  layout: "TransformerSpec" and so on.  version, revision: of the file, of the layout.
    variables: as they are stored; an alias is the same object as its variable.
    """

    place: Path
    version: int
    layout: str
    revision: int
    variables: Mapping[str, Array]

    def weight(self, name: str, *shape: int) -> Array:
        """Return a weight in fp32. Raises ModelFolderError if it is missing, not finite or of another shape."""
        stored = self.stored(name, *shape)
        if stored.dtype.kind == "i":
            return as_fp32(stored * self.scales(name).reshape(-1, *[1] * (stored.ndim - 1)))
        return self._finite(name, as_fp32(stored))

    def stored(self, name: str, *shape: int) -> Array:
        """Return a weight as it is stored. Raises ModelFolderError if it is missing or of another shape."""
        stored = self.variables.get(name)
        if stored is None:
            raise ModelFolderError(f"{self.place}: lacks {name}, which a model of its settings has")
        if stored.shape != shape:
            raise ModelFolderError(f"{self.place}: {name} is {list(stored.shape)}, expected {list(shape)}")
        return stored

    def scales(self, name: str) -> Array:
        """Return the factors [N] of the rows of a weight in integers. Raises ModelFolderError if they are damaged."""
        stored = self.variables[name]
        scale = self.variables.get(f"{name}_scale", np.array([_DEFAULT_INT16_SCALE], np.float32))
        if (stored.dtype == "i1" and f"{name}_scale" not in self.variables) or scale.size not in (1, len(stored)):
            raise ModelFolderError(f"{self.place}: {name}_scale: found {scale.size}, expected {len(stored)} numbers")
        scale = self._finite(f"{name}_scale", as_fp32(scale).reshape(-1))
        if not scale.all():
            raise ModelFolderError(f"{self.place}: {name}_scale: found 0, expected other numbers")
        with np.errstate(over="ignore"):
            factors = (1 / scale).astype(np.float32)
            self._finite(f"{name}_scale", factors * np.float32(np.iinfo(stored.dtype).max))
        return np.broadcast_to(factors, len(stored))

    def number(self, name: str, default: float) -> float:
        """Return a scalar, such as a setting. Raises ModelFolderError if it is an array."""
        stored = self.variables.get(name)
        if stored is None:
            return default
        if stored.size != 1:
            raise ModelFolderError(f"{self.place}: {name} is {list(stored.shape)}, expected a number")
        return float(self._finite(name, as_fp32(stored)).reshape(()))

    def text(self, name: str, default: str) -> str:
        """Return a text of a file before version 6."""
        return self.variables[name].tobytes().decode(errors="replace") if name in self.variables else default

    def same(self, *names: str) -> bool:
        """Return whether variables have the same content."""
        first, *others = ([self.variables.get(name), self.variables.get(f"{name}_scale")] for name in names)
        return all(
            mine is theirs or (mine is not None and theirs is not None and np.array_equal(mine, theirs))
            for other in others
            for mine, theirs in zip(first, other, strict=True)
        )

    def _finite(self, name: str, array: Array) -> Array:
        if array.size and not (isfinite(array.min()) and isfinite(array.max())):  # unlike isfinite(array), no copy
            raise ModelFolderError(f"{self.place}: {name}: found a number that is not finite")
        return array


def is_ctranslate2(folder: Path) -> bool:
    """Return whether a folder is one of CTranslate2: it has `model.bin` and a vocabulary."""
    return (folder / BINARY).is_file() and any(folder.glob("*vocabulary.*"))


def is_argos(source: Path) -> bool:
    """Return whether a file or folder is a package of Argos Translate, or one that it installed."""
    if source.is_dir():
        return (source / METADATA).is_file() and (source / "model").is_dir()
    if source.suffix == ".argosmodel" or not is_zipfile(source):  # NumPy and PyTorch write archives, too
        return is_zipfile(source)
    try:
        with ZipFile(source) as archive:
            return any(name.rpartition("/")[2] == METADATA for name in archive.namelist())
    except BadZipFile:
        return False


def needs_import(source: Path) -> bool:
    """Return whether a path is a package, or a folder of CTranslate2."""
    return is_argos(source) or is_ctranslate2(source)


def read_binary(path: Path) -> Binary:
    """Open a file. Raises DataError for a damaged one, SettingsError for a version that is not known."""
    try:
        with refused(path, "cannot be read"):
            content = np.memmap(path, np.uint8, "r").view(np.ndarray)
    except ValueError:
        raise DataError(f"{path}: damaged: it is empty") from None
    try:
        return _parsed(path, content)
    except (struct.error, UnicodeDecodeError, ValueError, LookupError):
        raise DataError(f"{path}: damaged, or not a model of CTranslate2") from None


def _parsed(path: Path, content: Array) -> Binary:
    """Raises struct.error, UnicodeDecodeError, ValueError or LookupError for a malformed file."""
    take = _Reader(content)
    (version,) = take("<I")
    if not OLDEST <= version <= NEWEST:
        if version < 1000:
            raise SettingsError(f"{path}: binary version: found {version}, expected {OLDEST} to {NEWEST}")
        raise ValueError("no version")
    layout, (revision, count) = take.text(), take("<II")
    variables: dict[str, Array] = {}
    for _ in range(count):
        name, (rank,) = take.text(), take("<B")
        shape, (kind, size) = take(f"<{rank}I"), take("<BI")
        dtype = np.dtype(_DTYPES[kind])
        if size != prod(shape) * dtype.itemsize:
            raise ValueError("a shape does not fit its data")
        variables[name] = take.bytes(size).view(dtype).reshape(shape)
    for _ in range(take("<I")[0]):
        alias, name = take.text(), take.text()
        variables[alias] = variables[name]
        if f"{name}_scale" in variables:
            variables[f"{alias}_scale"] = variables[f"{name}_scale"]
    return Binary(place=path, version=version, layout=layout, revision=revision, variables=variables)


class _Reader:
    """Reads one value after the other."""

    def __init__(self, content: Array) -> None:
        self._content, self._place = content, 0

    def __call__(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.bytes(struct.calcsize(layout)).tobytes())

    def bytes(self, size: int) -> Array:
        begin, self._place = self._place, self._place + size
        if self._place > len(self._content):
            raise ValueError("the file ends too early")
        return self._content[begin : self._place]

    def text(self) -> str:
        text = self.bytes(self("<H")[0]).tobytes().rstrip(b"\0").decode()
        if not text.isprintable():
            raise ValueError("a name with other characters")
        return text
