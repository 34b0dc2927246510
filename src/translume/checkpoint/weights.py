"""Read and write safetensors files. A tensor with several names is stored once."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from translume import atomic
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
CPU = torch.device("cpu")


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
        atomic.write(path, _pieces(ordered, notes))

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


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Replace the errors of reading a file by a ModelFolderError."""
    try:
        yield
    except SafetensorError as error:
        raise ModelFolderError(f"{path}: damaged: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror or error}") from None


def fill(network: nn.Module, path: Path, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> None:
    """Make the tensors of a file the weights of a network, on `device`; those of floating point get `dtype`.

    The tensors of a large file in fp32 for the CPU are mapped into memory: their pages are read when they are used, and
    shared with other processes; what is written to them stays in this process. Others are copied.
    Raises ModelFolderError naming the first tensor that is missing, unknown or of another shape.
    """
    mapped = path.stat().st_size >= MAPPED_BYTES

    def placed(tensor: Tensor) -> Tensor:
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        moved = tensor.to(device, kind)
        usable = mapped and tensor.data_ptr() % ALIGNMENT == 0
        return moved if usable or moved is not tensor or device.type != "cpu" else tensor.clone()

    assign(network, ((name, placed(tensor)) for name, tensor in read_tensors(path, device)), str(path))
    network.to(device, dtype)  # buffers that are not in the file


@torch.no_grad()
def assign(network: nn.Module, tensors: Iterable[tuple[str, Tensor]], place: str) -> None:
    """Make `tensors` the parameters and buffers of a network, without copying them; tied ones need one name only.

    place: begins the message of a ModelFolderError, which names the first tensor that is missing, unknown or of
    another shape.
    """
    wanted = network.state_dict(keep_vars=True)
    given: dict[int, Tensor] = {}
    for name, tensor in tensors:
        old = wanted.get(name)
        if old is None:
            raise ModelFolderError(f"{place}: holds {name}, which a model of these settings does not have")
        if old.shape != tensor.shape:
            raise ModelFolderError(
                f"{place}: {name} is {list(tensor.shape)}, expected {list(old.shape)} by the settings"
            )
        is_parameter = isinstance(old, nn.Parameter)
        given[id(old)] = nn.Parameter(tensor.contiguous(), old.requires_grad) if is_parameter else tensor
    for name, old in wanted.items():
        if id(old) not in given:
            raise ModelFolderError(f"{place}: lacks {name}, which a model of these settings has")
    # One object for all names of a tied parameter, so that it stays tied.
    network.load_state_dict({name: given[id(old)] for name, old in wanted.items()}, assign=True)
