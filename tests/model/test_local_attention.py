"""Self-attention in blocks: what it reads, and that it computes what attention over all pairs of tokens does."""

import pytest
import torch
from tests.model.test_modern_settings import SIZE, built

from translume.checkpoint import build_model
from translume.config import ModelSettings
from translume.model import local_attention
from translume.model.attention import SelfAttention
from translume.model.local_attention import LocalAttention

SHAPE = {"width": 10, "attention_heads": 2, "head_width": 6, "feed_forward": 7}


def layer_of(length, window, **settings):
    """A layer of an encoder, and what it is told about the positions of `length` tokens."""
    torch.manual_seed(7)
    encoder = build_model(ModelSettings(**SHAPE, attention_windows=(window,), **settings), 11, 11).eval().encoder
    return encoder.layers[0].self_attention, encoder.positions_for(length, torch.device("cpu"))


@pytest.mark.parametrize("length", [1, 2, 5, 6, 13, 31])
@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("first", [0, 3])
def test_a_token_reads_its_window_and_the_global_tokens_and_nothing_else(length, window, first):
    layer, positions = layer_of(length, window, positions="none", global_tokens=first)
    x = torch.randn(1, length, 10, requires_grad=True)
    mixed = layer.padded(x, torch.zeros(1, 1, 1, length), positions)
    for query in range(length):
        (gradient,) = torch.autograd.grad(mixed[0, query].square().sum(), x, retain_graph=True)
        read = {key for key in range(length) if gradient[0, key].abs().max() > 0}
        near = {key for key in range(length) if abs(key - query) < window or key < first or query < first}
        assert read == near


@pytest.mark.parametrize("positions", ["relative", "rotary", "none"])
@torch.no_grad()
def test_blocks_give_what_a_mask_over_all_pairs_gives(positions, monkeypatch):
    monkeypatch.setattr(local_attention, "SCORES", 97)  # a block at a time
    layer, given = layer_of(29, 4, positions=positions, relative_per_layer=positions == "relative")
    plain = SelfAttention(ModelSettings(**SHAPE, attention_windows=(4,), positions=positions,
                                        relative_per_layer=positions == "relative"))  # fmt: skip
    plain.load_state_dict(layer.state_dict())
    x, lengths = torch.randn(2, 29, 10), torch.tensor([[29], [11]])
    real = torch.arange(29) < lengths
    mask = torch.zeros(2, 1, 1, 29).masked_fill(~real[:, None, None], -torch.inf)
    found, wanted = (each.padded(x, mask, given)[real] for each in (layer, plain))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    shown = layer.weights(x, real, given, causal=False)
    torch.testing.assert_close(
        shown[1, :, :11], plain.weights(x, real, given, causal=False)[1, :, :11], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("name", ["global tokens", "sums of blocks", "biases and windows"])
@torch.no_grad()
def test_a_source_is_read_alike_alone_and_beside_longer_ones(name):
    model = built(name)[1]
    ids, lengths = torch.randint(4, SIZE, (4, 37)), [37, 3, 4, 19]
    mask = torch.arange(37) < torch.tensor(lengths)[:, None]
    together = model.encoder(ids, mask)
    for row, length in enumerate(lengths):
        alone = model.encoder(ids[row : row + 1, :length], mask[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], rtol=0, atol=2e-6)
        assert not together[row, length:].any()


@torch.no_grad()
def test_the_weights_of_a_layer_with_global_tokens_are_those_it_applies():
    layer, positions = layer_of(13, 3, positions="none", global_tokens=2)
    x, mask = torch.randn(1, 13, 10), torch.ones(1, 13, dtype=torch.bool)
    weights = layer.weights(x, mask, positions, causal=False)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 13))
    values = layer.project(x).chunk(3, -1)[2].unflatten(-1, (2, 6)).transpose(1, 2)
    global_values = layer.global_maps.key_value(x).chunk(2, -1)[1].unflatten(-1, (2, 6)).transpose(1, 2)
    mixed = torch.cat([(weights @ global_values)[:, :, :2], (weights @ values)[:, :, 2:]], 2)
    wanted = layer.padded(x, torch.zeros(1, 1, 1, 13), positions)
    torch.testing.assert_close(layer.output(mixed.transpose(1, 2).flatten(2)), wanted, rtol=0, atol=1e-6)


def test_no_layer_with_a_window_is_given_a_bias_for_all_pairs_of_tokens():
    layer, positions = layer_of(20_011, 4, positions="relative", global_block=1009)
    assert isinstance(layer, LocalAttention)
    assert positions.bias is None
    assert positions.near(4).shape == (2, 7)
    assert positions.blocks.shape == (2, 19, 19)
