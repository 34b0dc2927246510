"""Label smoothing: shares that sum to ε, and the logit of the mean token computed without the logits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.heads.linear import MeanToken, spread
from translume.model import LossOptions

VOCABULARY, WIDTH, ROWS = 11, 5, 7
MARKS = torch.tensor([False, True, True, False, True] + [True] * 6)
WEIGHTS = torch.tensor([3, 0, 1, 1, 0, 7, 0, 0, 2, 0, 5])


def test_shares_worked_by_hand():
    like = torch.zeros(())
    assert spread(LossOptions(), 4, like) is None
    marks = torch.tensor([True, False, True, False])
    assert spread(LossOptions(0.2), 4, like).tolist() == pytest.approx([0.05] * 4)
    assert spread(LossOptions(0.2, smoothed=marks), 4, like).tolist() == pytest.approx([0.1, 0.0, 0.1, 0.0])
    weights = torch.tensor([1, 0, 3, 0])
    assert spread(LossOptions(0.2, smoothed=weights), 4, like).tolist() == pytest.approx([0.05, 0.0, 0.15, 0.0])


@pytest.mark.parametrize(("narrow", "kept"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_shares_are_summed_in_a_wide_dtype(narrow, kept):
    like = torch.zeros((), dtype=narrow)
    for smoothed in (None, MARKS, WEIGHTS):
        shares = spread(LossOptions(0.3, smoothed=smoothed), VOCABULARY, like)
        assert shares.dtype == kept
        assert float(shares.sum()) == pytest.approx(0.3)
        assert MeanToken(torch.ones(VOCABULARY, WIDTH, dtype=narrow), None, smoothed).row.dtype == kept


@given(st.integers(0, 99), st.booleans(), st.sampled_from([None, MARKS, WEIGHTS]))
def test_the_mean_tokens_logit_equals_the_mean_logit_and_its_gradients(seed, biased, smoothed):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,)][: 3 if biased else 2]
    leaves = [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]
    hidden, weight, bias = leaves if biased else (*leaves, None)
    shares = torch.ones(VOCABULARY) if smoothed is None else smoothed
    shares = shares.double() / shares.sum()
    logits = torch.nn.functional.linear(hidden, weight, bias)
    found = MeanToken(weight, bias, smoothed).logit(hidden)
    torch.testing.assert_close(found, logits @ shares)
    factors = torch.randn(ROWS, dtype=torch.float64, generator=generator)
    grown, wanted = (torch.autograd.grad((each * factors).sum(), leaves) for each in (found, logits @ shares))
    torch.testing.assert_close(grown, wanted)
