"""An output head: a softmax over scaled cosines."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from translume.belief import Logits, NextToken
from translume.config import HeadKind
from translume.heads.chunked_cross_entropy import lse_and_label_logits, softmax_loss
from translume.model import Head, HeadLoss, HeadSizes, LossOptions
from translume.parts import part


@part("head", "my_part", interface=1)
class MyPart(HeadKind):
    """[model.head] kind = "my_part": softmax(s · W h / |h|)."""

    implementation: ClassVar[str] = f"{__name__}:MyPartHead"
    kind: Literal["my_part"] = "my_part"
    tie: Literal["all", "target", "none"] = "all"
    scale: float = Field(default=8.0, gt=0.0)
    """What the cosines are multiplied by."""


class MyPartHead(Head):
    """softmax(s · W h / |h|): the length of a hidden state does not matter."""

    def __init__(self, settings: MyPart, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        super().__init__()
        self.vocabulary, self.scale = sizes.vocabulary, settings.scale
        fresh = torch.randn(sizes.vocabulary, sizes.width) * sizes.width**-0.5
        self.weight = tied if tied is not None else nn.Parameter(fresh)

    def loss(self, hidden: Tensor, labels: Tensor, context: object, options: LossOptions) -> HeadLoss:
        """Return the sum over the labels [n], given hidden states [n, D]."""
        loss = softmax_loss(self._direction(hidden), self.weight, None, labels, options)
        return HeadLoss(loss.objective, loss.nll, labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: object) -> Tensor:
        """Return log p [n] of the labels."""
        lse, picked = lse_and_label_logits(self._direction(hidden), self.weight, None, labels)
        return picked - lse

    def next_token(self, hidden: Tensor, context: object) -> NextToken:
        """Return the distributions after n prefixes."""
        return Logits(self._direction(hidden) @ self.weight.mT)

    def _direction(self, hidden: Tensor) -> Tensor:
        return self.scale * nn.functional.normalize(hidden, dim=-1)
