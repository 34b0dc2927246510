"""Packed linear layers compute the product within the tolerance of their dtype, and are checked."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from translume.engine import packing
from translume.engine.packing import LINEAR, TOLERANCES, checked_linear, packed_to_check
from translume.kernels.loading import NativeError, has_kernels, kernels

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")
every_dtype = pytest.mark.parametrize("dtype", LINEAR)


def linear(dtype, weight, bias=None):
    """Pack a weight; skip the test where the processor has no int8 products."""
    if dtype == "int8" and not kernels().int8:
        pytest.skip("this processor has no int8 products")
    return checked_linear(dtype, packed_to_check(dtype, weight, bias))


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@every_dtype
@given(seed=st.integers(0, 99), rows=st.integers(1, 23), inputs=st.sampled_from([1, 7, 64, 131]),
       outputs=st.sampled_from([1, 5, 64, 257]), biased=st.booleans())  # fmt: skip
def test_a_packed_layer_gives_the_product_within_its_tolerance(dtype, seed, rows, inputs, outputs, biased):
    weight, x, bias = numbers(outputs, inputs, seed=seed), numbers(rows, inputs, seed=seed + 1), None
    if biased:
        bias = numbers(outputs, seed=seed + 2)
    packed = linear(dtype, weight, bias)
    wanted = F.linear(
        *(torch.from_numpy(each) for each in (x, weight)), None if bias is None else torch.from_numpy(bias)
    )
    largest = np.linalg.norm(x, axis=1).max() * np.linalg.norm(weight, axis=1).max()
    assert np.abs(packed(x) - wanted.numpy()).max() / largest <= TOLERANCES[dtype]
    assert packed(x[None]).shape == (1, rows, outputs)


@every_dtype
@given(seed=st.integers(0, 99), row=st.integers(0, 28), inputs=st.sampled_from([67, 64, 256]))
def test_a_row_has_the_same_product_in_every_batch(dtype, seed, row, inputs):
    packed, x = linear(dtype, numbers(131, inputs, seed=seed), numbers(131)), numbers(29, inputs, seed=seed + 1)
    assert np.array_equal(packed(x)[row : row + 1], packed(x[row : row + 1]))
    assert np.array_equal(packed(x * 50.0)[:1], packed(x[:1] * 50.0))


@every_dtype
def test_a_row_of_zeros_gives_the_bias(dtype):
    bias = np.arange(13, dtype=np.float32)
    assert np.array_equal(linear(dtype, numbers(13, 7), bias)(np.zeros((2, 7), np.float32)), np.stack([bias] * 2))


@every_dtype
def test_a_weight_packed_in_parts_is_the_same(monkeypatch, dtype):
    weight, bias, rows = numbers(203, 48), numbers(203), numbers(3, 48)
    whole = linear(dtype, weight, bias)(rows)
    monkeypatch.setattr(packing, "PART_ROWS", 64)
    assert np.array_equal(linear(dtype, weight, bias)(rows), whole)


def test_kernels_with_wrong_products_are_not_used(monkeypatch):
    class Wrong(packing.PackedLinear):
        def __call__(self, x):
            return super().__call__(x) * 1.5

    monkeypatch.setitem(LINEAR, "fp32", Wrong)
    with pytest.raises(NativeError) as caught:
        linear("fp32", numbers(13, 7))
    assert str(caught.value) == "the kernels' products in fp32 differ by 0.25 of their bound from those in fp32"


def test_weights_that_are_no_numbers_are_packed_and_found_in_the_search():
    weight = numbers(13, 16)
    weight[5, 3] = np.nan
    found = linear("fp32", weight)(np.ones((1, 16), np.float32))
    assert np.isnan(found[0]).tolist() == [output == 5 for output in range(13)]
