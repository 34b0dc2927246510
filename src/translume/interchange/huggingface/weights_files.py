"""Find and read the weights of a transformers folder: safetensors or PyTorch files, whole or in shards."""

import json
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from translume.errors import DataError, ModelFolderError

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"
"""Appended to the name of whole weights, this is the name of the file that says which shard has which tensor."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool)
_MAPPED_BYTES = 1 << 28
"""A PyTorch file is opened again after so many bytes, so that the pages that were read do not stay in memory."""


class StoredWeights(Mapping[str, Tensor]):
    """The tensors of a folder by name, in the dtype of the files. Each one is read when it is looked up.

    Looking up a tensor maps its file into memory, and freeing the tensor unmaps it, so that reading all of them in
    turn takes the memory of one. Pickled Python objects are never executed.
    """

    def __init__(self, files: Mapping[str, Path], *, copied: bool = False) -> None:
        self._files = files
        self._copied = copied
        self._open: dict[Path, Mapping[str, Tensor]] = {}
        self._read = 0

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor. Raises KeyError for an unknown name, ModelFolderError if it is damaged or quantised."""
        path = self._files[name]
        tensor = _safetensor(path, name) if path.suffix == ".safetensors" else self._pickled(path, name)
        if tensor.dtype not in _DTYPES:
            raise ModelFolderError(
                f"{path}: {name} is stored as {_dtype(tensor)}, expected float32, float16 or bfloat16; "
                "quantised weights are not read"
            )
        return tensor.to(torch.float32, copy=True) if self._copied and tensor.is_floating_point() else tensor

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def copied(self) -> "StoredWeights":
        """Return the same weights in float32, and in memory of their own."""
        return StoredWeights(self._files, copied=True)

    def _pickled(self, path: Path, name: str) -> Tensor:
        if path not in self._open or self._read > _MAPPED_BYTES:
            self._open, self._read = {path: _load(path)}, 0
        tensor = self._open[path][name]
        self._read += tensor.numel() * tensor.element_size()
        return tensor


def read_weights(folder: Path) -> tuple[Path, StoredWeights]:
    """Return the file that error messages name, and the weights by name, in the stored dtypes.

    They are those of `model.safetensors`, else of `pytorch_model.bin`, each whole or in shards.
    Raises ModelFolderError if there are none, a shard is missing or damaged, or a shard lacks a tensor of the index;
    DataError for a damaged index.
    """
    for name in (SAFETENSORS, PICKLED):
        whole, index = folder / name, folder / f"{name}{INDEX}"
        if whole.is_file():
            return whole, StoredWeights(dict.fromkeys(_names(whole), whole))
        if index.is_file():
            return index, StoredWeights(_shards(index))
    raise ModelFolderError(
        f"{folder / SAFETENSORS}: no such file, expected the weights as transformers saves them: {SAFETENSORS} or "
        f"{PICKLED}, or one of them in shards with its {INDEX}"
    )


def _shards(index: Path) -> dict[str, Path]:
    """Return the shard of each tensor, after checking that it is there."""
    try:
        values: Any = json.loads(index.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{index}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{index}: not JSON: {error}") from None
    named = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(named, dict) or not named or not all(isinstance(file, str) for file in named.values()):
        raise DataError(f"{index}: weight_map: expected the name of a file for each tensor")
    stored: dict[str, set[str]] = {}
    suffix = Path(index.name.removesuffix(INDEX)).suffix
    for file in sorted(set(named.values())):
        path = index.parent / file
        if Path(file).name != file or path.suffix != suffix:
            raise DataError(f"{index}: weight_map: found {file!r}, expected the name of a {suffix} file in its folder")
        if not path.is_file():
            raise ModelFolderError(f"{path}: no such file, expected the shard that {index.name} names")
        stored[file] = set(_names(path))
    for name, file in named.items():
        if name not in stored[file]:
            raise ModelFolderError(f"{index.parent / file}: lacks {name}, which {index.name} expects there")
    return {name: index.parent / file for name, file in named.items()}


def _names(path: Path) -> list[str]:
    if path.suffix != ".safetensors":
        return list(_load(path))
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise _damaged(path, error) from None
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror or error}") from None


def _safetensor(path: Path, name: str) -> Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
    except SafetensorError as error:
        raise _damaged(path, error) from None
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror or error}") from None
    return tensor


def _load(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a PyTorch file, mapped into memory if its format allows, by torch's weights-only reader."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            values = _restricted_load(path)
    except UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        raise ModelFolderError(
            f"{path}: refused by torch's weights-only reader, which executes nothing: found "
            f"{found[1] if found else 'damaged or unknown data'}, expected tensors only"
        ) from None
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror or error}") from None
    # torch raises any of these for truncated or empty files.
    except (RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise _damaged(path, error) from None
    if not isinstance(values, dict) or not all(map(_is_plain, values.values())):
        raise ModelFolderError(f"{path}: expected a dictionary of tensors by name, as save_pretrained writes it")
    return values


def _restricted_load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap can only be used" not in str(error):
            raise
    # Files of torch before 1.6 are no zip archives and are read as a whole.
    return torch.load(path, map_location="cpu", weights_only=True)


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized


def _damaged(path: Path, error: BaseException) -> ModelFolderError:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return ModelFolderError(f"{path}: damaged: {reason}")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
