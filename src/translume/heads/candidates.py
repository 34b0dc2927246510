"""Candidate tokens for a source: a table of translations (IBM model 1), or a learned selector."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from translume.heads import chunked_cross_entropy, fixed_cross_entropy
from translume.heads.linear import accumulation_dtype
from translume.heads.token_statistics import spread_evenly
from translume.model import HeadData, TrainingPairs
from translume.model.compiled import on_device

MAX_PAIRS = 200_000
"""Maximum number of pairs read; from a larger corpus, this many are sampled evenly."""
MAX_LINKS = 12_000_000
"""Maximum number of links between source and target tokens of the pairs used; each takes about 60 bytes."""
RARE_COUNT = 50
"""Pairs with a source token that has occurred in fewer pairs than this are used before all others."""
ROUNDS = 5
"""Rounds of expectation maximisation."""

Ids = NDArray[np.int64]


def translation_table(data: HeadData, candidates: int) -> NDArray[np.int32]:
    """Return [source vocabulary, candidates]: the most likely targets of each source token, best first, −1 for none.

    A target token with the same spelling as the source token is always included, since names and numbers are copied.
    """
    sources, targets = len(data.source_pieces), len(data.target_pieces)
    table = np.full((sources, candidates), -1, np.int32)
    links = _links(data.corpus, sources)
    if len(links.source):
        _fill(table, *_translation_probabilities(links, targets), targets)
    _add_equals(table, data)
    return table


@dataclass(frozen=True, slots=True)
class _Links:
    """All links of a target token to a source token of its sentence pair, or to the empty word.

    source, target: ids [L], with the links of each target token adjacent.  begins: [T], index of its first link.
    """

    source: Ids
    target: Ids
    begins: Ids


def _links(corpus: TrainingPairs, empty_word: int) -> _Links:
    source, target, choices = ([np.zeros(0, np.int64)] for _ in range(3))
    for number in _choose_pairs(corpus, empty_word):
        read, written = np.append(corpus.source(number), empty_word), corpus.target(number)
        source.append(np.tile(read, len(written)))
        target.append(np.repeat(written, len(read)).astype(np.int64))
        choices.append(np.full(len(written), len(read)))
    lengths = np.concatenate(choices)
    return _Links(np.concatenate(source), np.concatenate(target), np.cumsum(lengths) - lengths)


def _choose_pairs(corpus: TrainingPairs, sources: int) -> list[int]:
    """Return indices of pairs with at most MAX_LINKS links, those with rare source tokens first."""
    met = np.zeros(sources, np.int64)
    rare, others, left = [], [], MAX_LINKS
    for number in spread_evenly(corpus.pairs, MAX_PAIRS):
        source = corpus.source(number)
        links = (len(source) + 1) * len(corpus.target(number))
        if not len(source) or links > left:
            continue
        if met[source].min() < RARE_COUNT:
            met[source] += 1
            left -= links
            rare.append(number)
        else:
            others.append((number, links))
    for number, links in others:
        if links <= left:
            left -= links
            rare.append(number)
    return rare


def _translation_probabilities(links: _Links, targets: int) -> tuple[Ids, NDArray[np.float64]]:
    """Return the observed token pairs as source · targets + target, ascending, and t(target | source)."""
    keys, which = np.unique(links.source * targets + links.target, return_inverse=True)
    owner = keys // targets
    chance = np.ones(len(keys))
    for _ in range(ROUNDS):
        shares = chance[which]
        lengths = np.diff(links.begins, append=len(shares))
        shares /= np.repeat(np.add.reduceat(shares, links.begins), lengths)  # probability of each link of a target
        expected = np.bincount(which, shares, len(keys))
        chance = expected / np.bincount(owner, expected)[owner]
    return keys, chance


def _fill(table: NDArray[np.int32], keys: Ids, chance: NDArray[np.float64], targets: int) -> None:
    order = np.lexsort((-chance, keys // targets))  # stable: ties by smaller target
    owner = keys[order] // targets
    begins = np.searchsorted(owner, np.arange(len(table) + 1))
    rank = np.arange(len(owner)) - begins[owner]
    kept = (rank < table.shape[1]) & (owner < len(table))
    table[owner[kept], rank[kept]] = keys[order][kept] % targets


def _add_equals(table: NDArray[np.int32], data: HeadData) -> None:
    ids = {piece: number for number, piece in enumerate(data.target_pieces)}
    for source, piece in enumerate(data.source_pieces):
        target = ids.get(piece, -1)
        if target >= 0 and target not in data.specials and not (table[source] == target).any():
            free = np.flatnonzero(table[source] < 0)
            table[source, free[0] if len(free) else -1] = target


FIRST_SIZE = 0.3
"""Initial scale of the product of a state and a token: small, so that frequencies dominate at first."""


class Selector(nn.Module):
    """A learned selector: p(v in target | source) = σ(max_i (K w_v) · (U m_i) + b_v) over encoder states m_i.

    Neural vocabulary selection (Domhan et al. 2022, section 4) with the head's token vectors w_v instead of separate
    ones, so that rare tokens benefit from similar ones. Token vectors and states receive no gradient.
    """

    def __init__(self, width: int, vocabulary: int, rank: int) -> None:
        """width: D of states and vectors.  vocabulary: V.  rank: rows of U and K, D at most."""
        super().__init__()
        rank = min(rank, width)
        self.states = nn.Linear(width, rank, bias=False)
        self.tokens = nn.Linear(width, rank, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.orthogonal_(self.tokens.weight)
        with torch.no_grad():
            self.states.weight.copy_(self.tokens.weight).mul_(FIRST_SIZE)

    @torch.no_grad()
    def learn(self, counts: NDArray[np.int64], end: int) -> None:
        """Initialise the bias from token counts [V] with one EOS, the id `end`, per pair.

        A token with λ occurrences per pair is in a target with p = 1 − e^−λ (Poisson), log-odds ln(e^λ − 1). Unseen
        tokens count as half an occurrence.
        """
        rate = np.maximum(counts, 0.5) / max(1, counts[end])
        self.bias.copy_(torch.from_numpy(np.log(np.expm1(np.minimum(rate, 10.0)))))

    def loss(self, memory: Tensor, mask: Tensor, vectors: Tensor, owners: Tensor, labels: Tensor) -> Tensor:
        """Return the binary cross entropy, in nats, of predicting each target's set of tokens; summed over B sentences.

        memory: [B, S, D], read where mask [B, S] is True.  vectors: [V, D].  labels: [n], of sentences `owners` [n].
        The result is fp32 (fp64 for fp64).
        """
        states, tokens = self.states(memory.detach()), self.tokens(vectors.detach())
        met = labels * len(memory) + owners
        loss: Tensor = _BagLoss.apply(  # type: ignore[no-untyped-call]  # torch's has no types
            states, mask, tokens, self.bias, met
        )
        return loss

    @torch.no_grad()
    def listed(self, memory: Tensor, mask: Tensor, vectors: Tensor, threshold: float) -> Tensor:
        """Return [B, V]: True where a token's probability is at least `threshold`, in [0, 1); 0 selects all.

        memory: [B, S, D], read where mask [B, S] is True.  vectors: [V, D].
        """
        floor = -math.inf if threshold == 0.0 else math.log(threshold) - math.log1p(-threshold)
        states, tokens = self.states(memory), vectors
        rank, width = self.tokens.weight.shape
        if mask.numel() * (width - rank) < width * rank:  # few positions: projecting all token vectors would cost more
            states = states @ self.tokens.weight
        else:
            tokens = self.tokens(vectors)
        parts = [_best(_places(states, mask, tokens[block])) for block in _blocks(states, len(tokens))]
        return torch.cat(parts, 1).to(accumulation_dtype(states)) + self.bias >= floor


class _BagLoss(torch.autograd.Function):
    """Computes gradients in the forward pass, where the logits of all positions are available, in blocks of tokens."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, met: Tensor) -> Tensor:
        """states: [B, S, r].  mask: [B, S].  weight: [V, r].  bias: [V].  met: [n], token · B + sentence."""
        kept, sentences = accumulation_dtype(states), len(states)
        total = states.new_zeros((), dtype=kept)
        of_states, of_weight = torch.zeros_like(states, dtype=kept), torch.empty_like(weight)
        of_bias = torch.empty_like(bias)
        for block in _blocks(states, len(weight)):
            places = _places(states, mask, weight[block])
            best = _best(places)
            logits = best.to(kept) + bias[block].to(kept)
            target = _marked(met, block, sentences, kept)
            total += F.binary_cross_entropy_with_logits(logits, target, reduction="sum")
            slopes = logits.sigmoid_().sub_(target)
            of_bias[block] = slopes.sum(0)
            chosen = (places == best[:, None]).to(states.dtype)  # none where a source has no tokens
            chosen *= (slopes / chosen.sum(1, dtype=kept).clamp_(min=1.0)).to(states.dtype)[:, None]
            of_states += chosen @ weight[block]
            of_weight[block] = chosen.flatten(0, 1).t() @ states.flatten(0, 1)
        ctx.save_for_backward(of_states.to(states.dtype), of_weight, of_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_weight, of_bias = (saved * gradients[0].to(saved.dtype) for saved in ctx.saved_tensors)
        return of_states, None, of_weight, of_bias, None


def _blocks(states: Tensor, vocabulary: int) -> Iterator[slice]:
    """Yield blocks of tokens that bound the number of logits over all positions of states [B, S, r]."""
    chunk = (fixed_cross_entropy if on_device(states) else chunked_cross_entropy).CHUNK_ELEMENTS
    size = max(1, chunk // max(1, states.size(0) * states.size(1)))
    return (slice(start, min(start + size, vocabulary)) for start in range(0, vocabulary, size))


def _places(states: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """Return the logits [B, S, c] of c tokens at each position, without biases; −inf at padding."""
    return (states @ weight.t()).masked_fill_(~mask[..., None], -torch.inf)


def _best(places: Tensor) -> Tensor:
    """Return the maxima [B, c] over the positions of each source; 0 for an empty source."""
    if not places.size(1):
        return places.new_zeros(places.size(0), places.size(2))
    best = places.amax(1)
    return best.masked_fill_(best.isneginf(), 0.0)


def _marked(met: Tensor, block: slice, sentences: int, dtype: torch.dtype) -> Tensor:
    """Return [B, c]: 1 where a token of the block is in a sentence's target; met as in `_BagLoss.forward`."""
    count = (block.stop - block.start) * sentences
    place = met - block.start * sentences
    marks = torch.zeros(count + 1, dtype=dtype, device=met.device)  # the last is of tokens outside the block
    marks.index_fill_(0, torch.where((place >= 0) & (place < count), place, count), 1.0)
    return marks[:count].view(-1, sentences).t()
