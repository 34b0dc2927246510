"""Hierarchical softmax with two levels: first a class, then a token in it (Goodman 2001)."""

import math
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.belief import NextToken
from translume.config import HierarchicalSettings
from translume.heads import chunked_cross_entropy
from translume.heads.chunked_cross_entropy import label_log_probs, softmax_loss
from translume.heads.linear import accumulation_dtype, output_bias, output_weight
from translume.heads.next_tokens import Groups, Opened, TwoLevel, first_level_options, group_options, normalised
from translume.heads.token_statistics import by_frequency, by_neighbours, target_counts
from translume.model import Head, HeadData, HeadLoss, HeadSizes, LossOptions
from translume.model.state import Selectable


class HierarchicalHead(Head):
    """p(w|h) = softmax(A h + a)_c · softmax over class c of (W h + b)_w (Goodman 2001).

    All classes but the last have the same number of tokens, so that with √V classes a row costs 2·√V·D instead of V·D.
    W may be the target embedding.
    Label smoothing: between classes, each class gets the share of its tokens in ε; in the label's class ε is spread
    over its tokens; other classes get none. z-loss is summed over both softmaxes of a row.
    """

    exact_smoothing = False

    def __init__(self, settings: HierarchicalSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        """tied: an embedding [V, D] to share; it is not copied."""
        super().__init__()
        self.vocabulary = sizes.vocabulary
        classes = settings.classes or math.isqrt(sizes.vocabulary - 1) + 1
        self._class_size = -(-sizes.vocabulary // classes)  # tokens per class
        classes = -(-sizes.vocabulary // self._class_size)
        self._grouping = settings.grouping
        self.weight = output_weight(sizes.vocabulary, sizes.width, tied)
        self.classes = output_weight(classes, sizes.width)
        self.bias = output_bias(sizes.vocabulary, enabled=settings.bias)
        self.class_bias = output_bias(classes, enabled=settings.bias)
        self.order: Tensor  # ids class by class, ascending in each
        self.rank: Tensor  # the index of each id in `order`
        for name in ("order", "rank"):
            self.register_buffer(name, torch.arange(sizes.vocabulary))

    @torch.no_grad()
    def learn(self, data: HeadData) -> None:
        if self._grouping == "frequency":
            ids = by_frequency(target_counts(data, self.vocabulary))
        else:
            ids = by_neighbours(data, self.vocabulary, self._class_size)
        parts = torch.split(torch.from_numpy(ids), self._class_size)
        self.order.copy_(torch.cat([part.sort().values for part in parts]))
        self.rank[self.order] = torch.arange(self.vocabulary, device=self.rank.device)

    def _groups(self) -> Groups:
        starts = torch.arange(0, self.vocabulary, self._class_size, device=self.order.device)
        return Groups(self.order, self.rank, starts, 0)

    def _sorted(
        self, hidden: Tensor, classes: Tensor, within: Tensor
    ) -> tuple[Tensor, Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor | None]]]:
        """Return row indices by class, and (class, hidden states, labels, weight, bias) of each class with labels.

        The numbers of labels are read back from a device together.
        """
        sorted_classes, by_class = classes.sort(stable=True)
        bounds = torch.searchsorted(sorted_classes, torch.arange(len(self.classes) + 1, device=classes.device))
        counts = bounds.diff().tolist()
        rows = torch.split(hidden.index_select(0, by_class), counts)
        labels = torch.split(within[by_class], counts)
        weights = torch.split(self.weight.index_select(0, self.order), self._class_size)
        biases = None if self.bias is None else torch.split(self.bias.index_select(0, self.order), self._class_size)
        present = (each for each, count in enumerate(counts) if count)
        parts = ((c, rows[c], labels[c], weights[c], None if biases is None else biases[c]) for c in present)
        return by_class, parts

    def _labels(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes of labels [n], and their indices in the class."""
        places = self.rank[labels]
        return places // self._class_size, places % self._class_size

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        classes, within = self._labels(labels)
        between = first_level_options(options, self._groups())
        losses = [softmax_loss(hidden, self.classes, self.class_bias, classes, between)]
        members = torch.split(self.order, self._class_size)
        for each, rows, inside, weight, bias in self._sorted(hidden, classes, within)[1]:
            losses.append(softmax_loss(rows, weight, bias, inside, group_options(options, members[each])))
        objective = torch.stack([loss.objective for loss in losses]).sum()
        return HeadLoss(objective, torch.stack([loss.nll for loss in losses]).sum(), labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        classes, within = self._labels(labels)
        score = label_log_probs(hidden, self.classes, self.class_bias, classes)
        by_class, parts = self._sorted(hidden, classes, within)
        scores = [label_log_probs(rows, weight, bias, inside) for _, rows, inside, weight, bias in parts]
        return score.index_add(0, by_class, torch.cat(scores)) if scores else score

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        first = F.linear(hidden, self.classes, self.class_bias)
        return _Belief(first, self._groups(), hidden, (self.weight, self.bias), self._class_size)

    def terms(self, hidden: Tensor, context: Selectable | None) -> Mapping[str, Tensor]:
        """Return "classes" [N, classes]: the probability of each class."""
        first = F.linear(hidden, self.classes, self.class_bias)
        return {"classes": first.to(accumulation_dtype(first)).softmax(-1)}


class _Belief(TwoLevel):
    """The distribution; a class is computed once for all rows that need it."""

    def __init__(
        self, first: Tensor, groups: Groups, hidden: Tensor, parts: tuple[Tensor, Tensor | None], class_size: int
    ) -> None:
        """parts: weight and bias.  class_size: tokens of a class."""
        super().__init__(first, groups)
        self._hidden, self._class_size = hidden, class_size
        self._weight, self._bias = parts

    def _open(self, rows: Tensor, groups: Tensor) -> Iterator[Opened]:
        count = max(1, chunked_cross_entropy.CHUNK_ELEMENTS // self._class_size)
        members = torch.arange(self._class_size, device=rows.device)
        for which in torch.split(groups.argsort(stable=True), count):
            classes, counts = torch.unique_consecutive(groups[which], return_counts=True)
            hidden = torch.split(self._hidden[rows[which]], counts.tolist())
            logits = [self._logits(each, part) for each, part in zip(classes.tolist(), hidden, strict=True)]
            places = groups[which, None] * self._class_size + members
            yield Opened(which, normalised(torch.cat(logits), rows[which]), places.clamp_(max=self.size - 1))

    def _logits(self, each: int, hidden: Tensor) -> Tensor:
        """Return the logits [n, m] of a class after hidden states [n, D], −inf beyond the tokens of the last class."""
        ids = self._groups.order[each * self._class_size : (each + 1) * self._class_size]
        logits = F.linear(hidden, self._weight[ids], None if self._bias is None else self._bias[ids])
        return F.pad(logits, (0, self._class_size - len(ids)), value=-math.inf)

    def _inside(self) -> Tensor:
        logits = F.linear(self._hidden, self._weight, self._bias)[:, self._groups.order]
        missing = len(self._groups.starts) * self._class_size - self.size
        padded = F.pad(logits, (0, missing), value=-math.inf).view(-1, self._class_size)
        rows = torch.arange(self.rows, device=logits.device).repeat_interleave(len(self._groups.starts))
        return normalised(padded, rows).view(self.rows, -1)[:, : self.size]
