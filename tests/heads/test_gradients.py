"""Gradients computed in the forward pass: correct for any factor of the loss and for repeated backward passes."""

from pkgutil import resolve_name

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from translume.config import EntmaxSettings, MixtureSettings, SigmoidSettings, SoftmaxSettings
from translume.model import HeadSizes, LossOptions

ROWS, VOCABULARY, WIDTH = 7, 101, 13

every_kind = pytest.mark.parametrize("kind", [SoftmaxSettings, SigmoidSettings, EntmaxSettings, MixtureSettings])


def build_loss(kind):
    """A head's leaves and its smoothed loss."""
    torch.manual_seed(2)
    head = resolve_name(kind.implementation)(kind(), HeadSizes(width=WIDTH, vocabulary=VOCABULARY,
                                                                 source_vocabulary=VOCABULARY), None)  # fmt: skip
    hidden = torch.randn(ROWS, WIDTH, requires_grad=True)
    loss = head.loss(hidden, torch.arange(ROWS) % 5, None, LossOptions(0.1)).objective
    return [hidden, *head.parameters()], loss


@every_kind
def test_scaling_the_loss_scales_its_gradients(kind):
    leaves, loss = build_loss(kind)
    wanted = [each / 8 for each in torch.autograd.grad(loss, leaves)]
    leaves, loss = build_loss(kind)
    found = torch.autograd.grad(loss / 8, leaves)
    assert all(torch.equal(left, right) for left, right in zip(found, wanted, strict=True))


@every_kind
def test_a_second_backward_pass_with_retain_graph_gives_the_same_gradients(kind):
    leaves, loss = build_loss(kind)
    first = [torch.autograd.grad(loss * 0.25, leaves, retain_graph=True) for _ in range(3)]
    last = torch.autograd.grad(loss * 0.25, leaves)
    assert all(torch.equal(left, right) for other in first for left, right in zip(other, last, strict=True))


@every_kind
def test_a_torch_without_the_retain_graph_query_gives_the_same_gradients(kind, monkeypatch):
    leaves, loss = build_loss(kind)
    wanted = torch.autograd.grad(loss * 0.25, leaves)
    monkeypatch.delattr(torch._C._autograd, "_get_current_graph_task_keep_graph")
    leaves, loss = build_loss(kind)
    first = torch.autograd.grad(loss * 0.25, leaves, retain_graph=True)
    last = torch.autograd.grad(loss * 0.25, leaves)
    for found in (first, last):
        assert all(torch.equal(left, right) for left, right in zip(found, wanted, strict=True))


class Copies(TorchDispatchMode):
    """Counts operations whose output has at least this many elements and does not share its input's memory."""

    def __init__(self, elements):
        super().__init__()
        self.elements, self.count = elements, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        same = [each.data_ptr() for each in args if isinstance(each, torch.Tensor)]
        if isinstance(result, torch.Tensor) and result.numel() == self.elements and result.data_ptr() not in same:
            self.count += 1
        return result


@every_kind
def test_scaling_the_loss_copies_no_weight_gradient(kind):
    _, loss = build_loss(kind)
    loss = loss / 2
    with Copies(VOCABULARY * WIDTH) as copies:
        loss.backward()
    assert copies.count == 0
