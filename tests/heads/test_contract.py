"""What every output head promises; a new kind is covered as soon as its settings exist."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from translume.belief import Bias
from translume.model import LossOptions

ROWS = 67
PLAIN = LossOptions()


def given(head, dtype=torch.float32, rows=ROWS, spread=1.5):
    generator = torch.Generator().manual_seed(1)
    width = next(head.parameters()).size(-1) if not head.plain() else head.plain()["weight"].size(1)
    hidden = torch.randn(rows, width, generator=generator, dtype=torch.float64).mul(spread).to(dtype)
    return hidden, torch.randint(head.vocabulary, (rows,), generator=generator)


@torch.no_grad()
def test_score_is_what_the_belief_says(make):
    head = make()
    hidden, labels = given(head)
    belief = head.next_token(hidden, None)
    assert (belief.rows, belief.size, belief.normalised) == (ROWS, head.vocabulary, head.normalised)
    score = head.score(hidden, labels, None)
    assert (score.shape, score.dtype) == ((ROWS,), torch.float32)
    torch.testing.assert_close(score, belief.log_probs().gather(1, labels[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(score, belief.log_prob_of(labels[:, None])[:, 0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_best_tokens_are_those_of_the_whole_belief(make):
    head = make()
    belief = head.next_token(given(head)[0], None)
    for k in (1, 5, head.vocabulary):
        top = belief.topk(k)
        values, ids = belief.log_probs().topk(k)
        assert torch.equal(top.ids, ids)
        torch.testing.assert_close(top.log_probs, values, rtol=1e-5, atol=1e-5)
    banned = belief.topk(1).ids[:, 0]
    rows = torch.arange(ROWS)
    top = belief.topk(3, Bias.forbid(rows, banned))
    assert not bool((top.ids == banned[:, None]).any())
    values = belief.log_probs().index_put((rows, banned), torch.tensor(-math.inf)).topk(3).values
    torch.testing.assert_close(top.log_probs, values, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_probabilities_sum_to_one(make):
    head = make()
    if not head.normalised:
        pytest.skip("this head is no distribution")
    sums = head.next_token(given(head)[0], None).log_probs().double().exp().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


def test_the_nll_is_minus_the_scores(make):
    head = make()
    hidden, labels = given(head)
    loss = head.loss(hidden, labels, None, PLAIN)
    assert loss.tokens == ROWS
    assert loss.objective.dtype == torch.float32
    if loss.nll is not None:
        torch.testing.assert_close(loss.nll, -head.score(hidden, labels, None).sum(), rtol=1e-5, atol=1e-4)
        assert not loss.nll.requires_grad
    if head.exact_loss:
        torch.testing.assert_close(loss.objective.detach(), loss.nll, rtol=1e-6, atol=1e-6)


def reference(head, hidden, labels, options):
    """The loss of a linear softmax head in fp64, by torch's own functions."""
    plain = {name: value.detach().double().requires_grad_() for name, value in head.plain().items()}
    hidden = hidden.detach().double().requires_grad_()
    logits = F.linear(hidden, plain["weight"], plain.get("bias"))
    loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=options.label_smoothing)
    loss = loss + options.z_loss * logits.logsumexp(-1).square().sum()
    return loss, torch.autograd.grad(loss, [hidden, *plain.values()])


def found(head, hidden, labels, options):
    hidden = hidden.detach().requires_grad_()
    loss = head.loss(hidden, labels, None, options)
    return loss.objective, torch.autograd.grad(loss.objective, [hidden, *head.plain().values()])


def relative(left, right):
    left, right = left.detach().double(), right.detach().double()
    return float((left - right).norm() / right.norm())


OPTIONS = [PLAIN, LossOptions(0.1), LossOptions(0.0, 1e-2), LossOptions(0.1, 1e-3)]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: f"{each.label_smoothing}-{each.z_loss}")
@pytest.mark.parametrize("chunks", [1, 7, 67])
def test_loss_and_gradients_are_exact_in_any_chunks(make, monkeypatch, options, chunks):
    head = make(torch.float64)
    if not head.plain():
        pytest.skip("no linear softmax head")
    monkeypatch.setattr("translume.heads.lse_pick.chunk_rows", lambda vocabulary: -(-ROWS // chunks))
    hidden, labels = given(head, torch.float64)
    (loss, grown), (wanted, slopes) = found(head, hidden, labels, options), reference(head, hidden, labels, options)
    assert relative(loss, wanted) < 1e-10
    assert all(relative(left, right) < 1e-10 for left, right in zip(grown, slopes, strict=True))
    (loss, grown) = found(make(torch.float32), hidden.float(), labels, options)
    assert relative(loss, wanted) < 1e-5
    assert all(relative(left, right) < 1e-4 for left, right in zip(grown, slopes, strict=True))


def test_scores_have_the_gradient_of_the_nll(make):
    head = make(torch.float64)
    if not head.plain():
        pytest.skip("no linear softmax head")
    hidden, labels = given(head, torch.float64)
    hidden.requires_grad_()
    grown = torch.autograd.grad(-head.score(hidden, labels, None).sum(), [hidden, *head.plain().values()])
    _, slopes = reference(head, hidden, labels, PLAIN)
    assert all(relative(left, right) < 1e-10 for left, right in zip(grown, slopes, strict=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@torch.no_grad()
def test_knowing_nothing_costs_ln_v_whatever_the_smoothing(make, smoothing):
    head = make()
    for parameter in head.parameters():
        parameter.zero_()
    hidden, labels = given(head)
    loss = head.loss(hidden, labels, None, LossOptions(smoothing))
    assert float(loss.nll) / ROWS == pytest.approx(math.log(head.vocabulary), rel=1e-6)
    if head.exact_loss:
        assert float(loss.objective) == pytest.approx(float(loss.nll), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_logits_of_500_overflow_nowhere(make, dtype):
    head = make(torch.float64)
    if not head.plain():
        pytest.skip("no linear softmax head")
    hidden, labels = given(head, torch.float64)
    logits = F.linear(hidden, head.plain()["weight"])
    hidden = (hidden * (500 / logits.abs().amax(-1, keepdim=True))).to(dtype)
    hidden[::2] *= -1
    head = head.to(dtype)
    (loss, grown), (wanted, slopes) = found(head, hidden, labels, PLAIN), reference(head, hidden, labels, PLAIN)
    limit = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 5e-2}[dtype]
    assert relative(loss, wanted) < min(limit, 5e-3)
    assert all(relative(left, right) < limit for left, right in zip(grown, slopes, strict=True))


def test_sure_rows_keep_their_gradient_in_bf16(make):
    """Where p_y > 0.999, p_y − 1 must not be what is left of rounding."""
    head = make(torch.bfloat16, vocabulary=509, width=61)
    if not head.plain():
        pytest.skip("no linear softmax head")
    weight = head.plain()["weight"].detach().double()
    labels = torch.randint(509, (ROWS,), generator=torch.Generator().manual_seed(2))
    direction = weight[labels] / weight[labels].norm(dim=-1, keepdim=True)
    hidden = (18.0 * direction + torch.randn(ROWS, 61, dtype=torch.float64) * 0.05).to(torch.bfloat16)
    with torch.no_grad():
        sure = head.next_token(hidden, None).log_prob_of(labels[:, None])[:, 0].exp() > 0.999
        hidden, labels = hidden[sure], labels[sure]
    assert len(labels) > ROWS // 2
    (loss, grown), (wanted, slopes) = found(head, hidden, labels, PLAIN), reference(head, hidden, labels, PLAIN)
    assert relative(loss, wanted) < 1e-2
    assert all(relative(left, right) < 1e-2 for left, right in zip(grown, slopes, strict=True))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: f"{each.label_smoothing}-{each.z_loss}")
def test_the_loss_in_bf16_is_the_loss(make, options):
    head = make(torch.bfloat16, vocabulary=1009, width=61)
    if not head.plain():
        pytest.skip("no linear softmax head")
    hidden, labels = given(head, torch.bfloat16, rows=509)
    (loss, grown), (wanted, slopes) = found(head, hidden, labels, options), reference(head, hidden, labels, options)
    assert relative(loss, wanted) < 1e-3
    assert all(relative(left, right) < 1e-2 for left, right in zip(grown, slopes, strict=True))


def test_no_labels_cost_nothing(make):
    head = make()
    hidden, labels = given(head, rows=0)
    hidden.requires_grad_()
    loss = head.loss(hidden, labels, None, LossOptions(0.1, 1e-3))
    assert (float(loss.objective.detach()), float(loss.nll), loss.tokens) == (0.0, 0.0, 0)
    loss.objective.backward()
    assert hidden.grad is not None
    assert head.score(hidden, labels, None).shape == (0,)


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return result


def test_rows_times_vocabulary_is_never_held(make, monkeypatch):
    monkeypatch.setattr("translume.heads.lse_pick.CHUNK_ELEMENTS", 128 * 1009)
    head = make(vocabulary=1009)
    hidden, labels = given(head, rows=2003)
    hidden.requires_grad_()
    with Largest() as largest:
        head.loss(hidden, labels, None, LossOptions(0.1, 1e-3)).objective.backward()
        (-head.score(hidden, labels, None).sum()).backward()
    assert 0 < largest.elements <= 128 * 1009
