"""Distillation: the teacher's share of the loss, compared with its definition."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.belief import Logits
from translume.checkpoint.building import build_classifier, build_model
from translume.config import ClassifySettings, CopySettings, EntmaxSettings, ModelSettings, SoftmaxSettings
from translume.heads.copy import CopyHead
from translume.model import LossOptions
from translume.model.head import Teacher, TeacherTargets
from translume.model.penalties import distance

V = 19
HEADS = {"softmax": SoftmaxSettings(), "copy": CopySettings(), "classify": ClassifySettings()}


def network(head, seed, width=12, dropout=0.0):
    torch.manual_seed(seed)
    settings = ModelSettings(
        width=width, feed_forward=23, encoder_layers=1, decoder_layers=1, attention_heads=2, max_positions=29,
        dropout=dropout, head=head,
    )  # fmt: skip
    build = build_classifier if head.kind == "classify" else build_model
    made = build(settings, V, V).double()
    with torch.no_grad():
        (made.head.softmax if isinstance(made.head, CopyHead) else made.head).weight.mul_(
            10
        )  # to make the distributions of untrained networks differ
    return made


def sentences(*, classes):
    generator = torch.Generator().manual_seed(7)
    source, target, labels = (torch.randint(4, V, (3, 7), generator=generator) for _ in range(3))
    mask = torch.arange(7) < torch.tensor([7, 5, 2])[:, None]
    if classes:
        return source, mask, torch.zeros(3, 1, dtype=torch.long), labels[:, :1], torch.ones(3, 1, dtype=torch.bool)
    return source, mask, target, labels, mask


def divergence(student, teacher, data):
    """Σ KL(teacher‖student), from all log-probabilities at once."""
    source, mask, target, _, target_mask = data
    rows = torch.arange(int(target_mask.sum()))
    own, wanted = (each.teacher_targets(source, mask, target, target_mask).predict(rows) for each in (student, teacher))
    return F.kl_div(own.log_probs(), wanted.log_probs(), log_target=True, reduction="sum")


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_a_teacher_replaces_its_share_of_the_loss(kind, share, r_drop):
    student, teacher = network(HEADS[kind], 1), network(HEADS[kind], 2, width=16).eval()
    data = sentences(classes=kind == "classify")
    options = LossOptions(0.1, r_drop=r_drop)
    plain = student.loss(*data, options)
    taught = student.loss(*data, LossOptions(0.1, r_drop=r_drop, teacher=Teacher(teacher, share)))
    difference = divergence(student, teacher, data)
    assert float(difference.detach()) > 0.1
    torch.testing.assert_close(taught.objective, (1 - share) * plain.objective + share * difference)
    torch.testing.assert_close(taught.nll, plain.nll)
    assert taught.tokens == plain.tokens


@pytest.mark.parametrize("kind", HEADS)
def test_the_student_gets_the_gradients_of_the_divergence_and_the_teacher_none(kind):
    student, teacher = network(HEADS[kind], 1), network(HEADS[kind], 2)
    data = sentences(classes=kind == "classify")
    student.loss(*data, LossOptions(teacher=Teacher(teacher, 1.0))).objective.backward()
    assert all(each.grad is None for each in teacher.parameters())
    names = [name for name, each in student.named_parameters() if each.grad is not None]
    parameters = [student.get_parameter(name) for name in names]
    source, mask, target, _, target_mask = data
    with torch.no_grad():
        wanted = teacher.teacher_targets(source, mask, target, target_mask)(torch.arange(int(target_mask.sum())))
    if kind == "classify":
        own = student.belief(source, mask)
    else:
        hidden, _, context, *_ = student._teacher_forced(source, mask, target, target_mask)
        own = student.head.next_token(hidden, context)
    truth = torch.autograd.grad(F.kl_div(own.log_probs(), wanted, log_target=True, reduction="sum"), parameters)
    for found, each in zip(parameters, truth, strict=True):
        torch.testing.assert_close(found.grad, each)


@pytest.mark.parametrize("kind", HEADS)
def test_a_teacher_equal_to_the_student_gives_no_loss_and_no_gradient(kind):
    student = network(HEADS[kind], 1)
    data = sentences(classes=kind == "classify")
    loss = student.loss(*data, LossOptions(teacher=Teacher(student, 1.0)))
    assert float(loss.objective.detach()) == pytest.approx(0.0, abs=1e-9)
    loss.objective.backward()
    assert max(float(each.grad.abs().max()) for each in student.parameters() if each.grad is not None) < 1e-9


@settings(max_examples=9)
@given(chunk=st.integers(1, 13), seed=st.integers(0, 99), share=st.sampled_from([0.3, 1.0]))
def test_blending_teacher_targets_in_the_softmax_equals_a_separate_term(chunk, seed, share):
    student, teacher = network(SoftmaxSettings(bias=True), seed), network(SoftmaxSettings(), seed + 1).eval()
    data = sentences(classes=False)
    options = LossOptions(0.1, z_loss=0.01, confidence_penalty=0.2, teacher=Teacher(teacher, share))
    found = []
    for blends in (True, False):
        student.head.blends_teacher_loss = blends
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("translume.heads.chunked_cross_entropy.CHUNK_ELEMENTS", chunk * V)
            loss = student.loss(*data, options)
        found.append([loss.objective, *torch.autograd.grad(loss.objective, list(student.parameters()))])
    for own, by_beliefs in zip(*found, strict=True):
        torch.testing.assert_close(own, by_beliefs)


@settings(max_examples=9)
@given(chunk=st.integers(1, 13), seed=st.integers(0, 99))
def test_the_divergence_is_the_same_for_any_chunk_size(chunk, seed):
    torch.manual_seed(seed)
    head = network(SoftmaxSettings(), 1).head
    hidden, wanted = torch.randn(13, 12, dtype=torch.float64), torch.randn(13, V, dtype=torch.float64).log_softmax(-1)
    lesson = TeacherTargets(lambda rows: Logits(wanted[rows]))
    own = head.next_token(hidden, None).log_probs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("translume.model.penalties.CHUNK_ELEMENTS", chunk * V)
        found = distance(head, hidden, None, lesson)
    torch.testing.assert_close(found, F.kl_div(own, wanted, log_target=True, reduction="sum"))


def test_tokens_impossible_for_the_teacher_cost_nothing():
    student, teacher = network(SoftmaxSettings(), 1), network(EntmaxSettings(), 2).eval()
    data = sentences(classes=False)
    source, mask, target, _, target_mask = data
    wanted = teacher.teacher_targets(source, mask, target, target_mask)(torch.arange(14))
    assert bool(wanted.isneginf().any())
    found = student.loss(*data, LossOptions(teacher=Teacher(teacher, 1.0))).objective
    own = student.teacher_targets(source, mask, target, target_mask)(torch.arange(14))
    terms = torch.where(wanted.isneginf(), 0.0, wanted.exp() * (wanted - own))
    torch.testing.assert_close(found.detach(), terms.sum())
    found.backward()
    assert all(bool(each.grad.isfinite().all()) for each in student.parameters() if each.grad is not None)
