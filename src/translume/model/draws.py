"""Random numbers of training other than the masks of dropout."""

import torch
from torch import Tensor

from translume.model.compiled import on_device
from translume.model.dropout import draw_seed


def uniforms(*shape: int, like: Tensor) -> Tensor:
    """Return random numbers in [0, 1) on the device of a tensor, in fp64 (fp32 on MPS, which has no fp64).

    On a CPU they come from the generator of the masks of dropout, on other devices from torch's generator of the
    device: then the host neither draws nor copies, and the numbers of a captured CUDA graph differ at each replay.
    """
    dtype = torch.float32 if like.device.type == "mps" else torch.float64
    if on_device(like):
        return torch.rand(shape, device=like.device, dtype=dtype)
    return torch.rand(shape, generator=torch.Generator().manual_seed(draw_seed()), dtype=dtype)


def integers(fractions: Tensor, counts: Tensor | int) -> Tensor:
    """Return integers from 0 to below `counts`, which is at least 1, for numbers in [0, 1); evenly distributed."""
    return (fractions * counts).long()
