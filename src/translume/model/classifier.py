"""An encoder, one vector of what it says, and a head over classes."""

import torch
from torch import Tensor, nn

from translume.belief import NextToken
from translume.model.attention import SelfAttention
from translume.model.dropout import Dropout
from translume.model.encoder import Encoder
from translume.model.head import Head, HeadLoss, LossOptions
from translume.model.packed_attention import Form
from translume.model.penalties import penalised
from translume.model.pooling import Pooling
from translume.model.teacher import Lesson
from translume.model.transformer import PLAIN, Transformer


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
        """One vector [B, H] for each source [B, S] where mask [B, S] is True."""
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
        told = options.about(source, source_mask, target, target_mask)
        loss = self.head.loss(hidden, labels, None, told if self.head.takes_lessons else options)
        return penalised(self.head, loss, hidden, None, told)

    @torch.no_grad()
    def lesson(self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor) -> Lesson:
        """What the model believes about the class of each source [B, S] where source_mask is True."""
        hidden = self.pooled(source, source_mask)
        return Lesson(lambda rows: self.head.next_token(hidden[rows], None))


Network = Transformer | Classifier
"""What can be trained."""
