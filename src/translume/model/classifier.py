"""An encoder, one vector of what it says, and a head over classes."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from translume.belief import NextToken
from translume.model.attention import SelfAttention
from translume.model.dropout import Dropout
from translume.model.encoder import Encoder
from translume.model.head import Head, HeadLoss, LossOptions
from translume.model.packed_attention import Form
from translume.model.penalties import penalised
from translume.model.transformer import PLAIN, Transformer

Way = Literal["mean", "max", "first", "attention"]


class Pooling(nn.Module):
    """States of a source to one vector, in fp32 (fp64 for fp64); of a source without any token to zeros.

    "attention": Σ_s a_s h_s with a = softmax(q·h_s / √D) over the source's tokens, with a learnt q [D] (as Yang et al.
    2016 do over words, without their hidden layer). q begins at zero: as the mean.
    """

    def __init__(self, way: Way, width: int) -> None:
        super().__init__()
        self.way = way
        self.query = nn.Parameter(torch.zeros(width)) if way == "attention" else None

    def forward(self, memory: Tensor, mask: Tensor) -> Tensor:
        """Memory [B, S, D] where mask [B, S] is True to [B, D], of the memory's dtype."""
        states = memory.to(torch.promote_types(memory.dtype, torch.float32))
        inside = mask[..., None]
        if self.way == "first":
            pooled = states[:, 0] * inside[:, 0]
        elif self.way == "max":
            pooled = states.masked_fill(~inside, -math.inf).amax(1)
            pooled = torch.where(inside.any(1), pooled, 0.0)
        elif self.query is None:
            pooled = (states * inside).sum(1) / inside.sum(1).clamp(min=1)
        else:
            scores = states @ self.query.to(states.dtype) / math.sqrt(states.size(-1))
            # Not −inf, which would leave NaN where no token stands; what is masked is multiplied away.
            weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask
            pooled = (weights[..., None] * states * inside).sum(1)
        return pooled.to(memory.dtype)

    def extra_repr(self) -> str:
        return self.way


class Classifier(nn.Module):
    """P(class | source) = head(dropout(pooling(encoder(source))))."""

    def __init__(self, encoder: Encoder, pooling: Pooling, dropout: float, head: Head) -> None:
        super().__init__()
        self.encoder, self.pooling, self.head = encoder, pooling, head
        self.drop = Dropout(dropout)

    def partly_frozen(self) -> list[Tensor]:
        """Parameters with rows that training must leave alone, by weight decay too; see `Embedding.frozen`."""
        return [] if self.encoder.embedding.frozen is None else [self.encoder.embedding.table.weight]

    def use_attention(self, form: Form) -> None:
        """Compute attention in this form from now on; the numbers agree but for rounding."""
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.form = form

    def pooled(self, source: Tensor, mask: Tensor) -> Tensor:
        """One vector [B, D] for each source [B, S] where mask [B, S] is True."""
        pooled: Tensor = self.drop(self.pooling(self.encoder(source, mask), mask))
        return pooled

    def belief(self, source: Tensor, mask: Tensor) -> NextToken:
        """What the model believes about the class of each source [B, S] where mask [B, S] is True."""
        return self.head.next_token(self.pooled(source, mask), None)

    def loss(
        self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor,
        options: LossOptions = PLAIN,
    ) -> HeadLoss:  # fmt: skip
        """The summed loss of labels: classes [B, 1], or [B, 1, C] of 0 and 1 where a text may have several.

        It takes the tensors that a Transformer does, and leaves target and its mask alone.
        """
        labels = labels[:, 0]
        if options.r_drop:
            source, source_mask, labels = (torch.cat([each, each]) for each in (source, source_mask, labels))
        hidden = self.pooled(source, source_mask)
        loss = self.head.loss(hidden, labels, None, options)
        return penalised(self.head, loss, hidden, None, options)


Network = Transformer | Classifier
"""What can be trained."""
