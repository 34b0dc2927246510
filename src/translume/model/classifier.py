"""A classifier: encoder, pooling over its states, and a head over classes."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.belief import NextToken
from translume.config import ClassifySettings
from translume.model import compiled
from translume.model.dropout import Dropout
from translume.model.feed_forward import routings, with_balance
from translume.model.head import Head, HeadLoss, LossOptions, TeacherTargets
from translume.model.layout import Layout
from translume.model.penalties import with_penalties
from translume.model.transformer import PLAIN, Encoder, Transformer

Way = Literal["mean", "max", "first", "attention", "ngrams"]


class Pooling(nn.Module):
    """Pools the states of a source into one vector, in fp32 (fp64 for fp64); zeros for a source without tokens.

    "attention": Σ_s a_s h_s with a = softmax(q·h_s / √D) over the source's tokens, with a learned q [D] (Yang et al.
    2016, without their hidden layer). q is initialised to zero, which gives the mean.
    size: of the vector: the number of filters for "ngrams", otherwise D.
    """

    def __init__(self, way: Way, width: int, ngrams: "NGrams | None" = None) -> None:
        """ngrams: required for way "ngrams", else None."""
        super().__init__()
        self.way, self.size = way, width if ngrams is None else ngrams.size
        self.query = nn.Parameter(torch.zeros(width)) if way == "attention" else None
        self.ngrams = ngrams

    @classmethod
    def from_settings(cls, settings: ClassifySettings, width: int) -> "Pooling":
        """Return a new pooling of states [B, S, width]."""
        ngrams = NGrams(width, settings.ngrams, settings.filters) if settings.pooling == "ngrams" else None
        return cls(settings.pooling, width, ngrams)

    def forward(self, memory: Tensor, mask: Tensor) -> Tensor:
        """Pool memory [B, S, D] where mask [B, S] is True; return [B, size] in the memory's dtype."""
        states = memory.to(torch.promote_types(memory.dtype, torch.float32))
        inside = mask[..., None]
        if self.ngrams is not None:
            pooled: Tensor = self.ngrams(states, mask)
        elif self.way == "first":
            pooled = states[:, 0] * inside[:, 0]
        elif self.way == "max":
            pooled = states.masked_fill(~inside, -math.inf).amax(1)
            pooled = torch.where(inside.any(1), pooled, 0.0)
        elif self.query is None:
            pooled = (states * inside).sum(1) / inside.sum(1).clamp(min=1)
        else:
            pooled = (_attended(states, mask, self.query)[..., None] * states * inside).sum(1)
        return pooled.to(memory.dtype)

    def weights(self, memory: Tensor, mask: Tensor) -> Tensor:
        """Return the weight [B, S] of each state in the pooled vector; rows sum to one (zero without tokens).

        "max": share of the D components whose maximum is in this state; ties go to the earliest. "ngrams": share of the
        responding filters whose best window contains the state, divided evenly among the window's states.
        """
        states = memory.to(torch.promote_types(memory.dtype, torch.float32))
        inside = mask.to(states.dtype)
        if self.ngrams is not None:
            return self.ngrams.shares(states, mask)
        if self.way == "first":
            return nn.functional.pad(inside[:, :1], (0, inside.size(1) - 1))
        if self.way == "max":
            best = states.masked_fill(~mask[..., None], -math.inf).argmax(1)  # [B, D]
            counts = torch.zeros_like(inside).scatter_add_(1, best, torch.ones_like(best, dtype=inside.dtype))
            return counts / best.size(1) * inside
        if self.query is None:
            return inside / inside.sum(1, keepdim=True).clamp(min=1)
        return _attended(states, mask, self.query)

    def extra_repr(self) -> str:
        return self.way


def _attended(states: Tensor, mask: Tensor, query: Tensor) -> Tensor:
    """Return [B, S]: softmax(q·h_s / √D) over the tokens of each source."""
    scores = states @ query.to(states.dtype) / math.sqrt(states.size(-1))
    # Not −inf, which would give NaN for sources without tokens. Masked entries are multiplied by 0 afterwards.
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask


class NGrams(nn.Module):
    """Convolution and max-pooling: the largest response of each filter over windows of states (Kim 2014, eq. 2 to 4).

    For each length w, F filters f [w·D] with biases b: max_s relu(f·[h_s; …; h_{s+w−1}] + b), over all windows that
    contain a token. Masked states and positions beyond the ends are zeros. size: F times the number of lengths.
    """

    def __init__(self, width: int, lengths: tuple[int, ...], filters: int) -> None:
        super().__init__()
        self.size = filters * len(lengths)
        self.filters = nn.ModuleList(nn.Conv1d(width, filters, length, padding=length - 1) for length in lengths)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the responses [B, size] to states [B, S, D] where mask [B, S] is True."""
        return torch.cat([each.amax(-1) for each in self._responses(states, mask)], 1).relu()

    def shares(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the weights [B, S] of `Pooling.weights`; zeros if no filter responds."""
        counts = torch.zeros_like(mask, dtype=states.dtype)
        for each in self._responses(states, mask):
            strength, place = each.max(-1)  # [B, F]
            length = each.size(-1) - mask.size(1) + 1
            window = place[..., None] + torch.arange(1 - length, 1, device=mask.device)  # [B, F, w]
            held = (window >= 0) & (window < mask.size(1)) & (strength > 0)[..., None]
            window = window.clamp(0, mask.size(1) - 1).flatten(1)
            held &= mask.gather(1, window).view_as(held)
            even = held / held.sum(-1, keepdim=True).clamp(min=1)
            counts.scatter_add_(1, window, even.flatten(1).to(counts.dtype))
        return counts / counts.sum(1, keepdim=True).clamp(min=1)

    def _responses(self, states: Tensor, mask: Tensor) -> Iterator[Tensor]:
        """Yield for each length w the responses [B, F, S + w − 1] to all windows; −inf for windows without a token.

        The first window begins w − 1 positions before the source, the last one at its last state.
        """
        columns, inside = (states * mask[..., None]).mT, mask.to(states.dtype)[:, None]
        for convolution in cast("list[nn.Conv1d]", list(self.filters)):
            (length,) = convolution.kernel_size
            around = F.pad(inside, (length - 1, length - 1))
            assert convolution.bias is not None
            weight, bias = convolution.weight.to(states.dtype), convolution.bias.to(states.dtype)
            responses = F.conv1d(columns, weight, bias, padding=length - 1)
            yield responses.masked_fill(F.max_pool1d(around, length, stride=1) == 0, -math.inf)


class Classifier(nn.Module):
    """P(class | source) = head(dropout(pooling(encoder(source))))."""

    def __init__(self, encoder: Encoder, pooling: Pooling, dropout: float, head: Head) -> None:
        super().__init__()
        self.encoder, self.pooling, self.head = encoder, pooling, head
        self.drop = Dropout(dropout)

    def partly_frozen(self) -> list[Tensor]:
        """Return parameters with rows that training and weight decay must not change; see `Embedding.frozen`."""
        return [] if self.encoder.embedding.frozen is None else [self.encoder.embedding.table.weight]

    def pooled(self, source: Tensor, mask: Tensor) -> Tensor:
        """Return one vector [B, H] for each source [B, S], or frames [B, L, F], where the mask is True."""
        source, mask = self.encoder.front(source, mask)
        pooled: Tensor = self.drop(self.pooling(self.encoder(source, mask), mask))
        return pooled

    def belief(self, source: Tensor, mask: Tensor) -> NextToken:
        """Return the distribution over classes of each source [B, S] where mask [B, S] is True."""
        return self.head.next_token(self.pooled(source, mask), None)

    def loss(
        self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor,
        options: LossOptions = PLAIN, *, tokens: int | None = None,
    ) -> HeadLoss:  # fmt: skip
        """Return the summed loss of labels: classes [B, 1], or [B, 1, C] of 0 and 1 where a text may have several.

        The arguments are those of `Transformer.loss`. Only texts count whose target_mask [B, 1] is True.
        """
        labels = labels[:, 0]
        if compiled.on_device(source) and self.has_fixed_shapes(options):
            counted = target_mask[:, 0]
            loss = replace(options, weights=counted).loss(self.head, self.pooled(source, source_mask), labels, None)
            return replace(loss, tokens=int(counted.sum()) if tokens is None else tokens)
        if tokens != len(labels):  # a batch may be filled up with rows that do not count
            rows = Layout.from_mask(target_mask, tokens).tokens
            if len(rows) < len(labels):
                source, source_mask, target, labels, target_mask = (
                    each[rows] for each in (source, source_mask, target, labels, target_mask)
                )
        if options.r_drop:
            source, source_mask, labels = (torch.cat([each, each]) for each in (source, source_mask, labels))
        with routings() as routed:
            hidden = self.pooled(source, source_mask)
        complete = options.with_teacher_targets(source, source_mask, target, target_mask)
        given = complete if self.head.blends_teacher_loss else options
        loss = given.loss(self.head, hidden, labels, None)
        return with_balance(with_penalties(self.head, loss, hidden, None, complete), routed)

    def has_fixed_shapes(self, options: LossOptions) -> bool:
        """See `Transformer.has_fixed_shapes`."""
        return self.head.weighs_rows and not options.has_penalties and not self.encoder.has_experts

    @torch.no_grad()
    def teacher_targets(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> TeacherTargets:
        """Return the distribution over classes of each source [B, S] where source_mask is True."""
        hidden = self.pooled(source, source_mask)
        return TeacherTargets(lambda rows: self.head.next_token(hidden[rows], None))


Network = Transformer | Classifier
"""A network that can be trained."""
