"""The compiled operations of training against torch: values and gradients."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from translume.kernels.loading import has_kernels
from translume.model import compiled
from translume.model.attention import AttentionOptions, packed_attention
from translume.model.layout import Layout
from translume.model.positions import AttentionPositions

pytestmark = pytest.mark.skipif(not has_kernels(), reason="needs compiled kernels")

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
"""Relative errors, in the Frobenius norm, against fp64."""
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(
    dtype: torch.dtype, ours: Callable[..., Tensor], exact: Callable[..., Tensor], *inputs: Tensor | None
) -> None:
    """Compare the value and all gradients of a function with those of an exact one, in fp64 on the same inputs."""
    rounded = [None if each is None else each.to(dtype) for each in inputs]
    found = []
    for function, kind in ((ours, dtype), (exact, torch.float64)):
        leaves = [None if each is None else each.detach().to(kind, copy=True).requires_grad_() for each in rounded]
        y = function(*leaves)
        (y * normal(*y.shape, seed=2).to(dtype).to(kind)).sum().backward()
        found.append([y.detach(), *(each.grad for each in leaves if each is not None)])
    for mine, truth in zip(*found, strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - truth).norm() / truth.norm() < TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("rows", [1, 37, 1100])  # one, not a multiple of a tile, and more than are multiplied at a time
def test_a_linear_map_has_torchs_gradients(dtype: torch.dtype, bias: bool, relu: bool, rows: int) -> None:
    def ours(x: Tensor, weight: Tensor, shift: Tensor | None) -> Tensor:
        return compiled.linear(x, weight, shift, relu=relu)

    def exact(x: Tensor, weight: Tensor, shift: Tensor | None) -> Tensor:
        y = F.linear(x, weight, shift)
        return y.relu() if relu else y

    check(dtype, ours, exact, normal(rows, 19), normal(43, 19, seed=3), normal(43, seed=4) if bias else None)


def test_products_are_of_few_numbers_of_rows_and_a_sixteenth_more_at_most() -> None:
    x = torch.empty(0, dtype=torch.bfloat16)
    padded = {rows: compiled.padded_count(rows, x) for rows in range(1, 4097)}
    assert all(rows <= more <= max(rows + 63, rows * 17 / 16) for rows, more in padded.items())
    assert len(set(padded.values())) == 48
    assert compiled.padded_count(37, x.float()) == 37


@pytest.mark.parametrize("inputs", [19, 96])
def test_rows_that_are_added_to_a_product_change_nothing(inputs: int) -> None:
    more = torch.full((128, inputs), math.nan, dtype=torch.bfloat16)
    more[:37] = normal(37, inputs).bfloat16()
    weight, bias = normal(43, inputs, seed=3).bfloat16(), normal(43, seed=4).bfloat16()
    x = more[:37].requires_grad_()
    y = compiled.linear(x, weight, bias)
    y.sum().backward()
    apart = more[:37].detach().clone()
    assert compiled.pad_rows(x).shape == ((64, 96) if inputs == 96 else (37, 19))
    assert torch.equal(y, compiled.linear(apart, weight, bias))
    assert y.shape == (37, 43)
    assert x.grad is not None
    assert torch.equal(x.grad, weight.sum(0, dtype=torch.float64).bfloat16().expand(37, -1))


def test_the_gradient_of_wide_weights_is_added_to_sums() -> None:
    left, right, sums = normal(37, 311).bfloat16(), normal(37, 70, seed=2).bfloat16(), normal(311, 70, seed=3).float()
    truth = sums.double() + left.double().t() @ right.double()
    found = compiled.weight_gradient(left, right, sums)
    assert float((found.double() - truth).norm() / truth.norm()) < TOLERANCE[torch.bfloat16]


@DTYPES
def test_gradients_of_weights_can_be_added_to_those_that_are_there(dtype: torch.dtype) -> None:
    x, slopes = normal(37, 19).to(dtype), normal(37, 43, seed=2).to(dtype)
    weight = normal(43, 19, seed=3).to(dtype).requires_grad_()
    weight.grad = normal(43, 19, seed=4).to(dtype)
    view, truth = weight.grad, weight.grad.double() + slopes.double().t() @ x.double()
    with compiled.gradient_accumulation_fusion():
        compiled.linear(x, weight, None).backward(slopes)
    assert weight.grad is view
    assert (view.double() - truth).norm() / truth.norm() < TOLERANCE[dtype]
    compiled.linear(x, weight, None).backward(slopes)  # by autograd, outside of it
    twice = truth + slopes.double().t() @ x.double()
    assert (view.double() - twice).norm() / twice.norm() < TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("classes", [1, 16, 67, 1031])  # fewer than a vector, whole vectors, and with a rest
def test_exponentials_leave_out_the_labels_and_their_sums_are_of_what_is_left(dtype: torch.dtype, classes: int) -> None:
    logits, labels = (5 * normal(7, classes)).to(dtype), (torch.arange(14) * 5 % classes)[::2]
    expected = logits.double().exp().scatter_(1, labels[:, None], 0.0)
    sums = compiled.exponentials(logits, labels)
    assert torch.allclose(logits.double(), expected, rtol=TOLERANCE[dtype], atol=0.0)
    assert torch.allclose(sums.double(), logits.double().sum(-1), rtol=1e-6, atol=0.0)


@DTYPES
@pytest.mark.parametrize("classes", [3, 16, 67, 1031])
def test_the_divergence_of_two_softmaxes_is_torchs_with_its_gradients(dtype: torch.dtype, classes: int) -> None:
    given = [(3 * normal(7, classes, seed=seed)).to(dtype) for seed in (1, 2)]
    exact = [each.double().requires_grad_() for each in given]
    log_p, log_q = (each.log_softmax(-1) for each in exact)
    expected = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
    expected.sum().backward()
    found = compiled.divergence(*given)
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-6)
    for mine, truth in zip(given, exact, strict=True):
        assert (mine.double() - truth.grad).norm() / truth.grad.norm() < TOLERANCE[dtype]


def test_exponentials_beyond_fp32_are_finite_zero_or_not_a_number() -> None:
    logits = torch.tensor([[0.0, 200.0, -200.0, 1.0], [0.0, torch.nan, 0.0, 0.0]])
    sums = compiled.exponentials(logits, torch.tensor([0, 0]))
    assert logits[0, :3].tolist() == [0.0, pytest.approx(math.exp(88.0)), 0.0]
    assert sums[0].isfinite()
    assert sums[1].isnan()


@DTYPES
@pytest.mark.parametrize("parts", ["alone", "residual", "dropout"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_norm_of_a_residual_with_dropout_has_torchs_gradients(dtype: torch.dtype, parts: str, bias: bool) -> None:
    keep = normal(29, 37, seed=7) > 0 if parts == "dropout" else None

    def ours(x: Tensor, residual: Tensor | None, weight: Tensor, shift: Tensor | None) -> Tensor:
        return compiled.norm(x, residual, keep, 1.0 if keep is None else 2.0, weight, shift, 1e-5)

    def exact(x: Tensor, residual: Tensor | None, weight: Tensor, shift: Tensor | None) -> Tensor:
        x = x if keep is None else x * keep * 2.0
        return F.layer_norm(x if residual is None else residual + x, (37,), weight, shift, 1e-5)

    residual = None if parts == "alone" else normal(29, 37, seed=3)
    check(dtype, ours, exact, normal(29, 37), residual, normal(37, seed=4), normal(37, seed=5) if bias else None)


@DTYPES
@pytest.mark.parametrize("kind", ["self", "causal", "cross", "rotary"])
def test_packed_attention_has_torchs_gradients(dtype: torch.dtype, kind: str) -> None:
    def layout(*lengths: int) -> Layout:
        return Layout.from_mask(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])

    heads, size = 3, 22
    queries = layout(5, 19, 1, 33)
    keys = layout(7, 2, 0, 17) if kind == "cross" else queries
    count, others = len(queries.tokens), len(keys.tokens)
    width = heads * size
    rotation = normal(2, 33, size // 2, seed=9).float().repeat(1, 1, 2) if kind == "rotary" else None
    options = AttentionOptions(
        heads, causal=kind in ("causal", "rotary"), positions=AttentionPositions(rotation=rotation)
    )

    def ours(first: Tensor, second: Tensor | None) -> Tensor:
        return compiled.attention(first, second, (queries, keys), heads, rotation, causal=options.causal)

    def exact(first: Tensor, second: Tensor | None) -> Tensor:
        return packed_attention(first, second, (queries, keys), options)

    if kind == "cross":
        check(dtype, ours, exact, normal(count, width), normal(others, 2 * width, seed=3))
    else:
        check(dtype, ours, exact, normal(count, 3 * width), None)


def test_not_a_number_stays_one_in_every_operation() -> None:
    rows = torch.ones(3, 40, dtype=torch.bfloat16)
    rows[1, 5] = torch.nan
    layout = Layout.from_mask(torch.ones(1, 3, dtype=torch.bool))
    x = torch.ones(3, 40, dtype=torch.bfloat16, requires_grad=True)
    compiled.linear(x, rows, None, relu=True).sum().backward()
    assert x.grad is not None
    assert x.grad[:, 5].isnan().all()
    assert compiled.norm(rows, None, None, 1.0, rows[0], rows[0], 1e-5)[1].isnan().all()
    assert compiled.drop_add(rows, rows, torch.ones_like(rows, dtype=torch.bool), 2.0)[1, 5].isnan()
    mixed = compiled.attention(rows.repeat(1, 3), None, (layout, layout), 5, None, causal=True)
    assert mixed[1:, :8].isnan().all()
    assert compiled.weight_gradient(rows, rows)[5].isnan().all()
