"""On a GPU the loss of a head waits for the device at most once an update, and equals that of a CPU."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.heads.conftest import VOCABULARY, builder
from tests.heads.test_contract import random_inputs
from tests.reads import Reads

from translume.belief import check_finite
from translume.config import CopySettings
from translume.heads.copy import TILE, Copyable
from translume.heads.entmax import newton_steps, threshold
from translume.heads.next_tokens import group_options
from translume.model import LossOptions
from translume.model.compiled import torch_only
from translume.model.head import Teacher, TeacherTargets
from translume.model.penalties import with_penalties

SOME = (torch.arange(VOCABULARY) % 7 > 2) & (torch.arange(VOCABULARY) < 61)  # no token of the last classes
READS_ONCE = ("adaptive", "hierarchical")


@pytest.fixture(autouse=True)
def same_draws(monkeypatch):
    """Sampled tokens are the same on both devices."""

    def uniforms(*shape, like):
        return torch.rand(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    monkeypatch.setattr("translume.heads.sampled.uniforms", uniforms)


def kind_of(head):
    return type(head).__module__.rpartition(".")[2]


def loss_and_gradients(head, options, penalties=False):
    """The objective, the nll and the gradients of an update."""
    hidden, labels, context = random_inputs(head, rows=66)
    hidden.requires_grad_()
    of_labels = options if head.blends_teacher_loss else replace(options, teacher_targets=None)
    loss = head.loss(hidden, labels, context, of_labels)
    if penalties:
        loss = with_penalties(head, loss, hidden, context, options)
    leaves = [hidden, *(each for each in head.parameters() if each.requires_grad)]
    grown = torch.autograd.grad(loss.objective, leaves, allow_unused=True)
    return loss.objective.detach(), loss.nll, [torch.zeros(()) if each is None else each for each in grown]


def assert_same(found, wanted):
    torch.testing.assert_close(found[:2], wanted[:2], rtol=1e-5, atol=1e-5)
    for left, right in zip(found[2], wanted[2], strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


def test_an_update_reads_back_at_most_once_and_has_the_loss_and_gradients_of_a_cpu(make):
    head = make().train()
    for options in (LossOptions(), LossOptions(0.1, z_loss=1e-3), LossOptions(0.1, smoothed=SOME)):
        wanted = loss_and_gradients(head, options)
        with torch_only(), Reads() as counter:
            found = loss_and_gradients(head, options)
        assert counter.reads == (["tolist"] if kind_of(head) in READS_ONCE else [])
        assert_same(found, wanted)


def test_operations_and_shapes_do_not_depend_on_labels_or_sources(make):
    head = make().train()
    if kind_of(head) in READS_ONCE:
        pytest.skip("its products depend on the labels")
    met = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(67, 13, generator=generator, requires_grad=True)
        labels = torch.randint(head.vocabulary, (67,), generator=generator)
        with torch_only(), Reads() as counter:
            source = torch.randint(4, head.vocabulary, (5, 11), generator=generator)
            mask = torch.rand(5, 11, generator=generator) < 0.7
            context = head.begin(source, mask, torch.randn(5, 11, 13, generator=generator))
            owners = torch.randint(5, (67,), generator=generator)
            context = None if context is None else context.select(owners)
            objective = head.loss(hidden, labels, context, LossOptions(0.1)).objective
            torch.autograd.grad(objective, [hidden, *head.parameters()], allow_unused=True)
        met.append(counter.operations)
    assert met[0] == met[1] == met[2]


class Fixed:
    """A distribution of fixed logits."""

    def __init__(self, logits):
        self.logits = logits

    def log_probs(self):
        check_finite(self.logits.amax(-1, keepdim=True))
        return self.logits.log_softmax(-1)


def test_penalties_read_nothing_back_and_equal_those_of_a_cpu(make, monkeypatch):
    head = make().train()
    if not head.normalised:
        pytest.skip("its settings refuse them")
    for name in ("CHUNK_ELEMENTS", "DEVICE_CHUNK_ELEMENTS"):
        monkeypatch.setattr(f"translume.model.penalties.{name}", 23 * head.vocabulary)
    logits = torch.randn(66, head.vocabulary, generator=torch.Generator().manual_seed(2))
    teacher = Teacher(None, 0.3), TeacherTargets(lambda rows: Fixed(logits[rows]))
    options = LossOptions(confidence_penalty=0.2)
    if kind_of(head) != "entmax":  # whose settings refuse the others
        options = replace(options, r_drop=0.5, teacher=teacher[0], teacher_targets=teacher[1])
    wanted = loss_and_gradients(head, options, penalties=True)
    with torch_only(), Reads() as counter:
        found = loss_and_gradients(head, options, penalties=True)
    assert counter.reads == (["tolist"] if kind_of(head) in READS_ONCE else [])
    assert_same(found, wanted)


# ---- parts


@given(st.lists(st.integers(0, 4), max_size=97), st.integers(5, 7))
def test_tiles_multiply_every_row_with_the_matrix_of_its_sentence(owners, sentences):
    generator = torch.Generator().manual_seed(1)
    owners = torch.tensor(owners, dtype=torch.long)
    matrices = torch.randn(sentences, 11, 13, generator=generator, dtype=torch.float64)
    rows = torch.randn(len(owners), 13, generator=generator, dtype=torch.float64)
    nothing = torch.zeros(sentences, 11, dtype=torch.long)
    copyable = Copyable(nothing, nothing, matrices, nothing, owners)
    wanted = torch.einsum("nd,nsd->ns", rows, matrices[owners])
    with torch_only():
        grid = copyable.grid()
        torch.testing.assert_close(grid.product(rows, matrices), wanted)
    assert (grid.tiles, grid.length) == (len(owners) // TILE + sentences, TILE)
    torch.testing.assert_close(copyable.grid().product(rows, matrices), wanted)


@pytest.mark.parametrize("make", [builder((CopySettings, {}))], ids=["copy"])
@torch.no_grad()
def test_the_distribution_with_copies_is_the_same_without_shapes_that_depend_on_data(make):
    head = make()
    hidden, _, context = random_inputs(head)
    wanted = head.next_token(hidden, context).log_probs()
    with torch_only():
        torch.testing.assert_close(head.next_token(hidden, context).log_probs(), wanted)


def scores_of(kind, size, seed):
    """Scores with row maxima 0, in fp64, of shapes that need many Newton steps."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "normal":
        scores = torch.randn(5, size, generator=generator, dtype=torch.float64) * 10 ** (3 * torch.rand(5, 1) - 2)
    elif kind == "line":
        scores = torch.linspace(-1, 0, size, dtype=torch.float64).expand(5, size)
    elif kind == "clusters":  # around one score, at all distances from it
        scores = torch.rand(5, 1, generator=generator, dtype=torch.float64)
        scores = -scores + 10 ** (-8 * torch.rand(5, size, generator=generator, dtype=torch.float64))
        scores[:, 0] = 1
    else:  # twice as many at each step down
        scores = -(torch.arange(1, size + 1, dtype=torch.float64).log2().floor() / 13).expand(5, size)
    return scores - scores.amax(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    st.sampled_from(["normal", "line", "clusters", "tower"]),
    st.sampled_from([1.0, 4 / 3, 2.0, 4.0, 20.0]),
    st.sampled_from([1, 2, 7, 101, 1009, 10007]),
    st.integers(0, 10**6),
)
def test_a_fixed_number_of_newton_steps_finds_the_threshold(dtype, kind, power, size, seed):
    scores = scores_of(kind, size, seed).to(dtype)
    wanted = threshold(scores, power)
    with torch_only(), Reads() as counter:
        found = threshold(scores, power)
    assert not counter.reads
    torch.testing.assert_close(found, wanted, rtol=0, atol=32 * torch.finfo(dtype).eps)
    torch.testing.assert_close(
        (scores - found).clamp(min=0).pow(power).sum(-1), torch.ones(5, dtype=dtype), rtol=0, atol=1e-4
    )


def test_the_number_of_newton_steps_grows_with_the_vocabulary_and_falls_with_the_power():
    assert [newton_steps(1 << 15, power) for power in (1.0, 2.0, 4.0, 20.0)] == [19, 12, 8, 5]
    assert [newton_steps(size, 2.0) for size in (1, 2, 32, 1 << 18)] == [4, 5, 7, 13]


@given(st.lists(st.booleans(), min_size=VOCABULARY, max_size=VOCABULARY))
def test_smoothing_inside_a_group_covers_its_smoothed_tokens_or_all(marks):
    options = LossOptions(0.1, smoothed=torch.tensor(marks))
    ids = torch.tensor([3, 5, 7])
    found = group_options(options, ids).smoothed
    assert found.tolist() == ([marks[each] for each in ids.tolist()] if any(marks[3:8:2]) else [True] * 3)
    assert group_options(replace(options, label_smoothing=0.0), ids).smoothed is options.smoothed
