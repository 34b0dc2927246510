"""Adaptive softmax: tokens in bands by frequency, rare bands at low cost (Grave et al. 2017)."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.belief import NextToken
from translume.config import AdaptiveSettings
from translume.heads.chunked_cross_entropy import label_log_probs, softmax_loss
from translume.heads.linear import accumulation_dtype, output_weight
from translume.heads.next_tokens import Groups, Opened, TwoLevel, first_level_options, group_options, normalised
from translume.heads.token_statistics import by_frequency, target_counts
from translume.model import Head, HeadData, HeadLoss, HeadSizes, LossOptions
from translume.model.embedding import BandedTable
from translume.model.state import Selectable


class AdaptiveHead(Head):
    """A softmax over the frequent tokens and the tails, and one inside each tail (Grave et al. 2017).

    p(w) = p(w|h) for a token of band 0 and p(tail|h) · softmax(E P h)_w for one of a tail, where P [d, D] reduces
    the hidden state. Matrices and projections may be shared with a banded embedding (Baevski and Auli 2019).
    A row costs the first level, and one tail if its label is in one.
    Label smoothing: in the first level ε is spread over tokens, and each tail gets the share of its tokens; in the tail
    of the label ε is spread over its tokens; other tails get none. z-loss is summed over the softmaxes of a row.
    """

    exact_smoothing = False

    def __init__(self, settings: AdaptiveSettings, sizes: HeadSizes, tied: BandedTable | None) -> None:
        """tied: a banded embedding to share; it is not copied."""
        super().__init__()
        self.vocabulary = sizes.vocabulary
        self.table = tied or BandedTable(sizes.vocabulary, sizes.width, settings.cutoffs, settings.factor)
        ends = self.table.ends
        self.tails = output_weight(len(ends) - 1, sizes.width)
        # The initial probability of a tail is that of its tokens together, so that all tokens are about equally likely.
        tokens = torch.tensor([float(end - begin) for begin, end in pairwise(ends)])
        self.tail_bias = nn.Parameter(tokens.log())
        self.starts: Tensor  # the index in `table.order` at which each tail begins
        self.register_buffer("starts", torch.tensor(ends[:-1], dtype=torch.long), persistent=False)

    def learn(self, data: HeadData) -> None:
        self.table.arrange(torch.from_numpy(by_frequency(target_counts(data, self.vocabulary))))

    def _groups(self) -> Groups:
        return Groups(self.table.order, self.table.rank, self.starts, self.table.ends[0])

    def _first_level(self) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the first level: band 0, then the tails."""
        frequent = self.table.matrices[0]
        bias = torch.cat([self.tail_bias.new_zeros(len(frequent)), self.tail_bias])
        return torch.cat([frequent, self.tails]), bias

    def _labels(self, labels: Tensor) -> tuple[Tensor, list[tuple[int, Tensor, Tensor]]]:
        """Return the first-level labels [n], and (band, rows, labels inside) of each tail that has labels.

        The numbers of labels are read back from a device together.
        """
        places = self.table.rank[labels]
        bands = self.table.bands_of(places)
        sorted_bands, by_band = bands.sort(stable=True)
        firsts = torch.searchsorted(sorted_bands, torch.arange(1, len(self.table.ends) + 1, device=bands.device))
        parts = []
        for band, (first, last) in enumerate(pairwise(firsts.tolist()), 1):
            if first < last:
                rows = by_band[first:last]
                parts.append((band, rows, places[rows] - self.table.ends[band - 1]))
        return torch.where(bands > 0, self.table.ends[0] - 1 + bands, places), parts

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        first, parts = self._labels(labels)
        loss = softmax_loss(hidden, *self._first_level(), first, first_level_options(options, self._groups()))
        objective, nll = loss.objective, loss.nll
        for band, rows, inside in parts:
            begin, end = self.table.ends[band - 1 : band + 1]
            narrow = self.table.narrowed(hidden.index_select(0, rows), band)
            own = group_options(options, self.table.order[begin:end])
            loss = softmax_loss(narrow, self.table.matrices[band], None, inside, own)
            objective, nll = objective + loss.objective, nll + loss.nll
        return HeadLoss(objective, nll, labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        first, parts = self._labels(labels)
        score = label_log_probs(hidden, *self._first_level(), first)
        for band, rows, inside in parts:
            narrow = self.table.narrowed(hidden.index_select(0, rows), band)
            score = score.index_add(0, rows, label_log_probs(narrow, self.table.matrices[band], None, inside))
        return score

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        frequent = F.linear(hidden, self.table.matrices[0])
        first = torch.cat([frequent, F.linear(hidden, self.tails, self.tail_bias)], 1)  # copies logits, not vectors
        return _Belief(first, self._groups(), hidden, self.table)

    def terms(self, hidden: Tensor, context: Selectable | None) -> Mapping[str, Tensor]:
        """Return "bands" [N, bands]: the probability of each band, frequent tokens first."""
        first = F.linear(hidden, *self._first_level()).to(accumulation_dtype(hidden)).softmax(-1)
        frequent = first.size(1) - len(self.tails)
        return {"bands": torch.cat([first[:, :frequent].sum(-1, keepdim=True), first[:, frequent:]], 1)}


class _Belief(TwoLevel):
    """The distribution; a tail is computed only for rows that need it."""

    def __init__(self, first: Tensor, groups: Groups, hidden: Tensor, table: BandedTable) -> None:
        super().__init__(first, groups)
        self._hidden, self._table = hidden, table

    def _tail(self, band: int, rows: Tensor) -> Tensor:
        narrow = self._table.narrowed(self._hidden[rows], band)
        return normalised(F.linear(narrow, self._table.matrices[band]), rows)

    def _open(self, rows: Tensor, groups: Tensor) -> Iterator[Opened]:
        for group, (begin, end) in enumerate(pairwise(self._table.ends)):
            which = (groups == group).nonzero()[:, 0]
            if len(which):
                values = self._tail(group + 1, rows[which])
                yield Opened(which, values, torch.arange(begin, end, device=rows.device).expand(values.shape))

    def _inside(self) -> Tensor:
        rows = torch.arange(self.rows, device=self._hidden.device)
        tails = [self._tail(band, rows) for band in range(1, len(self._table.ends))]
        return torch.cat(tails, 1) if tails else self._hidden.new_empty(self.rows, 0)
