"""An independent decision for every token, without normalisation over the vocabulary."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from translume.belief import NextToken
from translume.config import SigmoidSettings
from translume.heads.chunked_cross_entropy import chunked_loss
from translume.heads.linear import LinearHead, accumulation_dtype, label_logits, spread
from translume.heads.next_tokens import MonotoneBelief
from translume.model import HeadLoss, HeadSizes, LossOptions
from translume.model.state import Selectable


class SigmoidHead(LinearHead):
    """σ(l_v) for every token v independently, l = W h + b − ln(V−1) (SCONES; Stahlberg and Kumar 2022).

    The loss is −log σ(l_y) − α Σ_{v≠y} log(1 − σ(l_v)). The constant makes every probability 1/V where W h + b is zero,
    so that the initial loss is about ln V + α instead of growing with V.
    With label smoothing the targets of the decisions are (1−ε)·[v = y] + ε/V instead of 0 and 1. Without a normaliser,
    z-loss and nll are not defined.
    """

    normalised = False
    exact_loss = False
    exact_smoothing = False

    def __init__(self, settings: SigmoidSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        super().__init__(settings, sizes, tied)
        self._negatives = settings.negatives
        self._offset = math.log(max(1, sizes.vocabulary - 1))

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        shares = spread(options, self.vocabulary, hidden)
        rule = _Decisions(self._negatives, self._offset, 1.0 - options.label_smoothing, shares)
        return HeadLoss(chunked_loss(hidden, self.weight, self.bias, labels, rule), None, labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        return F.logsigmoid(label_logits(hidden, self.weight, self.bias, labels) - self._offset)

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        logits = F.linear(hidden, self.weight, self.bias)
        return Decisions(logits.to(accumulation_dtype(logits)) - self._offset)


class Decisions(MonotoneBelief):
    """σ of logits [N, V], each independent; `sample` draws in proportion to them."""

    normalised = False

    def _log_probs_of(self, logits: Tensor) -> Tensor:
        return F.logsigmoid(logits)


@dataclass(frozen=True, slots=True)
class _Decisions:
    """The loss of V decisions, with targets 1 − ε for the label plus `spread` [V] for all tokens (None: 0)."""

    negatives: float
    offset: float
    label_share: float
    spread: Tensor | None

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits.sub_(self.offset)
        place = labels[:, None]
        own = logits.gather(1, place)
        target = self.label_share if self.spread is None else self.label_share + self.spread[place]
        refusal = self.negatives * (1.0 - target)
        own_loss = target * F.softplus(-own) + refusal * F.softplus(own)
        own_slope = refusal * own.sigmoid() - target * (-own).sigmoid()
        losses = F.softplus(logits)
        if self.spread is None:
            losses *= self.negatives
            logits.sigmoid_().mul_(self.negatives)
        else:
            factor = self.negatives * (1.0 - self.spread) + self.spread
            losses.mul_(factor).addcmul_(logits, self.spread, value=-1.0)
            logits.sigmoid_().mul_(factor).sub_(self.spread)
        logits.scatter_(1, place, own_slope)
        return losses.scatter_(1, place, own_loss).sum(-1)
