"""The class softmax: its definition, its classes, and clustering of tokens by their neighbours."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from translume.config import HierarchicalSettings
from translume.heads.hierarchical import HierarchicalHead
from translume.heads.token_statistics import by_neighbours, target_counts
from translume.model import HeadData, HeadSizes, LossOptions

WIDTH = 13


def head_of(vocabulary, tied=None, **changes):
    torch.manual_seed(3)
    settings = HierarchicalSettings(**{"tie": "none" if tied is None else "target", **changes})
    return HierarchicalHead(settings, HeadSizes(width=WIDTH, vocabulary=vocabulary, source_vocabulary=3), tied)


@pytest.mark.parametrize(
    ("vocabulary", "wanted", "classes", "each"),
    [(101, 0, 11, 10), (100, 0, 10, 10), (9, 4, 3, 3), (7, 7, 7, 1), (7, 1, 1, 7), (7, 23, 7, 1)],
)
def test_all_classes_but_the_last_have_the_same_number_of_tokens(vocabulary, wanted, classes, each):
    head = head_of(vocabulary, classes=wanted)
    assert (len(head.classes), head._class_size) == (classes, each)


@torch.no_grad()
def test_a_probability_is_that_of_the_class_times_that_within_it():
    head = head_of(4, classes=2)
    for parameter in head.parameters():
        parameter.zero_()
    head.class_bias[0] = math.log(3)
    head.bias[3] = math.log(4)
    head.order.copy_(torch.tensor([1, 3, 0, 2]))
    head.rank.copy_(torch.tensor([2, 0, 3, 1]))
    probabilities = head.next_token(torch.zeros(1, WIDTH), None).log_probs().exp()
    torch.testing.assert_close(probabilities, torch.tensor([[1 / 8, 3 / 20, 1 / 8, 3 / 5]]))


@pytest.mark.parametrize("text", [False, True])
def test_label_smoothing_follows_the_documentation(text):
    vocabulary, epsilon = 43, 0.1
    head = head_of(vocabulary, classes=5).double()
    hidden = torch.randn(29, WIDTH, dtype=torch.float64)
    labels = torch.randint(vocabulary, (29,))
    marks = torch.arange(vocabulary) > 11 if text else torch.ones(vocabulary, dtype=torch.bool)
    log_probs = head.next_token(hidden, None).log_probs()
    parts = log_probs.split(9, dim=1)
    classes = torch.stack([part.logsumexp(-1) for part in parts], 1)
    share = torch.stack([part.double().sum() for part in marks.split(9)])
    wanted = -epsilon * (classes @ (share / share.sum())).sum()
    for row, label in enumerate(labels.tolist()):
        group = label // 9
        inside = parts[group][row] - classes[row, group]
        spread = marks.split(9)[group].double()
        spread = spread if spread.sum() else torch.ones_like(spread)  # class 0 is not smoothed over at all
        wanted -= (1 - epsilon) * (classes[row, group] + inside[label % 9])
        wanted -= epsilon * (inside @ spread) / spread.sum()
    loss = head.loss(hidden, labels, None, LossOptions(epsilon, smoothed=marks if text else None))
    torch.testing.assert_close(loss.objective, wanted)


def test_a_tied_head_shares_the_embedding():
    table = torch.nn.Parameter(torch.randn(101, WIDTH))
    assert head_of(101, table).weight is table


class Sentences:
    """Targets that alternate between two kinds of words: ids 4 to 43 and 44 to 83."""

    pairs = 997

    def __init__(self):
        generator = np.random.default_rng(1)
        self._ids = generator.integers(0, 40, (self.pairs, 8)) + np.array([4, 44] * 4)

    def source(self, index):
        return self._ids[index]

    def target(self, index):
        return self._ids[index]


def corpus(vocabulary):
    pieces = [str(each) for each in range(vocabulary)]
    return HeadData(
        corpus=Sentences(), source_pieces=pieces, target_pieces=pieces, end=2, specials=frozenset({0, 1, 2, 3})
    )


def test_tokens_with_similar_neighbours_share_a_class():
    ids = by_neighbours(corpus(84), 84, 10)
    assert sorted(ids.tolist()) == list(range(84))
    assert np.array_equal(ids, by_neighbours(corpus(84), 84, 10))
    runs = [ids[begin : begin + 10] for begin in range(0, 84, 10)]
    kinds = [np.where(run < 4, 0, np.where(run < 44, 1, 2)) for run in runs]
    mixed = sum(len({1, 2} & set(each.tolist())) > 1 for each in kinds)
    assert mixed <= 1


def test_classes_by_frequency_group_tokens_of_similar_frequency():
    head = head_of(84, classes=7)
    head.learn(corpus(84))
    counts = torch.from_numpy(target_counts(corpus(84), 84))[head.order].split(12)
    assert all(left.min() >= right.max() for left, right in pairwise(counts))
    assert torch.equal(head.rank[head.order], torch.arange(84))


def test_classes_by_neighbours_are_learned_only_on_request():
    head = head_of(84, grouping="neighbours", classes=7)
    head.learn(corpus(84))
    assert head.order.sort().values.tolist() == list(range(84))
    assert set(head.order.tolist()[:12]) == set(by_neighbours(corpus(84), 84, 12)[:12].tolist())


@torch.no_grad()
def test_a_batch_may_hold_one_class_or_none():
    head = head_of(101)
    hidden = torch.randn(5, WIDTH)
    labels = torch.tensor([3, 3, 7, 0, 10])
    score = head.score(hidden, labels, None)
    torch.testing.assert_close(score, head.next_token(hidden, None).log_prob_of(labels[:, None])[:, 0])
    assert head.score(hidden[:0], labels[:0], None).shape == (0,)
