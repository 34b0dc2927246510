"""Dropout: its rate, its expectation, its gradient, and its dependence on torch's seed."""

import math

import pytest
import torch

from translume.model.dropout import Dropout, keep_mask, rounded

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rate", "threshold", "scale"), [(0.0, 0, 1.0), (0.5, 128, 2.0), (1e-9, 1, 256 / 255), (0.9999, 255, 256.0)]
)
def test_rates_are_rounded_to_multiples_of_1_256(rate, threshold, scale):
    assert rounded(rate) == (threshold, scale)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_each_byte_is_kept_at_the_rounded_rate(rate):
    """Chi-square of the kept counts at each of 16 places of a pair of 64-bit draws."""
    torch.manual_seed(11)
    threshold, _ = rounded(rate)
    draws = 20_000
    kept = keep_mask(torch.Size([draws, 16]), threshold, CPU).sum(0).double()
    expected = draws * (1 - threshold / 256)
    chi_square = ((kept - expected) ** 2 / (expected * threshold / 256)).sum()
    assert float(chi_square) < 39.3  # 99.9 % of 16 degrees of freedom


def test_the_expectation_equals_the_input():
    torch.manual_seed(12)
    drop, x, residual = Dropout(0.1).train(), torch.full((400_000,), 3.0), torch.full((400_000,), 5.0)
    error = 3.0 * math.sqrt(0.11 / 400_000)
    assert abs(float(drop(x).mean()) - 3.0) < 5 * error
    assert abs(float(drop(x, residual).mean()) - 8.0) < 5 * error


def test_the_same_seed_drops_the_same_elements():
    drop, x = Dropout(0.3).train(), torch.randn(7, 11)
    results = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        results.append(drop(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_gradients_pass_through_the_kept_elements():
    drop = Dropout(0.4).train()
    x, residual = (torch.randn(5, 7, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def seeded(*arguments: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(9)
        return drop(*arguments)

    assert torch.autograd.gradcheck(seeded, (x,))
    assert torch.autograd.gradcheck(seeded, (x, residual))
    torch.testing.assert_close(seeded(x, residual), seeded(x) + residual)


def test_nothing_is_dropped_outside_training():
    x, residual = torch.randn(5, 7), torch.randn(5, 7)
    for drop in (Dropout(0.4).eval(), Dropout(0.0).train()):
        assert drop(x) is x
        assert torch.equal(drop(x, residual), x + residual)
