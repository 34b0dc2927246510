"""Encoder, decoder and head put together."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from translume.belief import NextToken
from translume.model.attention import CrossAttention, SelfAttention
from translume.model.decoder import Decoder
from translume.model.encoder import Encoder
from translume.model.head import Head, HeadLoss, LossOptions
from translume.model.layout import Layout
from translume.model.packed_attention import Form
from translume.model.penalties import penalised
from translume.model.state import DecoderState, Selectable
from translume.model.teacher import Lesson

PLAIN = LossOptions()
"""The nll and nothing else."""


class Transformer(nn.Module):
    """The encoder-decoder Transformer (Vaswani et al. 2017)."""

    def __init__(self, encoder: Encoder, decoder: Decoder, head: Head) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = encoder, decoder, head

    def partly_frozen(self) -> list[Tensor]:
        """Parameters with rows that training must leave alone, by weight decay too; see `Embedding.frozen`."""
        embeddings = (self.encoder.embedding, self.decoder.embedding)
        return [embedding.table.weight for embedding in embeddings if embedding.frozen is not None]

    def use_attention(self, form: Form) -> None:
        """Compute attention of whole sequences in this form from now on; the numbers agree but for rounding."""
        for module in self.modules():
            if isinstance(module, SelfAttention | CrossAttention):
                module.form = form

    def start(self, source: Tensor, mask: Tensor) -> DecoderState:
        """Encode source ids [B, S] where mask [B, S] is True; the state before the first target token."""
        memory = self.encoder(source, mask)
        return self.decoder.start(memory, mask, self.head.begin(source, mask, memory))

    def start_attentive(self, source: Tensor, mask: Tensor) -> DecoderState:
        """As `start`; this state and all that follow it hold `DecoderState.attention`."""
        return replace(self.start(source, mask), attention=(~mask).float())

    def step(self, prefix: Tensor, state: DecoderState) -> tuple[NextToken, DecoderState]:
        """The belief about the token after prefix [N, t]; reads only what the state has not read yet."""
        hidden, state = self.decoder(prefix[:, state.position :], state)
        return self.head.next_token(hidden[:, -1], state.context), state

    def steps(self, prefix: Tensor, state: DecoderState, count: int) -> tuple[Iterator[NextToken], DecoderState]:
        """The beliefs after each of the last `count` tokens of prefix [N, t], which the state has not read yet."""
        hidden, state = self.decoder(prefix[:, state.position :], state)
        return self.head.next_tokens(hidden[:, -count:], state.context), state

    def loss(
        self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor,
        options: LossOptions = PLAIN,
    ) -> HeadLoss:  # fmt: skip
        """The summed loss of labels [B, T] when the decoder is fed target [B, T], where target_mask is True."""
        if options.r_drop:
            source, source_mask, target, labels, target_mask = (
                torch.cat([each, each]) for each in (source, source_mask, target, labels, target_mask)
            )
        hidden, layout, context = self._teach(source, source_mask, target, target_mask)
        told = options.about(source, source_mask, target, target_mask)
        loss = self.head.loss(hidden, layout.pack(labels), context, told if self.head.takes_lessons else options)
        return penalised(self.head, loss, hidden, context, told)

    @torch.no_grad()
    def lesson(self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor) -> Lesson:
        """What the model believes about the labels of target [B, T] where target_mask is True, row by row."""
        hidden, _, context = self._teach(source, source_mask, target, target_mask)

        def believe(rows: Tensor) -> NextToken:
            return self.head.next_token(hidden[rows], None if context is None else context.select(rows))

        return Lesson(believe)

    @torch.no_grad()
    def score(self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor) -> Tensor:
        """[B, T], fp32: the log-probabilities of labels [B, T], zero where target_mask is False."""
        hidden, layout, context = self._teach(source, source_mask, target, target_mask)
        return layout.unpack(self.head.score(hidden, layout.pack(labels), context))

    @torch.no_grad()
    def beliefs(
        self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor,
        rows: int,
    ) -> Iterator[tuple[NextToken, Tensor]]:  # fmt: skip
        """What the model believes about each of labels [B, T] where target_mask is True, and these labels [m].

        At most `rows` at a time, so that n×V is never held; sentence after sentence.
        """
        hidden, layout, context = self._teach(source, source_mask, target, target_mask)
        wanted = layout.pack(labels)
        for start in range(0, len(wanted), rows):
            chosen = torch.arange(start, min(start + rows, len(wanted)), device=wanted.device)
            part = None if context is None else context.select(chosen)
            yield self.head.next_token(hidden[chosen], part), wanted[chosen]

    def _teach(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> tuple[Tensor, Layout, Selectable | None]:
        """Hidden states [n, D] of all target tokens, where they stand, and the head's context of their sentences."""
        source_layout, layout = Layout.of(source_mask), Layout.of(target_mask)
        memory = self.encoder.packed(source, source_layout)
        hidden = self.decoder.packed(target, layout, memory, source_layout)
        context = self.head.begin(source, source_mask, source_layout.unpack(memory)) if self.head.reads_source else None
        if context is not None:
            context = context.select(layout.tokens // target.size(1))
        return hidden, layout, context
