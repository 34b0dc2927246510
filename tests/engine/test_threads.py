"""Threads share the outputs of a product, and change no bit of it."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from translume.engine.packing import LINEAR
from translume.kernels.loading import has_kernels, set_threads

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")
WIDE = 512, 2003  # inputs and outputs: sixteen parts of int8, more of fp32


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    before = os.environ.get("OMP_NUM_THREADS", "1")
    yield
    set_threads(int(before))


def products(dtype: str, rows: int) -> np.ndarray:
    random = np.random.default_rng(3)
    weight, bias = random.standard_normal((WIDE[1], WIDE[0])), random.standard_normal(WIDE[1])
    kind = LINEAR[dtype]
    layer = kind(kind.pack(weight.astype(np.float32), bias.astype(np.float32)))
    return layer(random.standard_normal((rows, WIDE[0])).astype(np.float32))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("rows", [1, 5, 37])
def test_products_are_equal_bit_for_bit_on_every_number_of_threads(dtype, rows):
    set_threads(1)
    alone = products(dtype, rows)
    for threads in (2, 3, 7, 2):
        set_threads(threads)
        assert np.array_equal(products(dtype, rows), alone)


def test_products_of_several_callers_at_once_are_right():
    set_threads(1)
    alone = products("fp32", 5)
    set_threads(3)
    with ThreadPoolExecutor(4) as callers:
        found = callers.map(lambda _: products("fp32", 5), range(24))
    assert all(np.array_equal(each, alone) for each in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_computes_on_threads_of_its_own():
    set_threads(3)
    alone = products("fp32", 5)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert np.array_equal(pool.apply_async(products, ("fp32", 5)).get(60), alone)
