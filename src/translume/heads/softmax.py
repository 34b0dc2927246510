"""The default head: one linear map and a softmax."""

import torch.nn.functional as F
from torch import Tensor, nn

from translume.belief import Logits, NextToken
from translume.config import ProjectedSettings
from translume.heads.chunked_cross_entropy import lse_and_label_logits, softmax_divergence, softmax_loss
from translume.heads.linear import LinearHead, output_bias, output_weight
from translume.model import Head, HeadLoss, HeadSizes, LossOptions
from translume.model.state import Selectable


class SoftmaxHead(LinearHead):
    """softmax(W h + b); W may be the target embedding itself (Press and Wolf 2017)."""

    blends_teacher_loss = True
    weighs_rows = True

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        loss = softmax_loss(hidden, self.weight, self.bias, labels, options)
        return HeadLoss(loss.objective, loss.nll, labels.numel())

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        return softmax_divergence(first, second, self.weight, self.bias)

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        lse, picked = lse_and_label_logits(hidden, self.weight, self.bias, labels)
        return picked - lse

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        return Logits(F.linear(hidden, self.weight, self.bias))

    def plain(self) -> dict[str, Tensor]:
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}


class ProjectedHead(Head):
    """softmax(W f(A h) + b), with A [size, D] and f = tanh or the identity.

    The logits of a softmax over states of size D have rank D at most (Yang et al. 2018). A larger size with tanh raises
    that limit, at the cost of one more product; a smaller size makes the product with W cheaper.
    """

    blends_teacher_loss = True
    weighs_rows = True

    def __init__(self, settings: ProjectedSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        super().__init__()
        self.vocabulary = sizes.vocabulary
        size = settings.size or 2 * sizes.width
        self.map = nn.Linear(sizes.width, size, bias=False)
        nn.init.normal_(self.map.weight, std=sizes.width**-0.5)
        self.weight = output_weight(sizes.vocabulary, size)
        self.bias = output_bias(sizes.vocabulary, enabled=settings.bias)
        self._activation = settings.activation

    def _mapped(self, hidden: Tensor) -> Tensor:
        mapped: Tensor = self.map(hidden)
        return mapped.tanh() if self._activation == "tanh" else mapped

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        loss = softmax_loss(self._mapped(hidden), self.weight, self.bias, labels, options)
        return HeadLoss(loss.objective, loss.nll, labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        lse, picked = lse_and_label_logits(self._mapped(hidden), self.weight, self.bias, labels)
        return picked - lse

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        return Logits(F.linear(self._mapped(hidden), self.weight, self.bias))
