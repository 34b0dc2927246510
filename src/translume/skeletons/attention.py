"""An attention: softmax(τ Q Kᵀ / √d) V with a trained τ."""

import torch
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.attention import attend, attention_weights
from translume.parts import part


@part("attention", "my_part", interface=1)
class MyPart(nn.Module):
    """Attention with a trained factor of the scores."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *,
        dropout: float = 0.0, causal: bool = False, cap: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """Return [N, H, t, d]; the arguments are those of `attend`."""
        return attend(query * self.factor, keys, values, mask, dropout=dropout, causal=causal, cap=cap)

    def weights(self, query: Tensor, keys: Tensor, allowed: Tensor, bias: Tensor | None, cap: float) -> Tensor:
        """Return the weights [N, H, t, S], for inspection; the arguments are those of `attention_weights`."""
        return attention_weights(query * self.factor, keys, allowed, bias, cap)
