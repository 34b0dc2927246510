"""Classification of whole texts: a softmax over classes, or an independent decision for each."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.belief import Logits, NextToken
from translume.config import ClassifySettings
from translume.heads.chunked_cross_entropy import label_log_probs, lse_and_label_logits, softmax_loss
from translume.heads.linear import MeanToken, accumulation_dtype, output_bias, output_weight
from translume.heads.sigmoid import Decisions
from translume.model import Head, HeadData, HeadLoss, HeadSizes, LossOptions
from translume.model.state import Selectable


class ClassifyHead(Head):
    """softmax(W h + b) over C classes, or σ(W h + b) for each class independently, where h is a vector of a text.

    Class weights "balanced" are N/(C·n_c) for a class that n_c of N texts have (King and Zeng 2001); the loss of a text
    is multiplied by that of its class. With several labels they are (N − n_c)/n_c and apply to positive decisions only.
    A class without texts counts as having one. The nll is never weighted.
    """

    weights: Tensor | None

    def __init__(self, settings: ClassifySettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        super().__init__()
        self.vocabulary = sizes.vocabulary
        self.weight = output_weight(sizes.vocabulary, sizes.width)
        self.bias = output_bias(sizes.vocabulary, enabled=settings.bias)
        self.several = settings.labels == "several"
        balanced = settings.class_weights == "balanced"
        self.register_buffer("weights", torch.ones(sizes.vocabulary) if balanced else None)
        self.normalised = self.full_support = not self.several
        self.exact_loss = not balanced
        self.exact_smoothing = not balanced
        self.weighs_rows = not balanced and not self.several

    def learn(self, data: HeadData) -> None:
        """Count the classes of the training data."""
        if self.weights is None:
            return
        counts = np.zeros(self.vocabulary, np.int64)
        for index in range(data.corpus.pairs):
            np.add.at(counts, data.corpus.target(index), 1)
        counts = counts.clip(min=1)
        texts = data.corpus.pairs
        weights = (texts - counts).clip(min=1) / counts if self.several else texts / (self.vocabulary * counts)
        self.weights.copy_(torch.from_numpy(weights))

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        """labels: classes [n], or [n, C] of 0 and 1. Only in the second case are n×C elements in memory."""
        if self.several:
            return self._decisions_loss(hidden, labels)
        if self.weights is None:
            loss = softmax_loss(hidden, self.weight, self.bias, labels, options)
            return HeadLoss(loss.objective, loss.nll, labels.numel())
        lse, picked = lse_and_label_logits(hidden, self.weight, self.bias, labels)
        losses = lse - picked
        nll = losses.detach().sum()
        if options.label_smoothing:
            mean = MeanToken(self.weight, self.bias, options.smoothed)
            losses = losses + options.label_smoothing * (picked - mean.logit(hidden))
        if options.z_loss:
            losses = losses + options.z_loss * lse.square()
        return HeadLoss((self.weights[labels] * losses).sum(), nll, labels.numel())

    def _decisions_loss(self, hidden: Tensor, labels: Tensor) -> HeadLoss:
        logits = self._logits(hidden)
        yes = labels.to(logits.dtype)
        nll = F.binary_cross_entropy_with_logits(logits.detach(), yes, reduction="sum")
        weights = None if self.weights is None else self.weights.to(logits.dtype)
        objective = F.binary_cross_entropy_with_logits(logits, yes, pos_weight=weights, reduction="sum")
        return HeadLoss(objective, nll, len(labels))

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        """Return [n]: log-probabilities of classes [n]; with several labels, of a positive decision."""
        if self.several:
            return F.logsigmoid(self._logits(hidden).gather(1, labels[:, None])[:, 0])
        return label_log_probs(hidden, self.weight, self.bias, labels)

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        return Decisions(self._logits(hidden)) if self.several else Logits(F.linear(hidden, self.weight, self.bias))

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, self.weight, self.bias)
        return logits.to(accumulation_dtype(logits))

    def plain(self) -> dict[str, Tensor]:
        if self.several:
            return {}
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}
