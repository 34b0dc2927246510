"""A feed-forward block: two linear maps with a squared ReLU between them (So et al. 2021)."""

from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.attention import initialise
from translume.parts import part


@part("feed_forward", "my_part", interface=1)
class MyPart(nn.Module):
    """W₂ max(0, W₁ x)²."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.inner = nn.Linear(settings.width, settings.feed_forward, settings.bias)
        self.outer = nn.Linear(settings.feed_forward, settings.width, settings.bias)
        initialise(self.inner)
        initialise(self.outer)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., D] to the same shape."""
        result: Tensor = self.outer(self.inner(x).relu().square())
        return result
