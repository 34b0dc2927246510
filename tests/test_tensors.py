"""Operations on NumPy arrays give what torch's operations of the same names give."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from translume.tensors import NAMES

NUMPY = SimpleNamespace(**NAMES)
NUMBERS = np.random.default_rng(5).standard_normal((3, 4, 7)).astype(np.float32)
ROWS = NUMBERS[0]
IDS = np.array([[3, 1, 1], [0, 6, 2], [5, 5, 5], [2, 3, 6]])
LARGEST = np.array([[2**63 - 1, -(2**63), 4, 4, 0]])
INF = float("inf")
Operation = Callable[[Any, Callable[[np.ndarray], Any]], Any]

OPERATIONS: dict[str, Operation] = {
    "promotion": lambda t, of: (0.5 * of(IDS), of(IDS) / 2, of(ROWS) - of(IDS)[:, :1], of(ROWS).double() * 3),
    "in place": lambda t, of: of(ROWS.copy()).exp_().clamp_(min=0.5, max=1.5).mul_(2).neg_(),
    "infinities": lambda t, of: ((of(ROWS) - INF).isneginf(), (of(ROWS) * 0.0).log(), t.log1p(of(ROWS * 0 - 1))),
    "bits": lambda t, of: ((of(LARGEST) ^ (of(LARGEST) >> 30)).mul_(-7046029254386353131), of(IDS).bitwise_and_(3)),
    "sort": lambda t, of: (*of(IDS).sort(dim=1, descending=True, stable=True), *of(LARGEST).sort(1, True)),
    "argsort": lambda t, of: of(IDS).argsort(dim=1, descending=True, stable=True),
    "topk": lambda t, of: (*of(ROWS).topk(3, -1), *of(NUMBERS).topk(7, 2)),
    "max": lambda t, of: (of(ROWS).max(), *of(ROWS).max(-1, keepdim=True), of(ROWS).amax(-1, keepdim=True)),
    "reductions": lambda t, of: (of(IDS).sum(), (of(IDS) > 2).sum(1), of(NUMBERS).flatten(1).any(1), of(IDS).cumsum(0)),
    "softmax": lambda t, of: (of(ROWS).log_softmax(-1), of(ROWS).logsumexp(-1), t.special.entr(of(ROWS).exp())),
    "gather": lambda t, of: (of(ROWS).gather(1, of(IDS)), of(ROWS).index_select(0, of(IDS[:, 0] % 4))),
    "scatter": lambda t, of: t.zeros_like(of(ROWS), dtype=t.bool).scatter_(1, of(IDS), value=True),
    "scatter values": lambda t, of: t.empty_like(of(IDS)).scatter_(1, of(IDS).argsort(dim=1, stable=True), of(IDS)),
    "index": lambda t, of: (
        of(ROWS).index_put((of(IDS[:, 0] % 4), of(IDS[:, 1])), of(ROWS[:, 0]), accumulate=True),
        t.zeros(4, 3).index_add_(0, of(IDS[:, 0] % 4), of(ROWS[:, :3])),
        of(ROWS).index_copy(0, of(IDS[0] % 4)[:2], of(ROWS[2:])),
    ),
    "shapes": lambda t, of: (
        of(NUMBERS).view(12, 7), of(NUMBERS).flatten(0, 1), of(IDS)[:, :1].expand(-1, 5), of(IDS[0]).expand(2, -1),
        of(NUMBERS).transpose(1, 2), of(IDS).repeat(1, 2), of(IDS[0]).repeat_interleave(2), of(IDS).unfold(1, 2, 1),
    ),
    "masks": lambda t, of: (
        of(ROWS).masked_fill(of(ROWS > 0), -INF), t.where(of(ROWS > 0), of(ROWS), 0.0), of(ROWS > 0).nonzero(),
        *of(ROWS > 0).nonzero(as_tuple=True), of(ROWS[:, :4] > 0).tril(-1), of(IDS).masked_fill(of(IDS > 2), -1),
    ),
    "made": lambda t, of: (
        t.tensor([1.5, 2]), t.tensor([1, 2]), t.full((2, 3), -INF), t.ones(2, 3, dtype=t.bool), t.arange(2, 5),
        of(IDS).new_full((2, 3), 4, dtype=t.long), of(ROWS).new_zeros(2, 3), t.full_like(of(ROWS), 1.0),
    ),
    "joined": lambda t, of: (t.cat([of(IDS), of(IDS)], 1), t.stack([of(IDS), of(IDS)]), t.isin(of(IDS), of(IDS[0]))),
    "padded": lambda t, of: (t.nn.functional.pad(of(NUMBERS), (0, 0, 1, 2), value=3.0), of(IDS).diff(dim=1)),
    "searched": lambda t, of: (
        t.searchsorted(of(ROWS).double().exp().cumsum(-1), of(ROWS[:, :2]).double().abs(), right=True),
        *t.unique(of(IDS), return_inverse=True), of(IDS[0]).bincount(), of(IDS).cummax(1).values,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_values_shapes_and_types_of_torch(name: str) -> None:
    operation = OPERATIONS[name]
    found = operation(NUMPY, lambda array: NUMPY.from_numpy(array.copy()))
    wanted = operation(torch, lambda array: torch.from_numpy(array.copy()))
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for one, other in pairs:
        assert isinstance(one, NUMPY.Tensor)
        assert (one.numpy().dtype, one.numpy().shape) == (other.numpy().dtype, other.numpy().shape)
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6, atol=1e-7)
