"""A softmax that at decoding is restricted to candidate tokens for each source."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from translume.belief import Bias, Logits, NextToken, TopK, exact_topk, replace_impossible
from translume.config import ShortlistSettings
from translume.heads import chunked_cross_entropy
from translume.heads.candidates import Selector, translation_table
from translume.heads.softmax import SoftmaxHead
from translume.heads.token_statistics import by_frequency, target_counts
from translume.model import Head, HeadData, HeadLoss, HeadSizes, LossOptions
from translume.model.state import Selectable

MAX_ROW_SHARE, SENTENCES = 1.0, 16
"""Gather rows of W if at most this share of them is needed, for at most this many sentences; otherwise use all of W."""
SELECTOR_SHARE = 0.1
"""Weight of a learned selector's loss: small compared with the rest of the gradient when that is clipped."""


class ShortlistHead(Head):
    """softmax(W h + b) over the candidates of a sentence: frequent tokens, and those that a selector chooses.

    The selector is a table of likely translations of the sentence's tokens, or a learned `Selector` that reads the
    encoder states. In training mode the loss of a learned selector is added; it has no gradient in the encoder.
    The rest of the loss is that of the full softmax, as are distribution and score in training mode and before `learn`.
    In evaluation mode with a context, distribution and score are −inf except for candidates, and the nll is not
    defined, since a label may not be a candidate.
    A sentence's candidates do not depend on its batch (Marian and CTranslate2 use the union over the batch). Their rows
    of W are gathered once, before the first token.
    """

    full_support = False
    exact_loss = False
    reads_source = True

    def __init__(self, settings: ShortlistSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        """tied: an embedding [V, D] to share; it is not copied."""
        super().__init__()
        self.vocabulary = sizes.vocabulary
        self.softmax = SoftmaxHead(settings, sizes, tied)
        self.always: Tensor
        self.translations: Tensor | None
        always = torch.full((settings.frequent + 1,), -1, dtype=torch.int32)  # EOS first; −1 for unused
        self.register_buffer("always", always)
        learned = settings.selector == "learned"
        table = torch.full((sizes.source_vocabulary, settings.candidates), -1, dtype=torch.int32)
        self.register_buffer("translations", None if learned else table)
        self.selector = Selector(sizes.width, sizes.vocabulary, settings.rank) if learned else None
        self.threshold = settings.threshold

    def learn(self, data: HeadData) -> None:
        counts = target_counts(data, self.vocabulary)
        frequent = [each for each in by_frequency(counts).tolist() if counts[each] and each not in data.specials]
        always = [data.end, *frequent[: self.always.numel() - 1]]
        self.always.fill_(-1)
        self.always[: len(always)] = torch.tensor(always, dtype=torch.int32)
        if self.selector is not None:
            self.selector.learn(counts, data.end)
        if self.translations is not None:
            self.translations.copy_(torch.from_numpy(translation_table(data, self.translations.size(1))))

    def begin(self, source: Tensor, mask: Tensor, memory: Tensor) -> "Shortlists | Sources | None":
        owners = torch.arange(source.size(0), device=source.device)
        if self.training:
            return None if self.selector is None else Sources(memory.detach(), mask, owners)
        if int(self.always[0]) < 0:
            return None
        return Shortlists(_Lists(self._listed(source, mask, memory)), owners)

    def _listed(self, source: Tensor, mask: Tensor, memory: Tensor) -> Tensor:
        """Return [B, V]: True where a token is a candidate."""
        if self.selector is not None:
            listed = self.selector.listed(memory, mask, self.softmax.weight, self.threshold)
            return listed.index_fill_(1, self.always[self.always >= 0].long(), True)
        assert self.translations is not None
        candidates = self.translations[source].masked_fill(~mask[..., None], -1).flatten(1).long()
        candidates = torch.cat([candidates, self.always.long().expand(candidates.size(0), -1)], 1)
        listed = torch.zeros(candidates.size(0), 1 + self.vocabulary, dtype=torch.bool, device=candidates.device)
        return listed.scatter_(1, candidates + 1, True)[:, 1:]

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        loss = self.softmax.loss(hidden, labels, None, options)
        if isinstance(context, Sources):
            assert self.selector is not None
            bags = self.selector.loss(context.memory, context.mask, self.softmax.weight, context.owners, labels)
            return replace(loss, objective=loss.objective + SELECTOR_SHARE * bags)
        return loss if context is None else replace(loss, nll=None)

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        if context is None or isinstance(context, Sources):
            return self.softmax.score(hidden, labels, None)
        rows = chunked_cross_entropy.chunk_rows(self.vocabulary)
        parts = []
        for start in range(0, max(1, len(hidden)), rows):
            place = torch.arange(start, min(start + rows, len(hidden)), device=hidden.device)
            part = context.select(place)
            parts.append(checkpoint(self._score, hidden[place], labels[place], part, use_reentrant=False))
        return torch.cat(parts)

    def _score(self, hidden: Tensor, labels: Tensor, context: Selectable) -> Tensor:
        return self.next_token(hidden, context).log_prob_of(labels[:, None])[:, 0]

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        if context is None or isinstance(context, Sources):
            return self.softmax.next_token(hidden, None)
        assert isinstance(context, Shortlists)
        logits = context.lists.logits(hidden, context.owners, self.softmax)
        return Listed(logits, context.lists.ids[context.owners], self.vocabulary)


@dataclass(frozen=True, slots=True)
class Sources:
    """Inputs of a learned selector: states [B, S, D] with mask [B, S], and the sentence `owners` [N] of each row."""

    memory: Tensor
    mask: Tensor
    owners: Tensor

    def select(self, rows: Tensor) -> "Sources":
        return Sources(self.memory, self.mask, self.owners[rows])


class _Lists:
    """The candidates of B sentences.  ids: [B, L], ascending, V where a sentence has fewer."""

    def __init__(self, listed: Tensor) -> None:
        """listed: [B, V], True where a token is a candidate."""
        self.size = listed.size(1)
        lengths = listed.sum(1)
        sentence, ids = listed.nonzero(as_tuple=True)  # by sentence, then by id
        column = torch.arange(len(ids), device=ids.device) - (lengths.cumsum(0) - lengths)[sentence]
        self.lengths: list[int] = lengths.tolist()
        shape = (len(listed), max(self.lengths, default=0))
        self.ids = ids.new_full(shape, self.size).index_put_((sentence, column), ids)
        self._few = len(ids) <= MAX_ROW_SHARE * self.size * max(1.0, len(listed) / SENTENCES)
        self._rows: list[tuple[Tensor, Tensor | None]] = []

    def logits(self, hidden: Tensor, owners: Tensor, softmax: SoftmaxHead) -> Tensor:
        """Return logits [N, L] of the candidates of sentences `owners` [N] after hidden states [N, D]; −inf if missing.

        Each sentence has a product of its own, independent of the batch, unless rows of a sentence are not adjacent or
        one product with the whole vocabulary is cheaper.
        """
        ids = self.ids[owners]
        runs, counts = torch.unique_consecutive(owners, return_counts=True)
        if self._few and len(runs) <= len(self.lengths):
            logits = hidden.new_full(ids.shape, -torch.inf)
            rows, begin = self._gathered(softmax), 0
            for sentence, count in zip(runs.tolist(), counts.tolist(), strict=True):
                place = (slice(begin, begin + count), slice(self.lengths[sentence]))
                logits[place] = F.linear(hidden[place[0]], *rows[sentence])
                begin += count
            return logits
        whole = F.linear(hidden, softmax.weight, softmax.bias)
        return whole.gather(1, ids.clamp(max=self.size - 1)).masked_fill(ids == self.size, -torch.inf)

    def _gathered(self, softmax: SoftmaxHead) -> list[tuple[Tensor, Tensor | None]]:
        """Return weight and bias rows of the candidates for each sentence; cached if no gradient is needed."""
        if self._rows:
            return self._rows
        parts = [ids[:length] for ids, length in zip(self.ids, self.lengths, strict=True)]
        rows = [(softmax.weight[part], None if softmax.bias is None else softmax.bias[part]) for part in parts]
        if rows and not rows[0][0].requires_grad:
            self._rows = rows
        return rows


@dataclass(frozen=True, slots=True)
class Shortlists:
    """The candidates of some sentences, and the sentence `owners` [N] of each row."""

    lists: _Lists
    owners: Tensor

    def select(self, rows: Tensor) -> "Shortlists":
        return Shortlists(self.lists, self.owners[rows])


class Listed:
    """The distribution of a softmax over the candidates of each row's sentence; other tokens have probability 0."""

    normalised = True

    def __init__(self, logits: Tensor, ids: Tensor, size: int) -> None:
        """logits: [N, L], of tokens `ids` [N, L], ascending in each row; −inf and V where a row has fewer.

        size: V.
        """
        self.size = size
        self._ids, self._belief = ids, Logits(logits)

    @property
    def rows(self) -> int:
        return self._ids.size(0)

    def topk(self, k: int, bias: Bias | None = None) -> TopK:
        k = min(k, self.size)
        if k > self._ids.size(1):
            scores = self.log_probs()
            ranks, ids = exact_topk(scores if bias is None else bias.add_to(scores), k)
        else:
            top = self._belief.topk(k, None if bias is None else self._of_columns(bias))
            ranks = top.ranks_by
            ids = replace_impossible(ranks, self._ids.gather(1, top.ids), self.size)
        return TopK(ids, self.log_prob_of(ids), ranks)

    def _of_columns(self, bias: Bias) -> Bias:
        """Return the bias indexed by columns of the candidate list instead of token ids."""
        columns, inside = self._columns(bias.ids[:, None], bias.rows)
        columns, inside = columns[:, 0], inside[:, 0]
        allowed = bias.allowed
        if allowed is not None:
            own_ids = self._ids.clamp(max=self.size - 1)
            allowed = allowed[own_ids] if allowed.dim() == 1 else allowed.gather(1, own_ids)
        return Bias(bias.rows[inside], columns[inside], bias.values[inside], allowed)

    def _columns(self, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns of ids [P, m] in the lists of `rows` [P], and whether each id is in its list."""
        lists = self._ids[rows]
        columns = torch.searchsorted(lists, ids).clamp_(max=lists.size(1) - 1)
        return columns, lists.gather(1, columns) == ids

    def log_probs(self) -> Tensor:
        inside = self._belief.log_probs()
        whole = inside.new_full((self.rows, self.size + 1), -torch.inf)
        return whole.scatter(1, self._ids, inside)[:, : self.size]

    def log_prob_of(self, ids: Tensor) -> Tensor:
        columns, inside = self._columns(ids, torch.arange(self.rows, device=ids.device))
        return self._belief.log_prob_of(columns).masked_fill(~inside, -torch.inf)

    def sample(self, uniforms: Tensor, *, temperature: float = 1.0, bias: Bias | None = None) -> Tensor:
        of_columns = None if bias is None else self._of_columns(bias)
        columns = self._belief.sample(uniforms, temperature=temperature, bias=of_columns)
        return self._ids.gather(1, columns)
