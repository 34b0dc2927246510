"""Tensors that are mapped from a file without a name, so that the system can take their memory back."""

import mmap
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from translume.errors import ModelFolderError, reason_of
from translume.training.group import Group


def stored(tensors: Iterable[tuple[str, Tensor]], folder: Path) -> dict[str, Tensor]:
    """Write tensors to a file without a name in `folder`, one after the other, and return them mapped into memory.

    The system can take their memory back, and removes the file with the process. Reads all tensors, whatever happens,
    since other processes may take part. Raises ModelFolderError if the file cannot be written.
    """
    rest = iter(tensors)
    places: list[tuple[str, torch.Size, int]] = []
    end = 0
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for name, value in rest:
                flat = value.detach().to("cpu", torch.float32).contiguous().reshape(-1)
                file.write(flat.numpy().data)
                places.append((name, value.shape, end))
                end += 4 * flat.numel()
            file.flush()
            if not end:  # which cannot be mapped
                return {name: torch.empty(shape) for name, shape, _ in places}
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        for _ in rest:
            pass
        raise ModelFolderError(f"{folder}: cannot be written: {reason_of(error)}") from None
    return {
        name: torch.frombuffer(mapped, dtype=torch.float32, count=shape.numel(), offset=begin).view(shape)
        if shape.numel()
        else torch.empty(shape)
        for name, shape, begin in places
    }


def kept(tensors: Iterable[tuple[str, Tensor]], folder: Path, group: Group) -> dict[str, Tensor]:
    """Return tensors that all processes gather in step, as `stored` returns them, in rank 0, and none in the others."""
    if group.leads:
        return stored(tensors, folder)
    for _ in tensors:
        pass
    return {}
