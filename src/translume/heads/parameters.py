"""What heads with a linear map to the vocabulary are made of: vectors and biases."""

import torch
from torch import nn


def vectors(count: int, width: int, tied: nn.Parameter | None = None) -> nn.Parameter:
    """[count, width]: `tied` itself, or new ones with which the logits of a normalised state deviate by 1."""
    if tied is not None:
        return tied
    fresh = nn.Parameter(torch.empty(count, width))
    nn.init.normal_(fresh, std=width**-0.5)
    return fresh


def biases(count: int, *, wanted: bool) -> nn.Parameter | None:
    """[count] zeros, or None where none are wanted."""
    return nn.Parameter(torch.zeros(count)) if wanted else None
