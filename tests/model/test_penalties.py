"""Regularisation terms of the loss, compared with their definitions."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from translume.checkpoint.building import build_model
from translume.config import CopySettings, ModelSettings, ProjectedSettings, SoftmaxSettings, TrainingSettings
from translume.model import LossOptions
from translume.model.penalties import divergence, entropy
from translume.text import SpecialIds
from translume.training.optimisation import loss_options

V = 19
SETTINGS = {
    "width": 12, "feed_forward": 23, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 2,
    "max_positions": 29,
}  # fmt: skip


def build(head=None, dropout=0.0):
    torch.manual_seed(5)
    return build_model(ModelSettings(**SETTINGS, dropout=dropout, head=head or SoftmaxSettings()), V, V)


def sentences():
    generator = torch.Generator().manual_seed(7)
    source, target, labels = (torch.randint(4, V, (3, 7), generator=generator) for _ in range(3))
    mask = torch.arange(7) < torch.tensor([7, 5, 2])[:, None]
    return source, mask, target, labels, mask


@pytest.mark.parametrize("head", [SoftmaxSettings(), ProjectedSettings()], ids=["softmax", "projected"])
@given(chunk=st.integers(1, 13))
def test_entropy_and_divergence_match_their_definitions_for_any_chunk_size(head, chunk):
    model = build(head).double()
    first, second = torch.randn(2, 13, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    p, q = (model.head.next_token(each, None).log_probs() for each in (first, second))
    wanted = -(p.exp() * p).sum()
    apart = F.kl_div(q, p, log_target=True, reduction="sum") + F.kl_div(p, q, log_target=True, reduction="sum")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("translume.model.penalties.CHUNK_ELEMENTS", chunk * V)
        torch.testing.assert_close(entropy(model.head, first, None), wanted)
        torch.testing.assert_close(divergence(model.head, first, second), apart)
        parameters = [each for each in model.head.parameters() if each.requires_grad]
        total = entropy(model.head, first, None) + divergence(model.head, first, second)
        grown = torch.autograd.grad(total, parameters)
    for left, right in zip(grown, torch.autograd.grad(wanted + apart, parameters), strict=True):
        torch.testing.assert_close(left, right)


def test_a_confidence_penalty_subtracts_the_entropy_from_the_loss():
    model, data = build().double().eval(), sentences()
    plain, with_penalties = model.loss(*data), model.loss(*data, LossOptions(confidence_penalty=0.3))
    hidden, *_ = model._teacher_forced(*data[:3], data[4])
    log_probs = model.head.next_token(hidden, None).log_probs()
    wanted = plain.objective + 0.3 * (log_probs.exp() * log_probs).sum()
    torch.testing.assert_close(with_penalties.objective, wanted)
    assert (with_penalties.nll, with_penalties.tokens) == (plain.nll, 14)


def test_two_passes_without_dropout_equal_one_pass():
    model, data = build().double(), sentences()
    plain, twice = model.loss(*data), model.loss(*data, LossOptions(0.1, r_drop=5.0))
    torch.testing.assert_close(twice.objective, model.loss(*data, LossOptions(0.1)).objective)
    torch.testing.assert_close(twice.nll, plain.nll)
    assert twice.tokens == plain.tokens == 14


def test_each_of_two_passes_reads_its_own_memory():
    model, data = build(CopySettings(), dropout=0.4), sentences()
    source, mask, target, labels, _ = (torch.cat([each, each]) for each in data)
    torch.manual_seed(3)
    found = model.loss(*data, LossOptions(r_drop=5.0))
    torch.manual_seed(3)
    hidden, layout, context, *_ = model._teacher_forced(source, mask, target, mask)
    p, q = model.head.next_token(hidden, context).log_probs().chunk(2)
    nll = -torch.cat([p, q]).gather(1, layout.pack(labels)[:, None]).sum() / 2
    apart = F.kl_div(q, p, log_target=True, reduction="sum") + F.kl_div(p, q, log_target=True, reduction="sum")
    torch.testing.assert_close(found.objective, nll + 5.0 / 4 * apart)


def test_r_drop_adds_the_divergence_of_two_passes():
    model, data = build(dropout=0.4), sentences()
    source, mask, target, labels, _ = (torch.cat([each, each]) for each in data)
    torch.manual_seed(3)
    found = model.loss(*data, LossOptions(r_drop=5.0))
    torch.manual_seed(3)
    hidden, layout, *_ = model._teacher_forced(source, mask, target, mask)
    log_probs = model.head.next_token(hidden, None).log_probs()
    p, q = log_probs.chunk(2)
    nll = -log_probs.gather(1, layout.pack(labels)[:, None]).sum() / 2
    apart = F.kl_div(q, p, log_target=True, reduction="sum") + F.kl_div(p, q, log_target=True, reduction="sum")
    assert float(apart.detach()) > 0.01
    torch.testing.assert_close(found.objective, nll + 5.0 / 4 * apart)
    torch.testing.assert_close(found.nll, nll.detach())


SPECIALS = SpecialIds(pad=0, bos=1, eos=2, unk=3)


@pytest.mark.parametrize("over", ["all", "others", "text"])
def test_label_smoothing_follows_the_named_definition(over):
    """The target distribution of each definition, written out."""
    epsilon, model, data = 0.2, build().double().eval(), sentences()
    options = loss_options(TrainingSettings(label_smoothing=epsilon, label_smoothing_over=over), V, SPECIALS)
    hidden, layout, *_ = model._teacher_forced(*data[:3], data[4])
    labels = layout.pack(data[3])
    spread = torch.full((14, V), epsilon / V, dtype=torch.float64)
    kept = 1 - epsilon
    if over == "others":
        spread = torch.full_like(spread, epsilon / (V - 1)).scatter_(1, labels[:, None], 0.0)
    if over == "text":
        spread = torch.full_like(spread, epsilon / (V - 3))
        spread[:, [0, 1, 3]] = 0.0
    wanted = spread.scatter_add_(1, labels[:, None], torch.full((14, 1), kept, dtype=torch.float64))
    torch.testing.assert_close(wanted.sum(-1), torch.ones(14, dtype=torch.float64))
    loss = -(wanted * model.head.next_token(hidden, None).log_probs()).sum()
    torch.testing.assert_close(model.loss(*data, options).objective, loss)


BART = SpecialIds(pad=1, bos=2, eos=2, unk=3)


@pytest.mark.parametrize(("specials", "left_out"), [(SPECIALS, {0, 1, 3}), (BART, {1, 3})])
def test_smoothing_over_text_keeps_a_begin_mark_that_is_the_end_mark(specials, left_out):
    options = loss_options(TrainingSettings(label_smoothing=0.1, label_smoothing_over="text"), V, specials)
    assert {id_ for id_, used in enumerate(options.smoothed.tolist()) if not used} == left_out
