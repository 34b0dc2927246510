"""An objective: −(1 − p) log p, which counts less what the model already knows (Lin et al. 2017, γ = 1)."""

from typing import Any

from torch import Tensor

from translume.config import TrainingSettings
from translume.model import Head, HeadLoss, LossOptions
from translume.model.head import Objective
from translume.parts import part


@part("objective", "my_part", interface=1)
def my_part(settings: TrainingSettings) -> Objective:
    """Return the loss of a batch: sums over its labels [n], given hidden states [n, D]."""

    def loss(head: Head, hidden: Tensor, labels: Tensor, context: Any, options: LossOptions) -> HeadLoss:
        log_prob = head.next_token(hidden, context).log_prob_of(labels[:, None])[:, 0]
        nll = -log_prob.sum()
        return HeadLoss(-((1 - log_prob.exp()) * log_prob).sum(), nll.detach(), labels.numel())

    return loss
