"""Token costs in the comparison of heads."""

import math

import pytest
import torch

from translume.belief import Logits
from translume.comparison.measuring import Costs


def test_costs_average_the_possible_tokens_and_count_the_impossible_ones() -> None:
    belief = Logits(torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.25, 0.75, 0.0]]).log())
    labels = torch.tensor([1, 2, 1])
    costs = Costs()
    assert list(costs.add([(belief, labels)])) == [(belief, labels)]
    assert (costs.tokens, costs.impossible) == (3, 1)
    assert costs.mean == pytest.approx((math.log(4) + math.log(4 / 3)) / 2)


def test_there_is_no_mean_if_every_token_is_impossible() -> None:
    costs = Costs()
    list(costs.add([(Logits(torch.tensor([[1.0, 0.0]]).log()), torch.tensor([1]))]))
    assert (costs.mean, costs.tokens, costs.impossible) == (None, 1, 1)
