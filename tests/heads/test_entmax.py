"""α-entmax: the optimality conditions, values worked by hand, and bisection as a reference."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.heads.conftest import gradients, relative_error, states

from translume.belief import Bias, exact_topk
from translume.config import EntmaxSettings
from translume.decoding import BeamSearch, ForbidTokens, Greedy, MinimumLength, SearchError, search
from translume.heads.entmax import EntmaxHead, Sparse, threshold
from translume.model import HeadSizes, LossOptions

WIDTH, VOCABULARY, ROWS = 13, 101, 67
PLAIN = LossOptions()
alphas = st.sampled_from([1.05, 1.25, 1.5, 1.75, 2.0])
few = settings(deadline=None, max_examples=60)


def head_of(alpha=1.5, bias=True, dtype=torch.float64, vocabulary=VOCABULARY, width=WIDTH):
    torch.manual_seed(5)
    sizes = HeadSizes(width=width, vocabulary=vocabulary, source_vocabulary=vocabulary)
    head = EntmaxHead(EntmaxSettings(tie="none", alpha=alpha, bias=bias), sizes, None)
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    return head.to(dtype)


def random_logits(seed, rows=5, size=101, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=generator, dtype=torch.float64) * spread


def by_bisection(logits, alpha):
    """Probabilities [N, V] in fp64; τ is between peak − 1 and peak."""
    scores = logits.double() * (alpha - 1)
    low = scores.amax(-1, keepdim=True) - 1
    high = low + 1
    for _ in range(80):
        middle = (low + high) / 2
        enough = (scores - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return (scores - low).clamp(min=0).pow(1 / (alpha - 1))


def fenchel_young(hidden, head, labels, alpha, smoothing=0.0, share=None):
    """The Fenchel-Young loss, Ω*(l) + Ω(e_y) − l_y with Ω = −H_α, at the p of the bisection, plus ε (l_y − l̄)."""
    logits = F.linear(hidden, head.weight, head.bias)
    p = by_bisection(logits.detach(), alpha)
    entropy = (p - p.pow(alpha)).sum(-1) / (alpha * (alpha - 1))
    own = logits.gather(1, labels[:, None])[:, 0]
    # At the optimum p the gradient of Ω* with respect to the logits is p, as if p were constant (Danskin).
    loss = (p * logits).sum(-1) + entropy - own
    mean = logits.mean(-1) if share is None else logits @ share
    return (loss + smoothing * (own - mean)).sum()


@pytest.mark.parametrize(
    ("alpha", "logits", "wanted"),
    [
        (2.0, [0.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),
        (2.0, [1.0, 0.5, -1.0], [0.75, 0.25, 0.0]),  # τ = (1.5 − 1) / 2
        (2.0, [3.0, 1.0, 1.0], [1.0, 0.0, 0.0]),  # a lead of one or more takes all
        (2.0, [1.0, 0.8, 0.6, 0.0], [8 / 15, 1 / 3, 2 / 15, 0.0]),  # τ = 1.4 / 3
        (1.5, [0.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),
        (1.5, [2.0, 0.0, 0.0], [1.0, 0.0, 0.0]),  # a lead of two or more takes all
        # Of halves (0.7, 0.5): (0.7 − τ)² + (0.5 − τ)² = 1, τ = 0.6 − 0.7
        (1.5, [1.4, 1.0, -3.0], [0.64, 0.36, 0.0]),
    ],
)
def test_probabilities_worked_by_hand(alpha, logits, wanted):
    belief = Sparse(torch.tensor([logits]), alpha)
    assert belief.log_probs().exp()[0].tolist() == pytest.approx(wanted, abs=1e-6)
    assert [value == -math.inf for value in belief.log_probs()[0].tolist()] == [value == 0 for value in wanted]


def test_a_loss_worked_by_hand():
    head = EntmaxHead(
        EntmaxSettings(tie="none", alpha=2.0), HeadSizes(width=1, vocabulary=3, source_vocabulary=3), None
    )
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [0.5], [-1.0]]))
    # p = (¾, ¼, 0); H₂ = ½ (1 − 9/16 − 1/16) = 3/16
    for label, wanted in ((0, 0.25 * -0.5 + 3 / 16), (1, 0.75 * 0.5 + 3 / 16), (2, 0.75 * 2 + 0.25 * 1.5 + 3 / 16)):
        hidden = torch.ones(1, 1, requires_grad=True)
        loss = head.loss(hidden, torch.tensor([label]), None, PLAIN)
        assert float(loss.objective.detach()) == pytest.approx(wanted)
        assert loss.nll is None
        _, by_weight, _ = gradients(loss.objective, hidden, head)
        slopes = [0.75, 0.25, 0.0]
        slopes[label] -= 1
        assert by_weight[:, 0].tolist() == pytest.approx(slopes)


@few
@given(st.integers(0, 10**6), alphas, st.sampled_from([0.01, 1.0, 5.0, 100.0]), st.sampled_from([1, 2, 101, 1009]))
def test_probabilities_meet_the_optimality_conditions(seed, alpha, spread, size):
    """p maximises p·l + H_α(p): its gradient is equal on the support and not larger off it."""
    logits = random_logits(seed, size=size, spread=spread)
    p = Sparse(logits, alpha).log_probs().exp()
    torch.testing.assert_close(p.sum(-1), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-12)
    slope = logits - p.pow(alpha - 1) / (alpha - 1)  # of p·l + H_α, up to a constant
    for row in range(5):
        on, off = slope[row][p[row] > 0], slope[row][p[row] == 0]
        assert float(on.max() - on.min()) < 1e-9 * max(1.0, float(logits.abs().max()))
        assert not len(off) or float(off.max()) <= float(on.min()) + 1e-9


@few
@given(st.integers(0, 10**6), alphas, st.sampled_from([0.1, 2.0, 30.0]), st.sampled_from([2, 101, 1009]))
def test_probabilities_equal_those_of_bisection_in_fp64_and_fp32(seed, alpha, spread, size):
    logits = random_logits(seed, size=size, spread=spread)
    wanted = by_bisection(logits, alpha)
    torch.testing.assert_close(Sparse(logits, alpha).log_probs().exp(), wanted, rtol=1e-9, atol=1e-12)
    narrow = Sparse(logits.float(), alpha).log_probs()
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.exp().double(), by_bisection(logits.float(), alpha), rtol=1e-4, atol=2e-6)


def test_alpha_close_to_one_gives_the_softmax():
    logits = random_logits(3)
    torch.testing.assert_close(Sparse(logits, 1 + 1e-6).log_probs(), logits.log_softmax(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 20011])
@pytest.mark.parametrize("power", [1.0, 2.0, 20.0])
def test_newtons_method_converges_for_equal_logits(power, size):
    tau = threshold(torch.zeros(3, size), power)
    torch.testing.assert_close(tau, torch.full((3, 1), -(size ** (-1 / power))))


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunks", [1, 7])
def test_loss_and_gradients_match_the_definition(monkeypatch, alpha, bias, smoothing, chunks):
    monkeypatch.setattr("translume.heads.chunked_cross_entropy.chunk_rows", lambda vocabulary: -(-ROWS // chunks))
    head = head_of(alpha, bias)
    hidden, labels = states()
    for smoothed in (None, torch.arange(VOCABULARY) > 3):
        share = None if smoothed is None else smoothed.double() / smoothed.sum()
        loss = head.loss(hidden, labels, None, LossOptions(smoothing, 0.0, smoothed)).objective
        wanted = fenchel_young(hidden, head, labels, alpha, smoothing, share)
        assert relative_error(loss.detach(), wanted.detach()) < 1e-12
        pairs = zip(gradients(3 * loss, hidden, head), gradients(3 * wanted, hidden, head), strict=True)
        assert all(relative_error(left, right) < 1e-9 for left, right in pairs)


def test_the_loss_in_bf16_is_close_to_fp32():
    head = head_of(dtype=torch.bfloat16, vocabulary=1009, width=61)
    hidden, labels = states(rows=509, dtype=torch.bfloat16, vocabulary=1009, width=61)
    loss = head.loss(hidden, labels, None, LossOptions(0.1)).objective
    grown = gradients(loss, hidden, head)
    exact = hidden.detach().double().requires_grad_()
    wanted = fenchel_young(exact, head.double(), labels, 1.5, 0.1)
    assert relative_error(loss.detach(), wanted.detach()) < 1e-3
    pairs = zip(grown, gradients(wanted, exact, head), strict=True)
    assert all(relative_error(left, right) < 1e-2 for left, right in pairs)


@torch.no_grad()
def test_a_certain_and_correct_head_has_a_loss_of_zero():
    head = head_of(bias=False)
    hidden, labels = states(rows=1)
    head.weight.copy_(-20 * hidden / hidden.square().sum())
    head.weight[labels[0]].neg_()
    assert float(head.loss(hidden, labels, None, PLAIN).objective) == 0.0
    assert float(head.score(hidden, labels, None)) == 0.0


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_finite_scores_have_the_gradient_of_the_log_probabilities(alpha):
    head = head_of(alpha)
    hidden, _ = states()
    rows = torch.arange(ROWS)
    with torch.no_grad():
        labels = F.linear(hidden, head.weight, head.bias).sort(descending=True).indices[rows, rows % 61]
    score = head.score(hidden, labels, None)
    assert bool(score.isneginf().any() and score.isfinite().any())
    total = score[score.isfinite()].sum()
    step, direction = 1e-6, torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (grown,) = torch.autograd.grad(total, hidden)
    assert bool(grown.isfinite().all())
    with torch.no_grad():
        ahead, behind = (head.score(hidden + sign * step * direction, labels, None) for sign in (1, -1))
        slope = (ahead - behind)[score.isfinite()].sum() / (2 * step)
    assert float((grown * direction).sum()) == pytest.approx(float(slope), rel=1e-4)


@settings(deadline=None, max_examples=60)
@given(st.data(), alphas, st.integers(1, 13), st.integers(0, 10**6), st.sampled_from([0.3, 2.0, 9.0]))
def test_topk_equals_the_full_ranking_with_a_bias(draws, alpha, k, seed, spread):
    logits = random_logits(seed, 3, 211, spread).float().round(decimals=1)
    count = draws.draw(st.integers(0, 9))
    place = torch.tensor(draws.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), dtype=torch.long)
    ids = logits.topk(20).indices[place, torch.arange(count) % 20]
    values = draws.draw(st.lists(st.sampled_from([-math.inf, -2.0, -0.5, 1.5]), min_size=count, max_size=count))
    bias = draws.draw(st.sampled_from([None, Bias(place, ids, torch.tensor(values))]))
    belief = Sparse(logits, alpha)
    scores = belief.log_probs()
    ranks, wanted = exact_topk(scores if bias is None else bias.add_to(scores), k)
    top = belief.topk(k, bias)
    torch.testing.assert_close(top.ranks_by, ranks, rtol=1e-5, atol=1e-5)
    assert torch.equal(top.ids, wanted)
    torch.testing.assert_close(top.log_probs, scores.gather(1, wanted), rtol=1e-5, atol=1e-5)


class Fixed:
    """State of a step that always predicts the same distribution."""

    def select(self, rows):
        return self


def step_of(logits, alpha=1.5):
    def step(prefix, state):
        return Sparse(torch.tensor(logits).expand(prefix.size(0), -1), alpha), state

    return step


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(width=3), BeamSearch(width=5, nbest=5)], ids=str)
def test_a_search_works_with_fewer_possible_tokens_than_its_width(strategy):
    """Two tokens are possible, one of them EOS; hypotheses rank by log-probability per token."""
    found = search(
        step_of([-9.0, 1.0, 1.4, -3.0, -3.0, -9.0, -9.0]), Fixed(), bos=0, eos=1, strategy=strategy,
        limits=torch.tensor([3, 1]), rules=[ForbidTokens((0,))],
    )  # fmt: skip
    if strategy.nbest > 1:
        wanted = [((2, 2, 2), "length"), ((2, 2, 1), "eos"), ((2, 1), "eos"), ((1,), "eos")]
        assert [(each.tokens, each.finished_by) for each in found[0]] == wanted
        assert [(each.tokens, each.finished_by) for each in found[1]] == [((2,), "length"), ((1,), "eos")]
    for sentence in found:
        for each in sentence:
            assert math.isfinite(each.score)
            assert each.log_prob == pytest.approx(sum(math.log({1: 0.36, 2: 0.64}[token]) for token in each.tokens))


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(width=3)], ids=str)
def test_a_search_without_an_allowed_possible_token_raises(strategy):
    with pytest.raises(SearchError) as caught:
        search(
            step_of([0.0, 9.0, 0.0, 0.0]), Fixed(), bos=0, eos=1, strategy=strategy, limits=torch.tensor([3]),
            rules=[MinimumLength(1)],
        )  # fmt: skip
    assert caught.value.reason == (
        "every next token is impossible or forbidden, expected one that is neither (rules: MinimumLength)"
    )
