"""Read the weights of a .npz file of Marian, without pickle."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.errors import DataError, ModelFolderError
from translume.interchange.marian.options import MODEL_OPTIONS
from translume.interchange.marian.vocabulary import parse_yaml
from translume.interchange.marian.weights import Array, WeightsFile

_DAMAGED = (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
"""What numpy raises for a damaged file, one of another kind, and a pickle."""


def read_npz(path: Path) -> WeightsFile:
    """Open a file; arrays are read when they are needed. Raises DataError for a damaged file or one of another kind."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = frozenset(name.removesuffix(".npy") for name in archive.namelist())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except _DAMAGED:
        raise DataError(f"{path}: damaged, or not weights of Marian") from None
    if MODEL_OPTIONS not in names:
        raise ModelFolderError(f"{path}: no {MODEL_OPTIONS}, expected the options of the model, as Marian saves them")

    def read(name: str) -> Array:
        found = _member(path, name)
        if found.dtype.kind != "f":
            raise DataError(f"{path}: {name}: found {found.dtype}, expected numbers with a fraction")
        return found.astype(np.float32, copy=False)

    text = _member(path, MODEL_OPTIONS).tobytes().rstrip(b"\0 ").decode(errors="replace")
    options = parse_yaml(text, f"{path}: {MODEL_OPTIONS}")
    return WeightsFile(str(path), names, read, {str(name): value for name, value in options.items()})


def _member(path: Path, name: str) -> NDArray[Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            found: NDArray[Any] = archive[name]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGED:
        raise DataError(f"{path}: {name} is damaged") from None
    return found
