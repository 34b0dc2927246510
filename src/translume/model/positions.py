"""How a token's place is known: added vectors, or queries and keys turned by their place."""

import math

import torch
from torch import Tensor, nn

from translume.config import ModelSettings


def sinusoids(count: int, width: int, *, longest_last: bool = False) -> Tensor:
    """[count, width]: the sines, then the cosines, of places 0 … count−1 at width/2 wavelengths from 2π to 10000·2π.

    Vaswani et al. 2017, section 3.5, with sines and cosines in two halves instead of by turns, as Marian and
    fairseq have them (a permutation of the columns). The paper's last wavelength falls short of 10000·2π by one step;
    with `longest_last` it reaches it, as Marian's does.
    """
    steps = max(width - 2, 1) if longest_last else width
    exponent = torch.arange(0, width, 2, dtype=torch.float64) / steps
    angles = torch.arange(count, dtype=torch.float64)[:, None] * torch.exp(-math.log(10_000) * exponent)
    return torch.cat([angles.sin(), angles.cos()], -1).float()


class Positions(nn.Module):
    """Vectors that are added to embeddings: sinusoidal, learned, or nothing (rotary ones turn attention instead)."""

    table: Tensor

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.longest = settings.max_positions
        """Most places, T."""
        if settings.positions == "learned":
            self.table = nn.Parameter(torch.empty(settings.max_positions, settings.width))
            nn.init.normal_(self.table, std=settings.width**-0.5)
        elif settings.positions in ("sinusoidal", "marian"):
            table = sinusoids(settings.max_positions, settings.width, longest_last=settings.positions == "marian")
            self.register_buffer("table", table, persistent=False)
        else:
            self.table = torch.empty(0)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """x [..., D] with the vectors of `places` [...] added."""
        return x + self.table[places] if self.table.numel() else x


def rotation(places: Tensor, head_width: int) -> Tensor:
    """[2, *places.shape, head_width]: cosines and sines that turn pairs of components (Su et al. 2021, equation 34)."""
    exponent = torch.arange(0, head_width, 2, device=places.device) / head_width
    angles = places[..., None] * torch.exp(-math.log(10_000) * exponent)
    angles = torch.cat([angles, angles], -1)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """x [..., T, head_width] turned by `rotation`; component i is paired with component i + head_width/2."""
    first, second = x.chunk(2, -1)
    return x * turn[0].to(x.dtype) + torch.cat([-second, first], -1) * turn[1].to(x.dtype)


def rotate_back(x: Tensor, turn: Tensor) -> Tensor:
    """The inverse of `rotate`, which is also its gradient."""
    return rotate(x, torch.stack([turn[0], -turn[1]]))
