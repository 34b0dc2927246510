"""The packed attention function and its gradients against the formula."""

import math

import pytest
import torch
from torch import Tensor

from translume.model.attention import AttentionOptions, attend, attention_weights, packed_attention, rotate
from translume.model.layout import Layout
from translume.model.positions import AttentionPositions, rotation

HEADS, WIDTH = 3, 6


def layout(lengths: list[int]) -> Layout:
    return Layout.from_mask(torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None])


def by_formula(
    query: Tensor, keys: Tensor, values: Tensor, allowed: Tensor, turn: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """Softmax(Q Kᵀ / √d) V of grids [B, T, D] and [B, S, D] by autograd."""
    query, keys, values = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in (query, keys, values))
    if turn is not None:
        query, keys = rotate(query, turn), rotate(keys, turn)
    scores = (query @ keys.mT) / math.sqrt(query.size(-1))
    scores = scores if bias is None else scores + bias
    weights = scores.masked_fill(~allowed, -1e9).softmax(-1) * allowed
    return (weights @ values).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_self_attention_and_its_gradient_match_the_formula(causal, rotary):
    torch.manual_seed(1)
    where = layout([4, 1, 5])
    x = torch.randn(10, 3 * WIDTH, dtype=torch.float64, requires_grad=True)
    turn = rotation(torch.arange(where.grid.size(1)), WIDTH // HEADS).double() if rotary else None
    short = None if turn is None else turn[:, :5]
    allowed = where.mask[:, None, None] & (torch.ones(5, 5, dtype=torch.bool).tril() if causal else True)
    expected = where.pack(by_formula(*where.unpack(x).chunk(3, -1), allowed, short))
    mixing = AttentionOptions(HEADS, causal=causal, positions=AttentionPositions(turn))
    mixed = packed_attention(x, None, (where, where), mixing)
    torch.testing.assert_close(mixed, expected)
    seed = torch.randn_like(mixed)
    (found,), (wanted,) = (torch.autograd.grad(each, x, seed) for each in (mixed, expected))
    torch.testing.assert_close(found, wanted)
    assert torch.autograd.gradcheck(lambda x: packed_attention(x, None, (where, where), mixing), x, fast_mode=True)


@pytest.mark.parametrize("lengths", [[3, 1, 4], [3, 0, 4]])
def test_cross_attention_and_its_gradient_match_the_formula(lengths):
    torch.manual_seed(2)
    where, memory = layout([2, 5, 1]), layout(lengths)
    x = torch.randn(8, WIDTH, dtype=torch.float64, requires_grad=True)
    y = torch.randn(sum(lengths), 2 * WIDTH, dtype=torch.float64, requires_grad=True)
    expected = where.pack(by_formula(where.unpack(x), *memory.unpack(y).chunk(2, -1), memory.mask[:, None, None], None))
    mixed = packed_attention(x, y, (where, memory), AttentionOptions(HEADS))
    torch.testing.assert_close(mixed, expected)
    seed = torch.randn_like(mixed)
    found, wanted = (torch.autograd.grad(each, (x, y), seed) for each in (mixed, expected))
    torch.testing.assert_close(found, wanted)
    assert torch.autograd.gradcheck(
        lambda x, y: packed_attention(x, y, (where, memory), AttentionOptions(HEADS)), (x, y), fast_mode=True
    )


def test_the_gradient_with_dropout_uses_the_kept_weights():
    where, memory = layout([2, 5]), layout([3, 4])
    x = torch.randn(7, WIDTH, dtype=torch.float64, requires_grad=True)
    y = torch.randn(7, 2 * WIDTH, dtype=torch.float64, requires_grad=True)

    def mix(x: Tensor, y: Tensor) -> Tensor:
        torch.manual_seed(5)
        return packed_attention(x, y, (where, memory), AttentionOptions(HEADS, 0.4))

    assert not torch.equal(mix(x, y), packed_attention(x, y, (where, memory), AttentionOptions(HEADS)))
    assert torch.autograd.gradcheck(mix, (x, y), fast_mode=True)


@pytest.mark.parametrize("lengths", [[4, 1, 5], [4, 0, 5]])
@pytest.mark.parametrize("causal", [True, False])
def test_a_bias_is_added_to_the_scores_and_gets_its_gradient(causal, lengths):
    torch.manual_seed(3)
    where = layout(lengths)
    longest, size = max(lengths), where.grid.size(1)
    x = torch.randn(sum(lengths), 3 * WIDTH, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(HEADS, size, size, dtype=torch.float64, requires_grad=True)
    allowed = where.mask[:, None, None] & (torch.ones(longest, longest, dtype=torch.bool).tril() if causal else True)
    parts = where.unpack(x).chunk(3, -1)
    expected = where.pack(by_formula(*parts, allowed, None, bias[:, :longest, :longest]))
    options = AttentionOptions(HEADS, causal=causal, positions=AttentionPositions(bias=bias))
    mixed = packed_attention(x, None, (where, where), options)
    torch.testing.assert_close(mixed, expected)
    seed = torch.randn_like(mixed)
    found, wanted = (torch.autograd.grad(each, (x, bias), seed) for each in (mixed, expected))
    torch.testing.assert_close(found, wanted)


def test_a_query_without_readable_keys_gets_zeros():
    query, keys, values = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 5)
    allowed = torch.tensor([True, False])[:, None, None, None].expand(2, 1, 1, 7)
    mixed, weights = attend(query, keys, values, allowed), attention_weights(query, keys, allowed)
    assert not mixed[1].any()
    assert not weights[1].any()
    torch.testing.assert_close(weights @ values, mixed)


def test_rotary_scores_depend_on_distances_only():
    x, y = torch.randn(5, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    near, far = rotation(torch.arange(5), 8), rotation(torch.arange(5) + 13, 8)
    scores = [rotate(x, turn) @ rotate(y, turn).mT for turn in (near, far)]
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-5)


def test_a_layout_packs_and_unpacks():
    where = layout([2, 0, 3])
    grid = torch.randn(3, 3, 7)
    packed = where.pack(grid)
    assert packed.shape == (5, 7)
    assert where.places.tolist() == [0, 1, 0, 1, 2]
    torch.testing.assert_close(where.unpack(packed), grid * where.mask[..., None])
    parts = where.split(torch.randn(5, 12), 2, 3)
    assert parts.shape == (2, 3, 3, where.grid.size(1), 2)
    whole = torch.randn(5, 12)
    torch.testing.assert_close(where.join(where.split(whole, 2, 3)), whole)
