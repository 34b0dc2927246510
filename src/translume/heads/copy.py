"""Pointer-generator head: a softmax mixed with attention over source tokens, so that unknown words can be copied."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.belief import Logits, NextToken
from translume.config import CopySettings
from translume.heads.chunked_cross_entropy import lse_and_label_logits
from translume.heads.linear import MeanToken, accumulation_dtype
from translume.heads.softmax import SoftmaxHead
from translume.model import Head, HeadData, HeadLoss, HeadSizes, LossOptions
from translume.model.compiled import on_device
from translume.model.state import Selectable

IMPOSSIBLE = -1e30
"""Log-probability of impossible events: finite, so that no gradient is NaN and a sum of two is finite."""
FIRST_GATE = 2.0
"""Initial logit of the gate: g = 0.88, so that the loss of an untrained model is 0.13 nats more than ln V."""
TILE = 32
"""Rows of a sentence that are multiplied together on a GPU."""


class CopyHead(Head):
    """p_y = g · softmax(W h + b)_y + (1 − g) · Σ_{i: x_i = y} a_i (See et al. 2017, equation 9), in log space.

    a = softmax over source positions of (A h)·m_i / √D, the head's own attention over the memory m (Luong et al. 2015,
    "general"); g = σ(w·[h; Σ_i a_i m_i] + c). The products of the memory with A and w are computed once for a source.
    Source tokens that are special or not in the target vocabulary have no a_i; if a source has only such tokens, g = 1.
    `copied` maps source to target tokens: by spelling after `learn`, before that by id if the vocabularies have the
    same size.
    Label smoothing is exact; z-loss is that of the softmax.
    """

    reads_source = True

    def __init__(self, settings: CopySettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        """tied: an embedding [V, D] to share; it is not copied."""
        super().__init__()
        self.vocabulary = sizes.vocabulary
        self.softmax = SoftmaxHead(settings, sizes, tied)
        self.query = nn.Linear(sizes.width, sizes.width, bias=False)
        nn.init.normal_(self.query.weight, std=sizes.width**-0.5)
        self.gate = nn.Linear(2 * sizes.width, 1)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, FIRST_GATE)
        self.copied: Tensor
        same = sizes.source_vocabulary == sizes.vocabulary
        none = torch.full((sizes.source_vocabulary,), -1)
        self.register_buffer("copied", torch.arange(sizes.vocabulary) if same else none)

    def learn(self, data: HeadData) -> None:
        ids = {piece: number for number, piece in enumerate(data.target_pieces) if number not in data.specials}
        self.copied.copy_(torch.tensor([ids.get(piece, -1) for piece in data.source_pieces]))

    def begin(self, source: Tensor, mask: Tensor, memory: Tensor) -> "Copyable":
        ids, first = self.copyable(source, mask)
        owners = torch.arange(len(ids), device=ids.device)
        keys, gate_terms = F.linear(memory, self.memory_weight()).tensor_split([memory.size(-1)], -1)
        return Copyable(ids, first, keys, gate_terms[..., 0], owners)

    def copyable(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B, S] each: the target token of every position, −1 for none, and the first position of that token."""
        ids = self.copied[source].masked_fill(~mask, -1)
        same = (ids[:, :, None] == ids[:, None]) & (ids >= 0)[:, None]
        return ids, same.byte().argmax(-1)

    def memory_weight(self) -> Tensor:
        """Return [D + 1, D], which maps the memory to keys of hidden states and to a term of the gate's logit."""
        query = self.query.weight
        return torch.cat([query.mT * len(query) ** -0.5, self.gate.weight[:, len(query) :]])

    def _copying(self, hidden: Tensor, context: "Copyable") -> "_Copying":
        """Return the copy distribution after hidden states [n, D]."""
        copyable = (context.ids >= 0).any(-1)[context.owners]
        kept = accumulation_dtype(hidden)
        scores = context.grid().product(hidden, context.keys).to(kept)
        ids = context.ids[context.owners]
        attention = scores.masked_fill(ids < 0, IMPOSSIBLE).log_softmax(-1)  # [n, S]
        own_gate = F.linear(hidden, self.gate.weight[:, : hidden.size(1)], self.gate.bias)[:, 0].to(kept)
        gate = own_gate + (attention.exp() * context.gate_terms[context.owners].to(kept)).sum(-1)
        own = F.logsigmoid(gate).masked_fill(~copyable, 0.0)
        copy_gate = F.logsigmoid(-gate).masked_fill(~copyable, IMPOSSIBLE)
        first = context.first[context.owners]
        chosen = (ids >= 0) & (first == torch.arange(ids.size(1), device=ids.device))
        summed = _sum_equal(attention, first).masked_fill(~chosen, IMPOSSIBLE)
        return _Copying(ids.masked_fill(~chosen, -1), copy_gate[:, None] + summed, own, attention)

    def _picked(self, hidden: Tensor, labels: Tensor, copying: "_Copying") -> tuple[Tensor, Tensor]:
        """Return log p [n] of labels [n], and the log normalisers [n] of the softmax."""
        lse, own = lse_and_label_logits(hidden, self.softmax.weight, self.softmax.bias, labels)
        copies = copying.log_probs_of(labels[:, None])[:, 0]
        return torch.logaddexp(copying.gate + own - lse, copies), lse

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        assert isinstance(context, Copyable)
        copying = self._copying(hidden, context)
        log_probs, lse = self._picked(hidden, labels, copying)
        nll = objective = -log_probs.sum()
        if options.label_smoothing:
            means = self._means(hidden, context, copying, lse, options.smoothed)
            objective = (1.0 - options.label_smoothing) * objective - options.label_smoothing * means.sum()
        if options.z_loss:
            objective = objective + options.z_loss * lse.square().sum()
        return HeadLoss(objective, nll.detach(), labels.numel())

    def _means(
        self, hidden: Tensor, context: "Copyable", copying: "_Copying", lse: Tensor, smoothed: Tensor | None
    ) -> Tensor:
        """Return the means [n] of log p over the tokens that `smoothed` [V] weights.

        For tokens not in the source, log p_v = log g + l_v − lse, whose mean follows from the mean row of W.
        """
        weight, bias, kept = self.softmax.weight, self.softmax.bias, lse.dtype
        ids = context.ids.clamp(min=0)
        mean = MeanToken(weight, bias, smoothed)
        share = lse.new_full(ids.shape, 1.0 / len(weight)) if mean.share is None else mean.share[ids]
        logits = context.grid().product(hidden, weight[ids]).to(kept)
        if bias is not None:
            logits = logits + bias[ids][context.owners].to(kept)
        base = copying.gate - lse
        gain = F.softplus(copying.log_probs - base[:, None] - logits)
        return base + mean.logit(hidden) + (gain * share[context.owners]).sum(-1)

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        assert isinstance(context, Copyable)
        return self._picked(hidden, labels, self._copying(hidden, context))[0]

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        assert isinstance(context, Copyable)
        logits = F.linear(hidden, self.softmax.weight, self.softmax.bias)
        return Logits(self._copying(hidden, context).add_to(logits.to(accumulation_dtype(hidden))))

    def terms(self, hidden: Tensor, context: Selectable | None) -> Mapping[str, Tensor]:
        """Return "gate" [N, 1], the probability of generating, and "copy_attention" [N, S], the copy distribution."""
        assert isinstance(context, Copyable)
        copying = self._copying(hidden, context)
        none = (copying.ids < 0).all(-1, keepdim=True)
        return {"gate": copying.gate.exp()[:, None], "copy_attention": copying.attention.exp().masked_fill(none, 0.0)}


@dataclass(frozen=True, slots=True)
class Copyable:
    """The tokens that can be copied from B sources, and the sentence `owners` [N] of each row.

    ids: [B, S], the target token at each position, −1 for none.  first: [B, S], the first position of the same token.
    keys: [B, S, D], whose products with a hidden state are the logits of the attention.
    gate_terms: [B, S], what attention to a position adds to the gate's logit.
    """

    ids: Tensor
    first: Tensor
    keys: Tensor
    gate_terms: Tensor
    owners: Tensor

    def select(self, rows: Tensor) -> "Copyable":
        return replace(self, owners=self.owners[rows])

    def grid(self) -> "_Grid":
        """Return the layout of the rows grouped by sentence.

        On a CPU each sentence has one tile. On other devices tiles have TILE rows, and as many are taken as any owners
        can need: N/TILE, and one that is not full for each sentence.
        """
        sentences, order = len(self.ids), self.owners.argsort(stable=True)
        owners = self.owners[order]
        bounds = torch.searchsorted(owners, torch.arange(sentences + 1, device=owners.device))
        counts = bounds.diff()
        column = torch.arange(len(owners), device=owners.device) - bounds[owners]
        if on_device(owners):
            length, tiles = TILE, len(owners) // TILE + sentences
            ends = ((counts + TILE - 1) // TILE).cumsum(0)
            first = F.pad(ends, (1, 0))[owners]
            whose = torch.searchsorted(ends, torch.arange(tiles, device=ends.device), right=True)
            whose = whose.clamp_(max=sentences - 1)  # of tiles that are not needed
        else:
            length, tiles = int(counts.max()) if sentences else 0, sentences
            first, whose = owners, None
        places = torch.empty_like(order).index_put_((order,), first * length + column)
        return _Grid(places, whose, tiles, length)


@dataclass(frozen=True, slots=True)
class _Grid:
    """N rows in a grid of `tiles` by `length`, the rows of a tile being of one sentence; places: [N], flat indices.

    whose: [tiles], the sentence of each tile; None: tile i is of sentence i.
    """

    places: Tensor
    whose: Tensor | None
    tiles: int
    length: int

    def product(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Multiply each row [N, D] by the transpose of its sentence's matrix [B, S, D]; return [N, S]."""
        grid = rows.new_zeros(self.tiles * self.length, rows.size(1)).index_copy(0, self.places, rows)
        if self.whose is not None:
            matrices = matrices[self.whose]
        product = grid.view(self.tiles, self.length, rows.size(1)) @ matrices.mT
        return product.flatten(0, 1).index_select(0, self.places)


def _sum_equal(logs: Tensor, group: Tensor) -> Tensor:
    """Return [n, S]: at each index the logsumexp of logs [n, S] over the positions whose `group` [n, S] it is.

    Zero for an index without positions.
    """
    with torch.no_grad():
        peak = logs.new_full(logs.shape, -torch.inf).scatter_reduce(1, group, logs, "amax")
        met = ~peak.isneginf()
        peak = peak.masked_fill(~met, 0.0)
    total = torch.zeros_like(logs).scatter_add(1, group, (logs - peak.gather(1, group)).exp())
    return total.masked_fill(~met, 1.0).log() + peak


@dataclass(frozen=True, slots=True)
class _Copying:
    """The copy distribution of n rows.

    ids: [n, S], distinct target tokens, −1 for none.  log_probs: [n, S], log((1−g) Σ a); IMPOSSIBLE or less for none.
    gate: [n], log g.  attention: [n, S], log a of every source position.
    """

    ids: Tensor
    log_probs: Tensor
    gate: Tensor
    attention: Tensor

    def log_probs_of(self, tokens: Tensor) -> Tensor:
        """Return log((1−g) Σ a) [n, m] of tokens [n, m]."""
        same = tokens[:, :, None] == self.ids[:, None]
        log_probs = torch.where(same, self.log_probs[:, None], 0.0).sum(-1)
        return log_probs.masked_fill(~same.any(-1), IMPOSSIBLE)

    def add_to(self, logits: Tensor) -> Tensor:
        """Return logits [n, V] of the mixture, given those of the softmax.

        Where a token can be copied, e^l becomes e^l + S (1−g)/g Σ a, S the sum of e^l. The new sum is S/g.
        """
        if on_device(logits):
            return self._added_everywhere(logits)
        rows, places = (self.ids >= 0).nonzero(as_tuple=True)
        index = rows, self.ids[rows, places]
        copies = self.log_probs[rows, places] + (logits.logsumexp(-1) - self.gate)[rows]
        return logits.index_put(index, torch.logaddexp(logits[index], copies))

    def _added_everywhere(self, logits: Tensor) -> Tensor:
        """As `add_to`, at positions without a token too: there in a column that is dropped."""
        size = logits.size(1)
        copies = self.log_probs + (logits.logsumexp(-1) - self.gate)[:, None]
        mixed = torch.logaddexp(logits.gather(1, self.ids.clamp(min=0)), copies)
        return F.pad(logits, (0, 1)).scatter(1, self.ids.where(self.ids >= 0, size), mixed)[:, :size]
