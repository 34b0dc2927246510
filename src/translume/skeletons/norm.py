"""A norm, with a setting of its own: model.options.my_part.power."""

import torch
from pydantic import Field
from torch import Tensor, nn

from translume.config import ModelSettings, Settings
from translume.parts import part


class MyPartSettings(Settings):
    """Settings of the norm "my_part"."""

    power: float = Field(default=2.0, gt=0.0)
    """The exponent p."""


@part("norm", "my_part", interface=1, settings=MyPartSettings)
class MyPart(nn.Module):
    """x / mean(|x|^p)^(1/p), with a gain for each dimension."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.power = settings.option(MyPartSettings).power
        self.weight = nn.Parameter(torch.ones(settings.width))

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., D] to the same shape."""
        size = (x.abs().pow(self.power).mean(-1, keepdim=True) + 1e-6).pow(1 / self.power)
        return self.weight * x / size
