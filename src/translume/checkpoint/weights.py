"""Read and write safetensors files. A tensor with several names is stored once."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from translume import atomic
from translume.checkpoint.arrays import ALIGNMENT, SCALE, Arrays, header_of, map_arrays, names_in, weight_in
from translume.checkpoint.folder import Content
from translume.errors import ModelFolderError
from translume.lazy import Tensor, no_grad, torch

if TYPE_CHECKING:
    from torch import nn

_NAMES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
    "uint16": "BF16",
}
"""The names of dtypes in a file, those of torch and those of NumPy, where numbers of 16 bits are those of bf16."""
MAPPED_BYTES = 1 << 26
"""Weights of a larger file are mapped into memory instead of copied."""


def unique_tensors(model: "nn.Module") -> dict[str, Tensor]:
    """Return the parameters and saved buffers of a model by name; a tied one by its first name only."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def quantized(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the matrices [N, K] among weights in int8 with a scale a row, absmax / 127, and all others as they are.

    An int8 engine packs the same integers of what is read back.
    """
    stored = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and tensor.is_floating_point():
            scales = tensor.float().abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
            stored[f"{name}{SCALE}"] = scales
            tensor = (tensor.float() / scales[:, None]).round().to(torch.int8)
        stored[name] = tensor
    return stored


def tensor_file(
    tensors: Mapping[str, Tensor] | Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> Content:
    """Return the content of a safetensors file for `commit`. The same tensors give the same bytes.

    `commit` writes it tensor by tensor, without a second copy in memory. Each is looked up twice, for the header and to
    be written, so that a mapping may compute it.
    """
    notes = dict(metadata or {})

    def write(path: Path) -> None:
        atomic.write(path, _pieces(tensors, notes))

    return write


def _pieces(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    sizes = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        sizes[name] = (_NAMES[str(tensor.dtype).removeprefix("torch.")], tensor.shape, tensor.nbytes)
    yield header_of(sizes, metadata, step=1)
    for name in sizes:
        tensor = tensors[name]
        if not isinstance(tensor, np.ndarray):
            tensor = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        if tensor.size:
            yield np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


def read_tensors(path: Path, device: "torch.device | str" = "cpu") -> Iterator[tuple[str, Tensor]]:
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


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Replace the errors of reading a file by a ModelFolderError."""
    try:
        yield
    except SafetensorError as error:
        raise ModelFolderError(f"{path}: damaged: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror or error}") from None


def fill(
    network: "nn.Module",
    path: Path,
    device: "torch.device | None" = None,
    dtype: "torch.dtype | None" = None,
    arrays: Arrays | None = None,
) -> None:
    """Make the tensors of a file the weights of a network, on `device`, by default the CPU.

    Those of floating point get `dtype`, by default fp32. The tensors of a large file in fp32 for the CPU are those of
    `map_arrays`; others are copied.
    arrays: those of the file, if they are mapped already.
    Raises ModelFolderError naming the first tensor that is missing, unknown or of another shape.
    """
    arrays = map_arrays(path) if arrays is None else arrays
    device, dtype = device or torch.device("cpu"), dtype or torch.float32
    mapped = sum(array.nbytes for array in arrays.values()) >= MAPPED_BYTES

    def placed(array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        tensor = tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
        moved = tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        usable = mapped and tensor.data_ptr() % ALIGNMENT == 0
        return moved if usable or moved is not tensor else tensor.clone()

    whole = (
        arrays if len(names_in(arrays)) == len(arrays) else {name: weight_in(arrays, name) for name in names_in(arrays)}
    )
    assign(network, ((name, placed(array)) for name, array in whole.items()), str(path))
    network.to(device, dtype)  # buffers that are not in the file


def arrays_of(network: "nn.Module") -> Arrays:
    """Return the `unique_tensors` of a network as arrays, in fp32; those in fp32 on a CPU share its memory."""
    tensors = unique_tensors(network).items()
    return {name: (each.float() if each.is_floating_point() else each).cpu().numpy() for name, each in tensors}


@no_grad()
def assign(network: "nn.Module", tensors: Iterable[tuple[str, Tensor]], place: str) -> None:
    """Make `tensors` the parameters and buffers of a network, without copying them; tied ones need one name only.

    place: begins the message of a ModelFolderError, which names the first tensor that is missing, unknown or of
    another shape.
    """
    wanted = network.state_dict(keep_vars=True)
    assigned: dict[int, Tensor] = {}
    for name, tensor in tensors:
        old = wanted.get(name)
        if old is None:
            raise ModelFolderError(f"{place}: holds {name}, which a model of these settings does not have")
        if old.shape != tensor.shape:
            raise ModelFolderError(
                f"{place}: {name} is {list(tensor.shape)}, expected {list(old.shape)} by the settings"
            )
        is_parameter = isinstance(old, torch.nn.Parameter)
        assigned[id(old)] = torch.nn.Parameter(tensor.contiguous(), old.requires_grad) if is_parameter else tensor
    for name, old in wanted.items():
        if id(old) not in assigned:
            raise ModelFolderError(f"{place}: lacks {name}, which a model of these settings has")
    # One object for all names of a tied parameter, so that it stays tied.
    network.load_state_dict({name: assigned[id(old)] for name, old in wanted.items()}, assign=True)
