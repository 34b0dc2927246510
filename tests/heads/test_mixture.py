"""The mixture of softmaxes: correct in log space for components of any confidence."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.heads.conftest import LargestTensor, relative_error

from translume.belief import BeliefError, Bias
from translume.config import MixtureSettings
from translume.heads.mixture import MixtureHead
from translume.model import HeadSizes, LossOptions

WIDTH, VOCABULARY, ROWS = 13, 101, 67
PLAIN = LossOptions()
TEXT = torch.arange(VOCABULARY) > 3
few = settings(deadline=None, max_examples=30)


def mixture_head(components=3, dtype=torch.float64, spread=1.0, seed=5, bias=True):
    """A head whose components and prior have logits of scale `spread`."""
    torch.manual_seed(seed)
    sizes = HeadSizes(width=WIDTH, vocabulary=VOCABULARY, source_vocabulary=VOCABULARY)
    head = MixtureHead(MixtureSettings(tie="none", components=components, bias=bias), sizes, None)
    with torch.no_grad():
        head.prior.weight.normal_(std=spread)
        head.weight.mul_(spread)
        if head.bias is not None:
            head.bias.normal_()
    return head.to(dtype)


def states(rows=ROWS, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return hidden.requires_grad_(), torch.randint(VOCABULARY, (rows,), generator=generator)


def by_definition(head, hidden):
    """[n, V]: log Σ_k π_k softmax(W tanh(A_k h) + b), one component at a time, from probabilities in fp64."""
    head, hidden = head.double(), hidden.double()
    priors = F.linear(hidden, head.prior.weight).softmax(-1)
    total = 0.0
    for number, matrix in enumerate(head.map.weight.split(WIDTH)):
        logits = F.linear((hidden @ matrix.T).tanh(), head.weight, head.bias)
        total = total + priors[:, number, None] * logits.softmax(-1)
    return total.log()


@few
@given(
    components=st.integers(1, 5),
    spread=st.sampled_from([0.1, 1.0, 3.0]),
    seed=st.integers(0, 99),
    bias=st.booleans(),
    options=st.builds(
        LossOptions, st.sampled_from([0.0, 0.1, 0.9]), st.sampled_from([0.0, 1e-2]), st.sampled_from([None, TEXT])
    ),
)
def test_loss_and_gradients_match_the_definition(components, spread, seed, bias, options):
    head = mixture_head(components, spread=spread, seed=seed, bias=bias)
    hidden, labels = states(seed=seed)
    wanted = by_definition(head, hidden)
    nll = -wanted.gather(1, labels[:, None]).sum()
    smoothed = wanted if options.smoothed is None else wanted[:, options.smoothed]
    objective = (1 - options.label_smoothing) * nll - options.label_smoothing * smoothed.mean(-1).sum()
    logits = F.linear(head.map(hidden).view(ROWS, components, WIDTH).tanh(), head.weight, head.bias)
    objective = objective + options.z_loss * logits.logsumexp(-1).square().mean(-1).sum()
    loss = head.loss(hidden, labels, None, options)
    assert relative_error(loss.objective, objective) < 1e-11
    assert relative_error(loss.nll, nll) < 1e-11
    learnt = [hidden, *head.parameters()]
    found = torch.autograd.grad(3.0 * loss.objective, learnt)
    slopes = torch.autograd.grad(3.0 * objective, learnt)
    for left, right in zip(found, slopes, strict=True):
        assert float((left - right).norm()) < 1e-9 * max(1.0, float(right.norm()))
    torch.testing.assert_close(head.next_token(hidden, None).log_probs(), wanted, rtol=1e-10, atol=1e-10)


@few
@given(seed=st.integers(0, 99), k=st.integers(1, 12), chosen=st.integers(0, VOCABULARY - 1))
@torch.no_grad()
def test_topk_is_exact_under_any_bias(seed, k, chosen):
    belief = mixture_head(seed=seed).next_token(states(seed=seed)[0], None)
    rows = torch.arange(ROWS)
    bias = Bias(rows, rows * 0 + chosen, torch.linspace(-3.0, 3.0, ROWS), TEXT)
    ranks = bias.add_to(belief.log_probs())
    top = belief.topk(k, bias)
    assert torch.equal(top.ids, ranks.sort(descending=True, stable=True).indices[:, :k])
    torch.testing.assert_close(top.ranks_by.double(), ranks.gather(1, top.ids), rtol=1e-6, atol=1e-6)


def test_one_component_equals_a_softmax_of_tanh():
    head = mixture_head(1)
    hidden, labels = states()
    wanted = F.cross_entropy(F.linear(head.map(hidden).tanh(), head.weight, head.bias), labels, reduction="sum")
    assert relative_error(head.loss(hidden, labels, None, PLAIN).objective, wanted) < 1e-12


def test_two_components_worked_by_hand():
    """π = (¼, ¾). Over three tokens, one component gives (½, ¼, ¼), the other (⅛, ⅛, ¾)."""
    sizes = HeadSizes(width=1, vocabulary=3, source_vocabulary=3)
    head = MixtureHead(MixtureSettings(tie="none", components=2, bias=True), sizes, None).double()
    with torch.no_grad():
        head.prior.weight.copy_(torch.tensor([[0.0], [math.log(3.0)]]))
        head.map.weight.copy_(torch.tensor([[0.0], [1.0]]))
        head.bias.copy_(torch.tensor([0.5, 0.25, 0.25]).log())
        change = torch.tensor([[0.125], [0.125], [0.75]]).log() - head.bias[:, None]
        head.weight.copy_(change / math.tanh(1.0))
    found = head.next_token(torch.ones(1, 1, dtype=torch.float64), None).log_probs()[0].exp()
    assert found.tolist() == pytest.approx([7 / 32, 5 / 32, 20 / 32], abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_very_unlikely_tokens_keep_their_log_probability_and_gradient(dtype):
    """log(p + 1e-8), as in the authors' code, would give −18.4 for all less likely tokens, without a gradient."""
    head = mixture_head(dtype=dtype, spread=40.0)
    hidden, _ = states(dtype=dtype)
    log_probs = head.next_token(hidden, None).log_probs()
    labels = log_probs.argmin(-1)
    score = head.score(hidden, labels, None)
    assert bool((score < -40).all())
    torch.testing.assert_close(score, log_probs.gather(1, labels[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    for options in (PLAIN, LossOptions(0.1)):
        loss = head.loss(hidden, labels, None, options)
        (slope,) = torch.autograd.grad(loss.objective, hidden)
        assert float(loss.nll) > 40 * ROWS
        assert bool((slope.norm(dim=-1) > 1e-3).all())


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 1000.0])
@torch.no_grad()
def test_probabilities_sum_to_one_for_components_of_any_confidence(spread):
    head = mixture_head(dtype=torch.float32, spread=spread)
    log_probs = head.next_token(states(dtype=torch.float32)[0] * 10, None).log_probs()
    assert bool(log_probs.isfinite().all())
    sums = log_probs.double().exp().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [PLAIN, LossOptions(0.1)], ids=["plain", "smoothed"])
def test_low_precision_weights_cost_little_accuracy(options):
    head = mixture_head(dtype=torch.bfloat16, spread=1.0)
    hidden, labels = states(dtype=torch.bfloat16)
    loss = head.loss(hidden, labels, None, options)
    found = torch.autograd.grad(loss.objective, [hidden, *head.parameters()])
    assert all(left.dtype == torch.bfloat16 for left in found)
    wide = mixture_head(dtype=torch.bfloat16, spread=1.0).double()
    truth = hidden.detach().double().requires_grad_()
    wanted = wide.loss(truth, labels, None, options)
    slopes = torch.autograd.grad(wanted.objective, [truth, *wide.parameters()])
    assert relative_error(loss.objective, wanted.objective) < 5e-3
    assert all(relative_error(left, right) < 5e-2 for left, right in zip(found, slopes, strict=True))


def test_a_nan_is_refused_with_its_row():
    head = mixture_head(dtype=torch.float32)
    hidden, _ = states(dtype=torch.float32)
    with torch.no_grad():
        hidden[7, 3] = math.nan
    with pytest.raises(BeliefError) as caught:
        head.next_token(hidden, None).topk(1)
    assert (caught.value.row, str(caught.value)) == (
        7,
        "the head's logits of row 7 hold a NaN, an infinity or no finite number",
    )


def test_all_components_together_use_no_more_memory_than_a_chunk(monkeypatch):
    monkeypatch.setattr("translume.heads.chunked_cross_entropy.CHUNK_ELEMENTS", 128 * VOCABULARY)
    head = mixture_head(11)
    hidden, labels = states(rows=89)
    with LargestTensor() as largest:
        head.loss(hidden, labels, None, LossOptions(0.1)).objective.backward()
    assert 0 < largest.elements <= 128 * VOCABULARY
