"""A yes or no at each node of a Huffman tree (Morin and Bengio 2005; Mikolov et al. 2013)."""

import heapq
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from translume.belief import Logits, NextToken
from translume.config import TreeSettings
from translume.heads import lse_pick
from translume.heads.frequency import target_counts
from translume.heads.parameters import vectors
from translume.heads.precision import wide
from translume.model import Head, HeadData, HeadLoss, HeadSizes, LossOptions
from translume.model.state import Selectable

ROOM = 8
"""How many nodes longer than in a balanced tree a path may be."""


class TreeHead(Head):
    """log p(w|h) = Σ over the nodes on the way to w of log σ(± v·h), about log₂ V of them.

    Frequent tokens are near the root. For its small number of products it is slow here: each row reads other nodes, so
    that vectors are fetched one by one where a softmax is a product of matrices. Decoding evaluates every node and
    adds level by level, V nodes a row as a softmax does: choosing the best token exactly is no cheaper in a tree.
    Label smoothing: at each node ε/2 goes to the other side, so that it grows with the length of the way; which tokens
    are smoothed makes no difference. z-loss is nothing, since there is no normaliser.
    """

    exact_smoothing = False

    def __init__(self, settings: TreeSettings, sizes: HeadSizes, tied: None) -> None:
        super().__init__()
        self.vocabulary = sizes.vocabulary
        self.weight = vectors(sizes.vocabulary - 1, sizes.width)
        self._longest = longest_way(sizes.vocabulary)
        nodes, signs = ways(np.ones(sizes.vocabulary, np.int64), self._longest)
        self.nodes: Tensor  # [V, longest]: the nodes on the way to each token, from the root
        self.signs: Tensor  # [V, longest]: 1 and −1 for the two sides, 0 beyond the end of the way
        self.register_buffer("nodes", torch.from_numpy(nodes))
        self.register_buffer("signs", torch.from_numpy(signs))

    def learn(self, data: HeadData) -> None:
        nodes, signs = ways(target_counts(data, self.vocabulary), self._longest)
        self.nodes.copy_(torch.from_numpy(nodes))
        self.signs.copy_(torch.from_numpy(signs))

    def _walk(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = _Walk.apply(  # type: ignore[no-untyped-call]  # torch's has no types
            hidden, self.weight, self.nodes[labels], self.signs[labels]
        )
        return found

    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        log_probs, margins = self._walk(hidden, labels)
        nll = -log_probs.sum()
        # −log σ(−x) = −log σ(x) + x: what the other side adds is the margin x.
        objective = nll + options.label_smoothing / 2 * margins.sum() if options.label_smoothing else nll
        return HeadLoss(objective, nll.detach(), labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        return self._walk(hidden, labels)[0]

    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        logits = F.linear(hidden, self.weight)
        logits = logits.to(wide(logits))
        yes = F.logsigmoid(logits)
        sides = torch.cat([yes, yes - logits], 1)  # log σ(x), then log σ(−x)
        columns = self.nodes + (self.signs < 0) * len(self.weight)
        total = sides.new_zeros(len(sides), self.vocabulary)
        for level in range(self._longest):
            on = self.signs[:, level].nonzero()[:, 0]
            if len(on):
                total = total.index_add(1, on, sides.index_select(1, columns[on, level]))
        return Logits(total)


class _Walk(torch.autograd.Function):
    """(log-probabilities [n], sums of signed logits [n]), fp32 or fp64, along ways [n, L] after hidden states [n, D].

    Some rows at a time; the backward pass makes the logits again and adds all into one gradient of the weights.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, nodes: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, margins = (hidden.new_zeros(len(hidden), dtype=wide(hidden)) for _ in range(2))
        for place in _chunks(hidden, nodes):
            _, margin = _margins(hidden[place], weight, nodes[place], signs[place])
            log_probs[place] = F.logsigmoid(margin).mul_(signs[place] != 0).sum(-1)
            margins[place] = margin.sum(-1)
        ctx.save_for_backward(hidden, weight, nodes, signs)
        return log_probs, margins

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, nodes, signs = ctx.saved_tensors
        by_log_prob, by_margin = gradients
        grown = torch.empty_like(hidden)
        grown_weight = weight.new_zeros(weight.shape, dtype=by_log_prob.dtype)
        for place in _chunks(hidden, nodes):
            vectors, margin = _margins(hidden[place], weight, nodes[place], signs[place])
            slope = by_log_prob[place, None] * torch.sigmoid(-margin) + by_margin[place, None]
            slope = slope * signs[place]  # [c, L]
            grown[place] = torch.bmm(slope[:, None], vectors)[:, 0].to(grown.dtype)
            outer = slope[:, :, None] * hidden[place, None].to(slope.dtype)
            grown_weight.index_add_(0, nodes[place].flatten(), outer.flatten(0, 1))
        return grown, grown_weight.to(weight.dtype), None, None


def _chunks(hidden: Tensor, nodes: Tensor) -> list[slice]:
    """Rows whose nodes' vectors are held at a time."""
    rows = max(1, lse_pick.CHUNK_ELEMENTS // max(1, nodes.size(1) * hidden.size(1)))
    return [slice(begin, begin + rows) for begin in range(0, len(hidden), rows)]


def _margins(hidden: Tensor, weight: Tensor, nodes: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors [c, L, D] of nodes on the ways, and logits [c, L] with the sign of the way, 0 beyond its end."""
    vectors = weight[nodes].to(wide(hidden))
    return vectors, torch.bmm(vectors, hidden.to(vectors.dtype)[:, :, None])[:, :, 0] * signs


def longest_way(vocabulary: int) -> int:
    """Nodes on the longest way to one of V tokens, at most."""
    return (vocabulary - 1).bit_length() + ROOM


def ways(counts: NDArray[np.int64], longest: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Nodes and signs [V, longest] of a Huffman tree; node 0 is the root, and signs beyond the end of a way are 0.

    Ties go to the smaller id, and tokens before nodes. Small counts are raised until no way is too long; `longest` is
    at least log₂ V.
    """
    vocabulary = len(counts)
    least = 1
    while True:
        parents, signs = _huffman(np.maximum(counts, least))
        depths = np.zeros(2 * vocabulary - 1, np.int64)
        for node in range(2 * vocabulary - 3, -1, -1):
            depths[node] = depths[parents[node]] + 1
        if depths.max() <= longest:
            break
        least *= 2
    nodes = np.zeros((vocabulary, longest), np.int32)
    sides = np.zeros((vocabulary, longest), np.int32)
    tokens = np.arange(vocabulary)
    standing = tokens.copy()
    while len(tokens := tokens[depths[standing] > 0]):
        standing = standing[depths[standing] > 0]
        place = tokens, depths[standing] - 1
        nodes[place] = 2 * vocabulary - 2 - parents[standing]
        sides[place] = signs[standing]
        standing = parents[standing]
    return nodes, sides


def _huffman(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Parents and sides [2·V − 1] of tokens and, in order of their making, of inner nodes; the root is the last."""
    vocabulary = len(counts)
    parents = np.zeros(2 * vocabulary - 1, np.int64)
    signs = np.ones(2 * vocabulary - 1, np.int8)
    heap = [(count, id_) for id_, count in enumerate(counts.tolist())]
    heapq.heapify(heap)
    for node in range(vocabulary, 2 * vocabulary - 1):
        small, left = heapq.heappop(heap)
        large, right = heap[0]
        parents[left] = parents[right] = node
        signs[right] = -1
        heapq.heapreplace(heap, (small + large, node))
    return parents, signs
