"""The Huffman tree: its ways, its loss and its beliefs."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from translume.config import TreeSettings
from translume.heads.frequency import target_counts
from translume.heads.tree import TreeHead, longest_way, ways
from translume.model import HeadData, HeadSizes, LossOptions

WIDTH, VOCABULARY = 7, 43


class Targets:
    """Training targets of seven tokens, low ids more often."""

    pairs = 97

    def __init__(self, vocabulary):
        self._ids = (np.random.default_rng(3).random((self.pairs, 7)) ** 3 * vocabulary).astype(np.int64)

    def source(self, index):
        return self._ids[index]

    def target(self, index):
        return self._ids[index]


def data(vocabulary):
    pieces = [str(each) for each in range(vocabulary)]
    return HeadData(
        corpus=Targets(vocabulary), source_pieces=pieces, target_pieces=pieces, end=2, specials=frozenset({0, 1, 2, 3})
    )


def head_of(vocabulary=VOCABULARY):
    torch.manual_seed(3)
    return TreeHead(TreeSettings(), HeadSizes(width=WIDTH, vocabulary=vocabulary, source_vocabulary=3), None)


@given(counts=st.lists(st.integers(0, 10**6), min_size=2, max_size=97))
def test_ways_are_a_full_binary_code_and_the_rarer_never_has_the_shorter(counts):
    nodes, signs = ways(np.array(counts), longest_way(len(counts)))
    depths = (signs != 0).sum(1)
    assert sum(2.0**-depth for depth in depths) == 1.0
    steps = [tuple(zip(nodes[t][: depths[t]], signs[t][: depths[t]], strict=True)) for t in range(len(counts))]
    assert len(set(steps)) == len(counts)
    assert {node for way in steps for node, _ in way} == set(range(len(counts) - 1))
    assert all(way[0][0] == 0 for way in steps)
    assert not signs[np.arange(signs.shape[1]) >= depths[:, None]].any()
    order = np.argsort(counts, kind="stable")
    assert (
        all(
            depths[rare] >= depths[often]
            for rare, often in pairwise(order)
            if counts[rare] < counts[often] and counts[rare] > 0
        )
        or longest_way(len(counts)) == depths.max()
    )


def test_a_tree_of_four_is_as_by_hand():
    nodes, signs = ways(np.array([5, 1, 1, 2]), 3)
    assert nodes.tolist() == [[0, 0, 0], [0, 1, 2], [0, 1, 2], [0, 1, 0]]
    assert signs.tolist() == [[-1, 0, 0], [1, -1, 1], [1, -1, -1], [1, 1, 0]]


def test_no_way_is_longer_than_there_is_room_for():
    counts = [1, 1]
    while len(counts) < 40:
        counts.append(counts[-1] + counts[-2])
    assert longest_way(40) == 14
    _, signs = ways(np.array(counts), 14)
    depths = (signs != 0).sum(1)
    assert depths.max() <= 14
    assert sum(2.0**-depth for depth in depths) == 1.0


def test_equal_counts_make_a_balanced_tree():
    _, signs = ways(np.full(64, 5), 6)
    assert (signs != 0).all()


def test_frequent_tokens_are_near_the_root():
    head = head_of()
    head.learn(data(VOCABULARY))
    counts = target_counts(data(VOCABULARY), VOCABULARY)
    depths = (head.signs != 0).sum(1).double().numpy()
    shares = counts / counts.sum()
    entropy = -(shares[shares > 0] * np.log2(shares[shares > 0])).sum()
    assert entropy <= (shares * depths).sum() <= entropy + 1
    assert head.nodes.shape == (VOCABULARY, longest_way(VOCABULARY))


def test_probabilities_are_products_of_the_sides_taken():
    head = head_of(4)
    head.nodes.zero_()
    head.signs.zero_()
    head.nodes[:, :3] = torch.tensor([[0, 0, 0], [0, 1, 2], [0, 1, 2], [0, 1, 0]])
    head.signs[:, :3] = torch.tensor([[-1, 0, 0], [1, -1, 1], [1, -1, -1], [1, 1, 0]], dtype=torch.int32)
    with torch.no_grad():
        head.weight.zero_()
        head.weight[:, 0] = torch.tensor([1.0, 3.0, 0.5]).log()
    hidden = torch.zeros(1, WIDTH)
    hidden[0, 0] = 1.0
    probabilities = head.next_token(hidden, None).log_probs().exp()
    torch.testing.assert_close(probabilities, torch.tensor([[1 / 2, 1 / 24, 1 / 12, 3 / 8]]))
    scores = head.score(hidden.expand(4, -1), torch.arange(4), None)
    torch.testing.assert_close(scores.exp(), probabilities[0])


@pytest.mark.parametrize("elements", [1, 7 * 14 * 5, 1 << 22])
def test_gradients_are_exact_in_any_chunks(monkeypatch, elements):
    monkeypatch.setattr("translume.heads.lse_pick.CHUNK_ELEMENTS", elements)
    head = head_of().double()
    head.learn(data(VOCABULARY))
    hidden = torch.randn(11, WIDTH, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(VOCABULARY, (11,))

    def loss(hidden, weight):
        head.weight.data = weight.data
        return torch.stack(head._walk(hidden, labels))

    def plain(hidden, weight):
        margins = (weight[head.nodes[labels]] * hidden[:, None]).sum(-1) * head.signs[labels]
        return torch.stack([(F.logsigmoid(margins) * (head.signs[labels] != 0)).sum(-1), margins.sum(-1)])

    pull = torch.randn(2, 11, dtype=torch.float64)
    found = torch.autograd.grad((loss(hidden, head.weight) * pull).sum(), (hidden, head.weight))
    wanted = torch.autograd.grad((plain(hidden, head.weight) * pull).sum(), (hidden, head.weight))
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right)


def test_label_smoothing_gives_half_of_it_to_the_other_side_of_each_node():
    head = head_of().double()
    hidden = torch.randn(11, WIDTH, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (11,))
    margins = torch.einsum("nld,nd->nl", head.weight[head.nodes[labels]], hidden) * head.signs[labels]
    on = head.signs[labels] != 0
    wanted = -(0.95 * F.logsigmoid(margins)[on].sum() + 0.05 * F.logsigmoid(-margins)[on].sum())
    loss = head.loss(hidden, labels, None, LossOptions(0.1))
    torch.testing.assert_close(loss.objective, wanted)
    torch.testing.assert_close(loss.nll, -head.score(hidden, labels, None).sum())


def test_a_tree_that_knows_nothing_is_sure_of_its_depths_alone():
    head = head_of(64)
    log_probs = head.next_token(torch.zeros(1, WIDTH), None).log_probs()
    torch.testing.assert_close(log_probs, torch.full_like(log_probs, -math.log(64)))
