"""The feed-forward block (Vaswani et al. 2017, section 3.3; gated: Shazeer 2020)."""

import torch.nn.functional as F
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.attention import initialise
from translume.model.dropout import Dropout


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, at every token alone; three maps with "swiglu"."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.activation = settings.activation
        parts = 2 if settings.activation == "swiglu" else 1
        self.inner = nn.Linear(settings.width, parts * settings.feed_forward, settings.bias)
        self.outer = nn.Linear(settings.feed_forward, settings.width, settings.bias)
        self.drop = Dropout(settings.activation_dropout)
        initialise(self.inner, parts)
        initialise(self.outer)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] to the same shape."""
        hidden = self.inner(x)
        if self.activation == "relu":
            hidden = F.relu(hidden, inplace=True)  # spares a tensor of n·F
        elif self.activation == "gelu":
            hidden = F.gelu(hidden)
        elif self.activation == "swish":
            hidden = F.silu(hidden)
        else:
            gate, value = hidden.chunk(2, -1)
            hidden = F.silu(gate) * value
        result: Tensor = self.outer(self.drop(hidden))
        return result
