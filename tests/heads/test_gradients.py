"""Gradients made in the forward pass: whatever the loss is multiplied by, and however often they are asked for."""

from pkgutil import resolve_name

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from translume.config import EntmaxSettings, MixtureSettings, SigmoidSettings, SoftmaxSettings
from translume.model import HeadSizes, LossOptions

ROWS, VOCABULARY, WIDTH = 7, 101, 13

every_kind = pytest.mark.parametrize("kind", [SoftmaxSettings, SigmoidSettings, EntmaxSettings, MixtureSettings])


def made(kind):
    """A head, its leaves and its smoothed loss."""
    torch.manual_seed(2)
    head = resolve_name(kind.implementation)(kind(), HeadSizes(width=WIDTH, vocabulary=VOCABULARY,
                                                                 source_vocabulary=VOCABULARY), None)  # fmt: skip
    hidden = torch.randn(ROWS, WIDTH, requires_grad=True)
    loss = head.loss(hidden, torch.arange(ROWS) % 5, None, LossOptions(0.1)).objective
    return [hidden, *head.parameters()], loss


@every_kind
def test_a_multiple_of_the_loss_has_the_multiple_of_its_gradients(kind):
    leaves, loss = made(kind)
    wanted = [each / 8 for each in torch.autograd.grad(loss, leaves)]
    leaves, loss = made(kind)
    found = torch.autograd.grad(loss / 8, leaves)
    assert all(torch.equal(left, right) for left, right in zip(found, wanted, strict=True))


@every_kind
def test_a_graph_that_is_kept_gives_the_same_gradients_again(kind):
    leaves, loss = made(kind)
    first = [torch.autograd.grad(loss * 0.25, leaves, retain_graph=True) for _ in range(3)]
    last = torch.autograd.grad(loss * 0.25, leaves)
    assert all(torch.equal(left, right) for other in first for left, right in zip(other, last, strict=True))


@every_kind
def test_a_torch_that_does_not_tell_of_kept_graphs_gives_the_same_gradients(kind, monkeypatch):
    leaves, loss = made(kind)
    wanted = torch.autograd.grad(loss * 0.25, leaves)
    monkeypatch.delattr(torch._C._autograd, "_get_current_graph_task_keep_graph")
    leaves, loss = made(kind)
    first = torch.autograd.grad(loss * 0.25, leaves, retain_graph=True)
    last = torch.autograd.grad(loss * 0.25, leaves)
    for found in (first, last):
        assert all(torch.equal(left, right) for left, right in zip(found, wanted, strict=True))


class Copies(TorchDispatchMode):
    """Counts operations that make something of so many elements in another place than their input."""

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
def test_a_multiple_of_the_loss_copies_no_gradient_of_the_weights(kind):
    _, loss = made(kind)
    loss = loss / 2
    with Copies(VOCABULARY * WIDTH) as copies:
        loss.backward()
    assert copies.count == 0
