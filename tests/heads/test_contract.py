"""Properties of all output heads. A new kind is covered as soon as its settings exist."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.heads.conftest import BUILDERS, LargestTensor, built, heads_with, relative_error

from translume.belief import Bias
from translume.model import LossOptions

ROWS = 67
PLAIN = LossOptions()
plain_heads = heads_with(lambda head: bool(head.plain()))
"""Linear softmax heads."""


def random_inputs(head, dtype=torch.float32, rows=ROWS, spread=1.5, width=13):
    """Hidden states, labels, and a context in which the rows belong to 5 sources of up to 11 tokens in turn."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(rows, width, generator=generator, dtype=torch.float64).mul(spread).to(dtype)
    labels = torch.randint(head.vocabulary, (rows,), generator=generator)
    source = torch.randint(4, head.vocabulary, (5, 11), generator=generator)
    source[:, 7] = source[:, 3]  # repeated tokens
    mask = torch.arange(11) < torch.tensor([11, 1, 9, 8, 0])[:, None]
    memory = torch.randn(5, 11, width, generator=generator, dtype=torch.float64).to(dtype)
    context = head.begin(source, mask, memory)
    return hidden, labels, None if context is None else context.select(torch.arange(rows) % 5)


def random_distribution(head):
    hidden, _, context = random_inputs(head)
    return head.next_token(hidden, context)


@torch.no_grad()
def test_score_equals_the_log_prob_of_the_distribution(make):
    head = make()
    hidden, labels, context = random_inputs(head)
    belief = head.next_token(hidden, context)
    assert (belief.rows, belief.size, belief.normalised) == (ROWS, head.vocabulary, head.normalised)
    score = head.score(hidden, labels, context)
    assert (score.shape, score.dtype) == ((ROWS,), torch.float32)
    torch.testing.assert_close(score, belief.log_probs().gather(1, labels[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(score, belief.log_prob_of(labels[:, None])[:, 0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_topk_equals_the_full_ranking(make):
    head = make()
    belief = random_distribution(head)
    for k in (1, 5, head.vocabulary):
        top = belief.topk(k)
        # The sort is stable, since torch's topk returns tied tokens, such as impossible ones, in no defined order.
        values, ids = (each[:, :k] for each in belief.log_probs().sort(descending=True, stable=True))
        assert torch.equal(top.ids, ids)
        torch.testing.assert_close(top.log_probs, values, rtol=1e-5, atol=1e-5)
    banned = belief.topk(1).ids[:, 0]
    rows = torch.arange(ROWS)
    top = belief.topk(3, Bias.forbid(rows, banned))
    assert not bool(((top.ids == banned[:, None]) & ~top.ranks_by.isneginf()).any())
    values = belief.log_probs().index_put((rows, banned), torch.tensor(-math.inf)).topk(3).values
    torch.testing.assert_close(top.ranks_by, values, rtol=1e-5, atol=1e-5)


@heads_with(lambda head: head.normalised)
@torch.no_grad()
def test_probabilities_sum_to_one(make):
    sums = random_distribution(make()).log_probs().double().exp().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


@torch.no_grad()
def test_samples_follow_the_distribution_temperature_and_bias(make):
    belief, count = random_distribution(make()), 3000
    best, rows = belief.topk(2).ids, torch.arange(ROWS)
    allowed = TEXT.repeat(ROWS, 1).scatter(1, best, value=True)  # some heads have only one possible token
    bias = Bias.join([Bias.forbid(rows, best[:, 1]), Bias(rows, best[:, 0], -torch.ones(ROWS)), Bias.only(allowed)])
    uniforms = torch.rand(ROWS, count, generator=torch.Generator().manual_seed(1))
    drawn = belief.sample(uniforms, temperature=1.3, bias=bias)
    expected = (bias.add_to(belief.log_probs()).double() / 1.3).softmax(-1) * count
    counts = torch.zeros_like(expected).scatter_add_(1, drawn, torch.ones(drawn.shape, dtype=torch.float64))
    assert (counts[expected == 0] == 0).all()
    often = expected > 5
    chi = float(((counts - expected).square() / expected)[often].sum())
    assert chi < float(often.sum()) + 5 * math.sqrt(2 * float(often.sum()))
    # The draws of a row depend only on its own uniform numbers.
    assert torch.equal(belief.sample(uniforms[:, :1], temperature=1.3, bias=bias), drawn[:, :1])


def test_the_nll_is_the_negated_sum_of_scores(make):
    head = make()
    hidden, labels, context = random_inputs(head)
    loss = head.loss(hidden, labels, context, PLAIN)
    assert loss.tokens == ROWS
    assert loss.objective.dtype == torch.float32
    if loss.nll is not None:
        torch.testing.assert_close(loss.nll, -head.score(hidden, labels, context).sum(), rtol=1e-5, atol=1e-4)
        assert not loss.nll.requires_grad
    if head.exact_loss:
        torch.testing.assert_close(loss.objective.detach(), loss.nll, rtol=1e-5, atol=1e-5)


def reference_loss(head, hidden, labels, context, options):
    """The loss by its definition, from the head's predicted distribution in fp64, and its gradients."""
    hidden = hidden.detach().double().requires_grad_()
    log_probs = head.next_token(hidden, context).log_probs()
    assert log_probs.dtype == torch.float64
    loss = -log_probs.gather(1, labels[:, None]).sum()
    if options.label_smoothing:
        allowed = slice(None) if options.smoothed is None else options.smoothed
        loss = (1 - options.label_smoothing) * loss - options.label_smoothing * log_probs[:, allowed].mean(-1).sum()
    if options.z_loss:
        logits = F.linear(hidden, head.plain()["weight"], head.plain().get("bias"))
        loss = loss + options.z_loss * logits.logsumexp(-1).square().sum()
    return loss, gradients(loss, hidden, head)


def found(head, hidden, labels, context, options):
    hidden = hidden.detach().requires_grad_()
    loss = head.loss(hidden, labels, context, options)
    return loss.objective, gradients(loss.objective, hidden, head)


def gradients(loss, hidden, head):
    """Gradients with respect to the hidden states and every parameter that the loss reads."""
    parameters = [hidden, *(parameter for parameter in head.parameters() if parameter.requires_grad)]
    return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True, retain_graph=True)


def loss_is_defined(head, options=PLAIN):
    """Return whether the loss of a head with these options is that of `reference_loss`."""
    smoothed, penalised = bool(options.label_smoothing), bool(options.z_loss)
    return head.exact_loss and (not smoothed or head.exact_smoothing) and (not penalised or bool(head.plain()))


def defined_losses(cases):
    """Parametrize `make` and `case` by the heads and cases, by name and with their options first, that they define."""
    pairs = [(head, case) for head in built() for case in cases if loss_is_defined(built()[head], cases[case][0])]
    values, names = [(BUILDERS[head], cases[case]) for head, case in pairs], ["-".join(pair) for pair in pairs]
    return pytest.mark.parametrize(("make", "case"), values, ids=names)


TEXT = torch.arange(101) > 3
OPTIONS = [PLAIN, LossOptions(0.1), LossOptions(0.1, 0.0, TEXT), LossOptions(0.0, 1e-2), LossOptions(0.1, 1e-3)]
NAMED = ["plain", "smoothed", "smoothed-over-text", "z", "both"]


@defined_losses(
    {
        **{name: (each, 7) for name, each in zip(NAMED, OPTIONS, strict=True)},
        "in-one-chunk": (OPTIONS[2], 1),
        "in-single-rows": (OPTIONS[4], 67),
    }
)
def test_loss_and_gradients_are_exact_for_any_chunk_size(make, monkeypatch, case):
    head, (options, chunks) = make(torch.float64), case
    monkeypatch.setattr("translume.heads.chunked_cross_entropy.chunk_rows", lambda vocabulary: -(-ROWS // chunks))
    hidden, labels, context = random_inputs(head, torch.float64)
    loss, grown = found(head, hidden, labels, context, options)
    wanted, slopes = reference_loss(head, hidden, labels, context, options)
    assert relative_error(loss, wanted) < 1e-10
    assert all(relative_error(left, right) < 1e-9 for left, right in zip(grown, slopes, strict=True))
    narrow = make(torch.float32)
    hidden, labels, context = random_inputs(narrow)
    loss, grown = found(narrow, hidden, labels, context, options)
    assert relative_error(loss, wanted) < 1e-5
    assert all(relative_error(left, right) < 2e-4 for left, right in zip(grown, slopes, strict=True))


@heads_with(lambda head: head.full_support)
def test_scores_have_the_negated_gradient_of_the_nll(make):
    head = make(torch.float64)
    hidden, labels, context = random_inputs(head, torch.float64)
    hidden.requires_grad_()
    grown = gradients(-head.score(hidden, labels, context).sum(), hidden, head)
    _, slopes = reference_loss(head, hidden, labels, context, PLAIN)
    assert all(relative_error(left, right) < 1e-9 for left, right in zip(grown, slopes, strict=True))


def test_every_label_gives_a_gradient(make):
    """In fairseq's adaptive loss, the second token of each tail got none."""
    head = make()
    labels = torch.arange(head.vocabulary)
    hidden, _, context = random_inputs(head, rows=head.vocabulary)
    hidden.requires_grad_()
    each = head.loss(hidden, labels, context, PLAIN).objective
    (grown,) = torch.autograd.grad(each, hidden)
    assert bool((grown.abs().sum(-1) > 0).all())


@plain_heads
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@torch.no_grad()
def test_a_uniform_prediction_costs_ln_v_with_any_smoothing(make, smoothing):
    head = make()
    for parameter in head.parameters():
        parameter.zero_()
    hidden, labels, context = random_inputs(head)
    loss = head.loss(hidden, labels, context, LossOptions(smoothing))
    assert float(loss.nll) / ROWS == pytest.approx(math.log(head.vocabulary), rel=1e-6)
    if head.exact_loss:
        assert float(loss.objective) == pytest.approx(float(loss.nll), rel=1e-6)


@plain_heads
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_logits_of_500_do_not_overflow(make, dtype):
    head = make(torch.float64)
    hidden, labels, context = random_inputs(head, torch.float64)
    logits = F.linear(hidden, head.plain()["weight"])
    hidden = (hidden * (500 / logits.abs().amax(-1, keepdim=True))).to(dtype)
    hidden[::2] *= -1
    head = head.to(dtype)
    loss, grown = found(head, hidden, labels, context, PLAIN)
    wanted, slopes = reference_loss(head.double(), hidden, labels, context, PLAIN)
    limit = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 5e-2}[dtype]
    if head.exact_loss:
        assert relative_error(loss, wanted) < min(limit, 5e-3)
        assert all(relative_error(left, right) < limit for left, right in zip(grown, slopes, strict=True))


def test_hidden_states_of_any_magnitude_give_finite_results(make):
    head = make()
    hidden, labels, context = random_inputs(head, spread=300.0)
    loss, grown = found(head, hidden, labels, context, LossOptions(0.1))
    assert bool(loss.isfinite())
    assert all(bool(each.isfinite().all()) for each in grown)
    assert not bool(head.next_token(hidden, context).log_probs().isnan().any())


@heads_with(lambda head: bool(head.plain()) and head.exact_loss)
def test_confident_rows_keep_their_gradient_in_bf16(make):
    """Where p_y > 0.999, the gradient p_y − 1 must not be lost to rounding."""
    head = make(torch.bfloat16, vocabulary=509, width=61)
    weight = head.plain()["weight"].detach().double()
    labels = torch.randint(509, (ROWS,), generator=torch.Generator().manual_seed(2))
    direction = weight[labels] / weight[labels].norm(dim=-1, keepdim=True)
    hidden = (18.0 * direction + torch.randn(ROWS, 61, dtype=torch.float64) * 0.05).to(torch.bfloat16)
    _, _, context = random_inputs(head, torch.bfloat16, width=61)
    with torch.no_grad():
        sure = head.next_token(hidden, context).log_prob_of(labels[:, None])[:, 0].exp() > 0.999
        hidden, labels = hidden[sure], labels[sure]
        context = None if context is None else context.select(sure.nonzero()[:, 0])
    assert len(labels) > ROWS // 2
    loss, grown = found(head, hidden, labels, context, PLAIN)
    wanted, slopes = reference_loss(head.double(), hidden, labels, context, PLAIN)
    assert relative_error(loss, wanted) < 1e-2
    assert all(relative_error(left, right) < 1e-2 for left, right in zip(grown, slopes, strict=True))


@defined_losses({"plain": (PLAIN,), "smoothed": (LossOptions(0.1),), "z": (LossOptions(0.1, 1e-3),)})
def test_the_loss_in_bf16_is_close_to_fp32(make, case):
    head, (options,) = make(torch.bfloat16, vocabulary=1009, width=61), case
    hidden, labels, context = random_inputs(head, torch.bfloat16, rows=509, width=61)
    loss, grown = found(head, hidden, labels, context, options)
    wide = head.double()
    _, _, context = random_inputs(wide, torch.float64, rows=509, width=61)
    wanted, slopes = reference_loss(wide, hidden, labels, context, options)
    exact = bool(head.plain())
    assert relative_error(loss, wanted) < (1e-3 if exact else 5e-3)
    assert all(
        relative_error(left, right) < (1e-2 if exact else 5e-2) for left, right in zip(grown, slopes, strict=True)
    )


def test_a_batch_without_labels_has_a_loss_of_zero(make):
    head = make()
    hidden, labels, context = random_inputs(head, rows=0)
    hidden.requires_grad_()
    loss = head.loss(hidden, labels, context, LossOptions(0.1, 1e-3))
    assert (float(loss.objective.detach()), loss.nll or 0.0, loss.tokens) == (0.0, 0.0, 0)
    loss.objective.backward()
    assert hidden.grad is not None
    assert head.score(hidden, labels, context).shape == (0,)


def test_no_tensor_of_rows_times_vocabulary_is_created(make, monkeypatch):
    monkeypatch.setattr("translume.heads.chunked_cross_entropy.CHUNK_ELEMENTS", 128 * 1009)
    head = make(vocabulary=1009)
    hidden, labels, context = random_inputs(head, rows=2003)
    hidden.requires_grad_()
    with LargestTensor() as largest:
        head.loss(hidden, labels, context, LossOptions(0.1)).objective.backward(retain_graph=True)  # of the context
        (-head.score(hidden, labels, context).sum()).backward()
    assert 0 < largest.elements <= 128 * 1009
