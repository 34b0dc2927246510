"""The sigmoid head: one binary decision per token, compared with torch's loss, and not a distribution."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.heads.conftest import gradients, relative_error, states

from translume.belief import BeliefError, Bias, exact_topk
from translume.config import SigmoidSettings
from translume.heads.sigmoid import Decisions, SigmoidHead
from translume.model import HeadSizes, LossOptions

WIDTH, VOCABULARY, ROWS = 13, 101, 67
PLAIN = LossOptions()


def sigmoid_head(negatives=1.0, bias=True, dtype=torch.float64, vocabulary=VOCABULARY, width=WIDTH):
    torch.manual_seed(5)
    sizes = HeadSizes(width=width, vocabulary=vocabulary, source_vocabulary=vocabulary)
    head = SigmoidHead(SigmoidSettings(tie="none", negatives=negatives, bias=bias), sizes, None)
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    return head.to(dtype)


def by_torch(head, hidden, labels, negatives, smoothing=0.0, share=None):
    """Binary cross-entropy of every decision, by torch."""
    logits = F.linear(hidden, head.weight, head.bias) - math.log(head.vocabulary - 1)
    share = torch.full((head.vocabulary,), 1 / head.vocabulary, dtype=hidden.dtype) if share is None else share
    target = (1 - smoothing) * F.one_hot(labels, head.vocabulary).to(hidden.dtype) + smoothing * share
    yes = F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits), target, reduction="sum")
    no = F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits), 1 - target, reduction="sum")
    return yes + negatives * no


def test_one_label_of_three_worked_by_hand():
    head = SigmoidHead(
        SigmoidSettings(tie="none", negatives=0.5), HeadSizes(width=1, vocabulary=3, source_vocabulary=3), None
    )
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0], [0.0], [-1.0]]))
    # W h + b − ln 2: odds of e²/2, 1/2 and 1/(2e)
    odds = torch.tensor([math.exp(2) / 2, 0.5, math.exp(-1) / 2])
    sure = odds / (1 + odds)
    loss = head.loss(torch.ones(1, 1), torch.tensor([0]), None, PLAIN)
    assert float(loss.objective.detach()) == pytest.approx(float(-sure[0].log() - 0.5 * (1 - sure[1:]).log().sum()))
    assert loss.nll is None
    assert head.next_token(torch.ones(1, 1), None).log_probs()[0].tolist() == pytest.approx(sure.log().tolist())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("negatives", [1.0, 0.3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunks", [1, 7])
def test_loss_and_gradients_equal_torchs_binary_cross_entropy(monkeypatch, bias, negatives, smoothing, chunks):
    monkeypatch.setattr("translume.heads.chunked_cross_entropy.chunk_rows", lambda vocabulary: -(-ROWS // chunks))
    head = sigmoid_head(negatives, bias)
    hidden, labels = states()
    for smoothed in (None, torch.arange(VOCABULARY) > 3):
        share = None if smoothed is None else smoothed.double() / smoothed.sum()
        loss = head.loss(hidden, labels, None, LossOptions(smoothing, 0.0, smoothed)).objective
        wanted = by_torch(head, hidden, labels, negatives, smoothing, share)
        assert relative_error(loss.detach(), wanted.detach()) < 1e-12
        pairs = zip(gradients(3 * loss, hidden, head), gradients(3 * wanted, hidden, head), strict=True)
        assert all(relative_error(left, right) < 1e-10 for left, right in pairs)


@pytest.mark.parametrize("vocabulary", [11, 1009, 20011])
@torch.no_grad()
def test_a_uniform_prediction_costs_about_ln_v_and_alpha(vocabulary):
    head = sigmoid_head(vocabulary=vocabulary, bias=False, dtype=torch.float32)
    head.weight.zero_()
    hidden, labels = states(vocabulary=vocabulary, dtype=torch.float32)
    each = float(head.loss(hidden, labels, None, PLAIN).objective) / ROWS
    assert each == pytest.approx(math.log(vocabulary) - (vocabulary - 1) * math.log1p(-1 / vocabulary), rel=1e-5)
    probabilities = head.next_token(hidden, None).log_probs().exp()
    torch.testing.assert_close(probabilities, torch.full_like(probabilities, 1 / vocabulary))


@torch.no_grad()
def test_a_small_loss_is_not_lost_to_rounding():
    head = sigmoid_head(bias=False, dtype=torch.float32)
    hidden, labels = states(rows=1, dtype=torch.float32)
    head.weight.copy_(-20 * hidden / hidden.square().sum())
    head.weight[labels[0]].mul_(-1.5)
    wanted = by_torch(head.double(), hidden.double(), labels, 1.0)
    assert relative_error(head.float().loss(hidden, labels, None, PLAIN).objective, wanted) < 1e-4


def test_the_loss_in_bf16_is_close_to_fp32():
    head = sigmoid_head(dtype=torch.bfloat16, vocabulary=1009, width=61)
    hidden, labels = states(rows=509, dtype=torch.bfloat16, vocabulary=1009, width=61)
    loss = head.loss(hidden, labels, None, LossOptions(0.1)).objective
    grown = gradients(loss, hidden, head)
    exact = hidden.detach().double().requires_grad_()
    wanted = by_torch(head.double(), exact, labels, 1.0, 0.1)
    assert loss.dtype == torch.float32
    assert relative_error(loss.detach(), wanted.detach()) < 1e-3
    pairs = zip(grown, gradients(wanted, exact, head), strict=True)
    assert all(relative_error(left, right) < 1e-2 for left, right in pairs)


@torch.no_grad()
def test_a_score_reads_no_other_token():
    head = sigmoid_head()
    hidden, labels = states()
    before = head.score(hidden, labels, None)
    head.weight[~torch.isin(torch.arange(VOCABULARY), labels)] += 1
    assert torch.equal(head.score(hidden, labels, None), before)


def biases(draw, rows, size):
    count = draw(st.integers(0, 12))
    place = draw(st.lists(st.integers(0, rows - 1), min_size=count, max_size=count))
    ids = draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count))
    values = draw(st.lists(st.sampled_from([-math.inf, -2.0, -0.5, 1.5]), min_size=count, max_size=count))
    allowed = draw(st.sampled_from([None, (size,), (rows, size)]))
    generator = torch.Generator().manual_seed(count)
    mask = None if allowed is None else torch.rand(allowed, generator=generator) > 0.3
    pairs = (torch.tensor(place, dtype=torch.long), torch.tensor(ids, dtype=torch.long), torch.tensor(values))
    return draw(st.sampled_from([None, Bias(*pairs, mask)]))


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 13), st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 60.0]))
def test_topk_equals_the_full_ranking_with_a_bias(draws, k, seed, spread):
    """Rounded logits tie. Large logits give tied probabilities, although they differ."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(3, 211, generator=generator) * spread).round(decimals=1)
    bias = biases(draws.draw, 3, 211)
    belief = Decisions(logits)
    scores = belief.log_probs()
    ranks, ids = exact_topk(scores if bias is None else bias.add_to(scores), k)
    top = belief.topk(k, bias)
    assert torch.equal(top.ids, ids)
    torch.testing.assert_close(top.ranks_by, ranks)
    torch.testing.assert_close(top.log_probs, scores.gather(1, ids))


def test_samples_are_proportional_to_the_probabilities():
    belief = Decisions(torch.tensor([[1.0, -0.5, 0.3, -2.0]]))
    weights = belief.log_probs().exp()[0]
    bias = Bias.forbid(torch.tensor([0]), torch.tensor([2]))
    for temperature, forbidden in ((1.0, None), (0.5, None), (1.0, bias)):
        wanted = weights ** (1 / temperature)
        if forbidden is not None:
            wanted = wanted * torch.tensor([1.0, 1.0, 0.0, 1.0])
        uniforms = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(3))
        drawn = belief.sample(uniforms, temperature=temperature, bias=forbidden)
        found = drawn[0].bincount(minlength=4) / 20_000
        torch.testing.assert_close(found, wanted / wanted.sum(), rtol=0, atol=0.015)


def test_a_nan_is_refused_with_its_row():
    logits = torch.zeros(3, 5)
    logits[1, 2] = math.nan
    for read in (lambda belief: belief.topk(2), lambda belief: belief.log_probs()):
        with pytest.raises(BeliefError) as caught:
            read(Decisions(logits))
        assert str(caught.value) == "the head's logits of row 1 hold a NaN, an infinity or no finite number"
        assert caught.value.row == 1
    everything = Bias.only(torch.tensor([[True] * 5, [False] * 5]))
    with pytest.raises(BeliefError) as caught:
        Decisions(torch.zeros(2, 5)).sample(torch.zeros(2, 1), bias=everything)
    assert str(caught.value) == "every next token of row 1 is forbidden"
