"""The SSRU and its gradients against the formulas of its paper, and worked by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from translume.checkpoint import build_model
from translume.config import ModelSettings
from translume.model.layers import Ssru, recurrence
from translume.model.layout import Layout
from translume.model.positions import NO_POSITIONS
from translume.model.state import GROWTH


def unit(width: int = 5, *, bias: bool = True) -> Ssru:
    torch.manual_seed(11)
    made = Ssru(ModelSettings(width=width, attention_heads=1, positions="none", bias=bias))
    if bias:
        torch.nn.init.normal_(made.forget.bias)
    return made


def by_loop(forget: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """The recurrence as the paper writes it, one token at a time."""
    cells, cell = [], start
    for place in range(forget.size(1)):
        cell = forget[:, place] * cell + (1 - forget[:, place]) * update[:, place]
        cells.append(cell)
    return torch.stack(cells, 1)


def terms(batch: int, length: int, width: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(length)
    shapes = (batch, length, width), (batch, length, width), (batch, width)
    forget, update, start = (torch.randn(shape, dtype=dtype) for shape in shapes)
    return [each.requires_grad_() for each in (forget.sigmoid(), update, start)]


@given(batch=st.integers(1, 3), length=st.integers(1, 13), width=st.sampled_from([1, 2, 5, 7]))
def test_the_recurrence_and_its_gradient_match_a_loop(batch, length, width):
    given_ = terms(batch, length, width)
    found, expected = recurrence(*given_), by_loop(*given_)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    seed = torch.randn_like(found)
    gradients = zip(torch.autograd.grad(found, given_, seed), torch.autograd.grad(expected, given_, seed), strict=True)
    for ours, theirs in gradients:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_gradient_of_the_recurrence_matches_finite_differences(length):
    assert torch.autograd.gradcheck(recurrence, terms(2, length, 3))


def test_a_long_target_in_fp32_is_as_accurate_as_a_loop():
    forget, update, start = (each.detach() for each in terms(3, 997, 5))
    exact = by_loop(forget, update, start)
    rough = [each.float() for each in (forget, update, start)]
    ours, theirs = ((each(*rough) - exact).abs().max() for each in (recurrence, by_loop))
    assert float(ours) <= max(2 * float(theirs), 1e-6)


def test_an_empty_input_gives_no_cells_and_no_gradient():
    forget, update, start = terms(2, 0, 3)
    cells = recurrence(forget, update, start)
    assert cells.shape == (2, 0, 3)
    assert torch.autograd.grad(cells.sum(), start)[0].tolist() == [[0.0] * 3] * 2


def test_a_unit_worked_by_hand():
    """Width 1 with W_f = 0 and b_f = ln 3, so f = 3/4, and W = 2: x = 2, −6, 4 makes c = 1, −2.25, 0.3125."""
    made = unit(1)
    with torch.no_grad():
        made.forget.weight.zero_()
        made.forget.bias.fill_(math.log(3.0))
        made.update.weight.fill_(2.0)
    x = torch.tensor([[2.0], [-6.0], [4.0]])
    packed = made.packed(x, Layout.from_mask(torch.ones(1, 3, dtype=torch.bool)), NO_POSITIONS, causal=True)
    torch.testing.assert_close(packed, torch.tensor([[1.0], [0.0], [0.3125]]))


@pytest.mark.parametrize("bias", [True, False])
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=4))
def test_packed_and_cached_results_and_gradients_match_the_formula(lengths, bias):
    made = unit(bias=bias).double()
    layout = Layout.from_mask(torch.arange(max(*lengths, 1))[None] < torch.tensor(lengths)[:, None])
    x = torch.randn(sum(lengths), 5, dtype=torch.float64, requires_grad=True)
    grid = layout.unpack(x)
    forget = torch.sigmoid(grid @ made.forget.weight.mT + (made.forget.bias if bias else 0.0))
    start = grid.new_zeros(len(lengths), 5)
    expected = layout.pack(by_loop(forget, grid @ made.update.weight.mT, start).relu())
    packed = made.packed(x, layout, NO_POSITIONS, causal=True)
    cached = layout.pack(made.cached(grid, made.begin(grid), 0, NO_POSITIONS))
    seed, parameters = torch.randn_like(expected), [x, *made.parameters()]
    wanted = torch.autograd.grad(expected, parameters, seed, retain_graph=True)
    for found in (packed, cached):
        torch.testing.assert_close(found, expected)
        for ours, theirs in zip(torch.autograd.grad(found, parameters, seed, retain_graph=True), wanted, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_any_split_gives_bit_identical_results_given_identical_linear_maps(dtype):
    """Beyond the first growth of the buffer. Both ways read the linear maps one token at a time."""
    made, x = unit().to(dtype), torch.randn(3, 2 * GROWTH + 1, 5).to(dtype)
    gates = [torch.cat(each, 1) for each in zip(*map(made._gates, x.split(1, 1)), strict=True)]
    whole = recurrence(*gates, torch.zeros(3, 5)).relu().to(dtype)
    past, read = made.begin(x), []
    for place in range(x.size(1)):
        read.append(made.cached(x[:, place : place + 1], past, place, NO_POSITIONS))
    assert torch.equal(torch.cat(read, 1), whole)
    assert past.cells.dtype == torch.float32


@torch.no_grad()
def test_in_bf16_small_increments_with_a_forget_gate_near_one_accumulate():
    """f = 1 − 1/256 over a constant input: after 256 tokens the cell is 1 − 1/e of it.

    A cell in bf16 would stop growing.
    """
    made = unit(1).bfloat16()
    made.forget.weight.zero_()
    made.forget.bias.fill_(math.log(255.0))
    made.update.weight.fill_(1.0)
    x = torch.ones(256, 1, dtype=torch.bfloat16)
    packed = made.packed(x, Layout.from_mask(torch.ones(1, 256, dtype=torch.bool)), NO_POSITIONS, causal=True)
    forget = float(made.forget.bias.float().sigmoid())
    assert float(packed[-1]) == pytest.approx(1 - forget**256, rel=0.03)


def test_a_unit_has_half_the_weights_of_self_attention():
    def count(mixing: str) -> int:
        settings = ModelSettings(width=22, feed_forward=13, attention_heads=11, decoder_layers=3, decoder_mixing=mixing)
        return sum(each.numel() for each in build_model(settings, 17, 17).parameters())

    assert count("attention") - count("ssru") == 3 * ((4 * 22 * 22 + 4 * 22) - (2 * 22 * 22 + 22))


def test_r_drop_gives_gradients_to_both_maps_of_every_unit(make, make_inputs):
    from translume.model import LossOptions

    model, data = make(decoder_mixing="ssru", dropout=0.2).train(), make_inputs([5, 2, 7], [3, 6, 1])
    loss = model.loss(*data.all(), LossOptions(r_drop=5.0))
    loss.objective.backward()
    assert bool(loss.objective.isfinite())
    for layer in model.decoder.stack:
        for parameter in layer.self_attention.parameters():
            assert float(parameter.grad.abs().max()) > 0
