"""Connectionist temporal classification: a second output at the encoder, for training (Graves et al. 2006)."""

import torch.nn.functional as F
from torch import Tensor, nn

from translume.model.layout import Layout


class Ctc(nn.Module):
    """A linear map from the memory to target tokens, without a decoder.

    The begin mark, which is no label, is the blank.
    """

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, vocabulary)

    def log_probs(self, memory: Tensor) -> Tensor:
        """Return the log-probabilities [B, S, V], fp32, of tokens and the blank at each position of a memory."""
        logits: Tensor = self.output(memory)
        return logits.float().log_softmax(-1)

    def loss(self, memory: Tensor, layout: Layout, target: Tensor, target_mask: Tensor) -> Tensor:
        """Return the sum of −log p of all targets, in nats; 0 for one that has more tokens than its source positions.

        memory: [n, D] laid out by `layout`.  target, target_mask: [B, T], the decoder's input, with the begin mark and
        without the end mark.
        """
        found = self.log_probs(layout.unpack(memory))
        return F.ctc_loss(
            found.transpose(0, 1),
            target[:, 1:],
            layout.mask.sum(1),
            target_mask.sum(1) - 1,
            blank=int(target[0, 0]),
            reduction="none",
            zero_infinity=True,
        ).sum()
