"""Read and write safetensors files. A tensor with several names is stored once."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from translume.checkpoint import disk
from translume.checkpoint.folder import Content
from translume.errors import ModelFolderError

_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_LENGTH = 8
"""Bytes of the length of a file's header."""
ALIGNMENT = 64
"""Bytes to a multiple of which the first tensor of a file is aligned, as torch aligns its own memory."""
MAPPED_BYTES = 1 << 26
"""Weights of a larger file are mapped into memory instead of copied."""


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and saved buffers of a model by name; a tied one by its first name only."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def tensor_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Content:
    """Return the content of a safetensors file for `commit`. The same tensors give the same bytes.

    `commit` writes it tensor by tensor, without a second copy in memory.
    """
    ordered = dict(sorted(tensors.items()))
    notes = dict(metadata or {})

    def write(path: Path) -> None:
        disk.write(path, _pieces(ordered, notes))

    return write


def _pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-(len(text) + _LENGTH) % ALIGNMENT)
    yield len(text).to_bytes(_LENGTH, "little")
    yield text
    for tensor in tensors.values():
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy().data


def read_tensors(path: Path, device: torch.device | str = "cpu") -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of a safetensors file on `device`. Raises ModelFolderError if it is damaged.

    Each tensor maps the file anew, so that freeing it also frees its pages.
    """
    with _errors(path):
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
        for name in names:
            with safe_open(path, framework="pt", device=str(device)) as file:
                tensor = file.get_tensor(name)
            yield name, tensor
            del tensor


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file. Raises ModelFolderError if it is damaged."""
    with _errors(path), safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Replace the errors of reading a file by a ModelFolderError."""
    try:
        yield
    except SafetensorError as error:
        raise ModelFolderError(f"{path}: damaged: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror or error}") from None


@torch.no_grad()
def fill(model: nn.Module, path: Path) -> None:
    """Load the tensors of a file into `model`, which keeps its dtype and device.

    Raises ModelFolderError naming the first tensor that is missing, unknown or of another shape.
    """
    for place, tensor in _matched(model, path, read_tensors(path)):
        place.copy_(tensor)


@torch.no_grad()
def map_weights(model: nn.Module, path: Path) -> bool:
    """Make the tensors of a file the parameters of a model that was built `without_values`, in fp32, on the CPU.

    The file is mapped into memory: its pages are read when they are used, and shared with other processes. What is
    written to them stays in this process. Returns False, and does nothing, if the file is small.
    Raises ModelFolderError as `fill` does.
    """
    if path.stat().st_size < MAPPED_BYTES:
        return False
    with _errors(path), safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    for place, tensor in _matched(model, path, tensors.items()):
        if not place.is_meta:  # a buffer
            place.copy_(tensor)
            continue
        usable = tensor.dtype == torch.float32 and tensor.data_ptr() % ALIGNMENT == 0
        made = nn.Parameter(tensor if usable else tensor.to(torch.float32, copy=True), place.requires_grad)
        torch.utils.swap_tensors(place, made)  # type: ignore[no-untyped-call]  # torch has no types for it
    return True


def _matched(model: nn.Module, path: Path, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter or buffer of a model with the tensor of its name in a file."""
    wanted = model.state_dict(keep_vars=True)
    found: set[int] = set()
    for name, tensor in tensors:
        place = wanted.get(name)
        if place is None:
            raise ModelFolderError(f"{path}: holds {name}, which a model of these settings does not have")
        if place.shape != tensor.shape:
            raise ModelFolderError(
                f"{path}: {name} is {list(tensor.shape)}, expected {list(place.shape)} by the settings"
            )
        yield place, tensor
        found.add(id(place))
    for name, place in wanted.items():
        if id(place) not in found:
            raise ModelFolderError(f"{path}: lacks {name}, which a model of these settings has")
