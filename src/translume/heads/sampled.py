"""Sampled softmax: training computes the logits of the labels and of sampled tokens only."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from translume.belief import NextToken
from translume.config import SampledSettings
from translume.heads import chunked_cross_entropy, fixed_cross_entropy
from translume.heads.linear import MeanToken, accumulation_dtype, label_logits
from translume.heads.softmax import SoftmaxHead
from translume.heads.token_statistics import by_frequency, target_counts
from translume.model import Head, HeadData, HeadLoss, HeadSizes, LossOptions
from translume.model.compiled import on_device
from translume.model.dropout import uniforms
from translume.model.state import Selectable

NEGLIGIBLE = -1e30
"""Logit of an ignored sample: its probability is negligible, yet the logit is finite."""


class SampledHead(Head):
    """softmax(W h + b), trained with an estimate of the normaliser (Jean et al. 2015; Bengio and Senécal 2008).

    K tokens are drawn for all rows of a call, with q = ln((r+2)/(r+1)) / ln(V+1) by frequency rank r from 0.
    Z is estimated as exp(l_y) + Σ exp(l_s) / π_s over the distinct samples s ≠ y, where π = 1 − (1−q)^K is the
    probability that a token is among them. The estimate is unbiased, and exact for large K.
    Label smoothing and z-loss are those of the softmax, with that estimate.
    In training mode there is no nll; in evaluation mode the loss, like `score`, is that of the full softmax.
    """

    exact_loss = False

    def __init__(self, settings: SampledSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        """tied: an embedding [V, D] to share; it is not copied."""
        super().__init__()
        self.vocabulary = sizes.vocabulary
        self.softmax = SoftmaxHead(settings, sizes, tied)
        self._samples = settings.samples
        self.ranked: Tensor
        self.register_buffer("ranked", torch.arange(sizes.vocabulary))  # ids, the most frequent first

    def learn(self, data: HeadData) -> None:
        self.ranked.copy_(torch.from_numpy(by_frequency(target_counts(data, self.vocabulary))))

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        if not self.training:
            return self.softmax.loss(hidden, labels, None, options)
        drawn = self._draw(hidden)
        chunk = (fixed_cross_entropy if on_device(hidden) else chunked_cross_entropy).CHUNK_ELEMENTS
        rows = max(1, chunk // len(drawn.ids))
        parts = list(zip(torch.split(hidden, rows), torch.split(labels, rows), strict=True))
        mean = None
        if options.label_smoothing:
            mean = MeanToken(self.softmax.weight, self.softmax.bias, options.smoothed)
        if len(parts) == 1:
            objective = self._estimate(*parts[0], drawn, mean, options)
        else:
            objective = torch.stack(
                [
                    checkpoint(
                        self._estimate, *part, drawn, mean, options, use_reentrant=False, preserve_rng_state=False
                    )
                    for part in parts
                ]
            ).sum()
        return HeadLoss(objective, None, labels.numel())

    def _draw(self, hidden: Tensor) -> "_Drawn":
        """Draw samples. On a CPU repeated ones are removed; elsewhere, where shapes are fixed, they are ignored."""
        uniform, whole = uniforms(self._samples, like=hidden), math.log(self.vocabulary + 1)
        ranks = uniform.mul(whole).expm1_().long().clamp_(max=self.vocabulary - 1)
        ranks = ranks.sort().values if on_device(hidden) else torch.unique(ranks)
        once = torch.log1p(1.0 / (ranks + 1).to(uniform.dtype)) / whole
        log_chance = torch.log(-torch.expm1(self._samples * torch.log1p(-once)))
        if on_device(hidden):
            log_chance.masked_fill_(ranks == F.pad(ranks[:-1], (1, 0), value=-1), -NEGLIGIBLE)
        ids = self.ranked[ranks]
        bias = None if self.softmax.bias is None else self.softmax.bias[ids]
        return _Drawn(ids, log_chance.to(accumulation_dtype(hidden)), self.softmax.weight[ids], bias)

    def _estimate(
        self, hidden: Tensor, labels: Tensor, drawn: "_Drawn", mean: MeanToken | None, options: LossOptions,
    ) -> Tensor:  # fmt: skip
        """Return the summed loss of labels [c]."""
        own = label_logits(hidden, self.softmax.weight, self.softmax.bias, labels)
        others = F.linear(hidden, drawn.weight, drawn.bias).to(own.dtype) - drawn.log_chance
        others = others.masked_fill(drawn.ids == labels[:, None], NEGLIGIBLE).logsumexp(-1)
        nll = F.softplus(others - own)
        loss = nll.sum()
        if mean is not None:
            loss = loss + options.label_smoothing * (own - mean.logit(hidden)).sum()
        if options.z_loss:
            loss = loss + options.z_loss * (nll + own).square().sum()
        return loss

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        return self.softmax.score(hidden, labels, None)

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        return self.softmax.next_token(hidden, None)

    def plain(self) -> dict[str, Tensor]:
        return self.softmax.plain()


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Samples: ids [K'], log π [K'], their vectors [K', D] and biases [K']. Repeated ones have a log π of 1e30."""

    ids: Tensor
    log_chance: Tensor
    weight: Tensor
    bias: Tensor | None
