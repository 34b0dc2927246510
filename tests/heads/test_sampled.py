"""Sampled softmax: unbiased on average, and converging to the full softmax."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.heads.conftest import LargestTensor, relative_error, states

from translume.config import SampledSettings
from translume.heads.sampled import SampledHead
from translume.model import HeadData, HeadSizes, LossOptions
from translume.model.dropout import seeded_masks

WIDTH, VOCABULARY, ROWS = 13, 101, 67
PLAIN = LossOptions()


class Pairs:
    """Targets of up to seven tokens; low ids are more frequent."""

    pairs = 97

    def target(self, index):
        generator = np.random.default_rng(index)
        return (generator.random(1 + index % 7) ** 3 * 97).astype(np.int32) + 4


def sampled_head(samples=1024, bias=True, dtype=torch.float64, vocabulary=VOCABULARY, width=WIDTH):
    torch.manual_seed(5)
    sizes = HeadSizes(width=width, vocabulary=vocabulary, source_vocabulary=vocabulary)
    head = SampledHead(SampledSettings(tie="none", samples=samples, bias=bias), sizes, None)
    pieces = [""] * vocabulary
    learnt = {"source_pieces": pieces, "target_pieces": pieces, "end": 2, "specials": frozenset({0, 1, 2, 3})}
    head.learn(HeadData(corpus=Pairs(), **learnt))
    if head.softmax.bias is not None:
        torch.nn.init.normal_(head.softmax.bias)
    return head.to(dtype)


def loss_and_gradients(head, hidden, labels, options=PLAIN):
    loss = head.loss(hidden, labels, None, options)
    return loss.objective.detach(), torch.autograd.grad(loss.objective, [hidden, *head.parameters()])


def test_tokens_are_ranked_by_frequency_in_the_targets():
    counts = np.bincount(np.concatenate([Pairs().target(number) for number in range(97)]), minlength=101)
    counts[2] += 97  # one EOS per pair
    ranked = sampled_head().ranked
    assert sorted(ranked.tolist()) == list(range(101))
    assert ranked.tolist() == sorted(range(101), key=lambda token: (-counts[token], token))


@pytest.mark.parametrize("samples", [7, 211])
def test_tokens_are_drawn_with_the_probability_of_their_rank(samples):
    head, hidden = sampled_head(samples), torch.zeros(1, WIDTH, dtype=torch.float64)
    times = 3000
    met = torch.zeros(VOCABULARY, dtype=torch.float64)
    for _ in range(times):
        drawn = head._draw(hidden)
        assert len(drawn.ids.unique()) == len(drawn.ids)
        met[drawn.ids] += 1
    rank = torch.arange(VOCABULARY, dtype=torch.float64)
    once = torch.log((rank + 2) / (rank + 1)) / math.log(VOCABULARY + 1)
    assert float(once.sum()) == pytest.approx(1)
    wanted = 1 - (1 - once) ** samples
    error = (met[head.ranked] / times - wanted) / (wanted * (1 - wanted) / times + 1e-9).sqrt()
    assert float(error.abs().max()) < 5


@pytest.mark.parametrize("samples", [1, 11, 101])
@torch.no_grad()
def test_the_normaliser_estimate_is_unbiased(samples):
    head = sampled_head(samples)
    hidden, labels = states(rows=5)
    full = (-head.softmax.score(hidden, labels, None)).exp()
    times = 1000
    drawn = torch.stack(
        [
            torch.stack([head.loss(hidden[i : i + 1], labels[i : i + 1], None, PLAIN).objective for i in range(5)])
            for _ in range(times // 5)
        ]
    ).exp()
    error = (drawn.mean(0) - full) / (drawn.std(0) / len(drawn) ** 0.5)
    assert float(error.abs().max()) < 5


def test_loss_and_gradients_converge_to_the_softmax_with_more_samples():
    hidden, labels = states()
    errors = []
    for samples in (3, 30, 300, 3000):
        head = sampled_head(samples)
        parts = [loss_and_gradients(head, hidden, labels) for _ in range(60)]
        wanted = loss_and_gradients(head.eval(), hidden, labels)
        loss = torch.stack([loss for loss, _ in parts]).mean()
        grown = [torch.stack(each).mean(0) for each in zip(*(grown for _, grown in parts), strict=True)]
        apart = [relative_error(left, right) for left, right in zip(grown, wanted[1], strict=True)]
        errors.append([relative_error(loss, wanted[0]), *apart])
    for few, more in itertools.pairwise(errors):
        assert all(left > right for left, right in zip(few, more, strict=True))
    assert max(errors[-1]) < 0.02


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "options",
    [PLAIN, LossOptions(0.1), LossOptions(0.1, 0.0, torch.arange(101) > 3), LossOptions(0.1, 1e-2)],
    ids=["plain", "smoothed", "smoothed-over-text", "both"],
)
def test_with_all_tokens_drawn_it_equals_the_softmax(bias, options):
    head = sampled_head(20_000, bias)
    hidden, labels = states()
    loss, grown = loss_and_gradients(head, hidden, labels, options)
    wanted, slopes = loss_and_gradients(head.eval(), hidden, labels, options)
    assert relative_error(loss, wanted) < 1e-10
    assert all(relative_error(left, right) < 1e-9 for left, right in zip(grown, slopes, strict=True))


@settings(deadline=None, max_examples=10)
@given(rows=st.integers(1, 29), seed=st.integers(0, 10**6))
def test_chunk_size_changes_nothing(rows, seed):
    head = sampled_head(31)
    hidden, labels = states()
    options = LossOptions(0.1, 1e-2)
    torch.manual_seed(seed)
    wanted, slopes = loss_and_gradients(head, hidden, labels, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("translume.heads.chunked_cross_entropy.CHUNK_ELEMENTS", 31 * rows)
        torch.manual_seed(seed)
        loss, grown = loss_and_gradients(head, hidden, labels, options)
    assert relative_error(loss, wanted) < 1e-12
    assert all(relative_error(left, right) < 1e-12 for left, right in zip(grown, slopes, strict=True))


@torch.no_grad()
def test_draws_follow_torchs_seed_as_dropout_does():
    head = sampled_head(11)
    hidden, labels = states()
    torch.manual_seed(3)
    first, second = (float(head.loss(hidden, labels, None, PLAIN).objective) for _ in range(2))
    torch.manual_seed(3)
    assert float(head.loss(hidden, labels, None, PLAIN).objective) == first != second
    with seeded_masks(7):
        third = float(head.loss(hidden, labels, None, PLAIN).objective)
    torch.manual_seed(4)
    with seeded_masks(7):
        assert float(head.loss(hidden, labels, None, PLAIN).objective) == third


@torch.no_grad()
def test_an_nll_is_given_in_evaluation_mode_only():
    head = sampled_head()
    hidden, labels = states()
    assert head.loss(hidden, labels, None, PLAIN).nll is None
    loss = head.eval().loss(hidden, labels, None, PLAIN)
    torch.testing.assert_close(loss.nll, -head.score(hidden, labels, None).sum())
    assert float(loss.objective) == float(loss.nll)


def test_a_label_that_is_the_only_drawn_token_costs_nothing():
    head = sampled_head(1)
    hidden, _ = states(rows=1)
    torch.manual_seed(0)
    drawn = head._draw(hidden).ids
    torch.manual_seed(0)
    loss, grown = loss_and_gradients(head, hidden, drawn)
    assert float(loss) == 0.0
    assert all(bool((each == 0).all()) for each in grown)


def test_no_labels_cost_nothing_and_large_states_give_finite_results():
    head = sampled_head(dtype=torch.float32)
    hidden, labels = states(rows=0, dtype=torch.float32)
    loss = head.loss(hidden, labels, None, LossOptions(0.1, 1e-3))
    assert (float(loss.objective.detach()), loss.tokens) == (0.0, 0)
    loss.objective.backward()
    hidden, labels = states(dtype=torch.float32, spread=300.0)
    loss, grown = loss_and_gradients(head, hidden, labels, LossOptions(0.1))
    assert bool(loss.isfinite())
    assert all(bool(each.isfinite().all()) for each in grown)


def test_the_loss_in_bf16_is_close_to_fp32():
    narrow = sampled_head(301, dtype=torch.bfloat16, vocabulary=1009, width=61)
    hidden, labels = states(rows=509, dtype=torch.bfloat16, vocabulary=1009, width=61)
    torch.manual_seed(2)
    loss, grown = loss_and_gradients(narrow, hidden, labels, LossOptions(0.1))
    torch.manual_seed(2)
    exact = hidden.detach().double().requires_grad_()
    wanted, slopes = loss_and_gradients(narrow.double(), exact, labels, LossOptions(0.1))
    assert loss.dtype == torch.float32
    assert relative_error(loss, wanted) < 1e-3
    assert all(relative_error(left, right) < 1e-2 for left, right in zip(grown, slopes, strict=True))


def test_no_tensor_of_rows_times_samples_is_created(monkeypatch):
    monkeypatch.setattr("translume.heads.chunked_cross_entropy.CHUNK_ELEMENTS", 31 * 1009)
    head = sampled_head(1024, vocabulary=1009, dtype=torch.float32)
    hidden, labels = states(rows=2003, dtype=torch.float32, vocabulary=1009)
    with LargestTensor() as largest:
        head.loss(hidden, labels, None, LossOptions(0.1)).objective.backward()
    assert 0 < largest.elements <= 31 * 1009
