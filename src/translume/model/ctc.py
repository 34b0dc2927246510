"""Connectionist temporal classification: a second output at the encoder, for training (Graves et al. 2006)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Ctc(nn.Module):
    """A linear map from the memory to target tokens, without a decoder.

    BOS, which is no label, is the blank.
    """

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, vocabulary)

    def log_probs(self, memory: Tensor) -> Tensor:
        """Return the log-probabilities [B, S, V], fp32, of tokens and the blank at each position of a memory."""
        logits: Tensor = self.output(memory)
        return logits.float().log_softmax(-1)

    def loss(self, memory: Tensor, mask: Tensor, target: Tensor, target_mask: Tensor) -> Tensor:
        """Return the sum of −log p of all targets, in nats; 0 for one that has more tokens than its source positions.

        memory: [B, S, D] with mask [B, S].  target, target_mask: [B, T], the decoder's input, with BOS and without EOS.
        A row whose target_mask is False everywhere does not count.
        On a GPU torch's loss reads the lengths of sources and targets back.
        """
        # F.ctc_loss wants the id of the blank as an integer of the host, so the blank and id 0 are exchanged.
        blank, ids = target[0, 0], torch.arange(self.output.out_features, device=target.device)
        exchanged = torch.where(ids == blank, 0, torch.where(ids == 0, blank, ids))
        weight, bias = (each.index_select(0, exchanged) for each in (self.output.weight, self.output.bias))
        losses = F.ctc_loss(
            F.linear(memory, weight, bias).float().log_softmax(-1).transpose(0, 1),
            exchanged[target[:, 1:]],
            mask.sum(1),
            (target_mask.sum(1) - 1).clamp(min=0),
            reduction="none",
            zero_infinity=True,
        )
        return (losses * target_mask[:, 0]).sum()
