"""Cross-attention in the decoder state: the last layer's mean over heads, computed only on request."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.checkpoint import build_model
from translume.config import ModelSettings, SoftmaxSettings

S, V = 7, 23


def model(norm="pre", mixing="attention"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        settings = ModelSettings(
            width=22, feed_forward=29, encoder_layers=1, decoder_layers=2, attention_heads=11, norm=norm,
            decoder_mixing=mixing, max_positions=41, head=SoftmaxSettings(tie="none"),
        )  # fmt: skip
        return build_model(settings, V, V).eval()


def inputs(rows=3):
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, V, (rows, S), generator=generator)
    mask = torch.arange(S) < torch.tensor([[7], [4], [2]])[:rows]
    return source, mask, torch.randint(4, V, (rows, 5), generator=generator)


@pytest.mark.parametrize(("norm", "mixing"), [("pre", "attention"), ("post", "attention"), ("pre", "ssru")])
@torch.no_grad()
def test_attention_is_the_last_layers_mean_over_heads(norm, mixing):
    network, (source, mask, target) = model(norm, mixing), inputs()
    cross = list(network.decoder.stack)[-1].cross_attention
    asked = []
    cross.query.register_forward_pre_hook(lambda module, given: asked.append(given[0]))
    state = network.start_with_attention(source, mask)
    assert torch.equal(state.attention, (~mask).float())
    memory = state.memory
    for t in range(5):
        asked.clear()
        _, state = network.step(target[:, : t + 1], state)
        query = cross.query(asked[0]).view(3, 11, 2)
        keys = cross.key_value(memory)[..., :22].view(3, S, 11, 2)
        scores = torch.einsum("bhd,bshd->bhs", query, keys) / 2**0.5
        wanted = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1).mean(1)
        torch.testing.assert_close(state.attention, wanted, rtol=1e-4, atol=1e-6)
        assert state.attention.sum(1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
        assert (state.attention[~mask] == 0).all()


@given(pieces=st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda pieces: sum(pieces) <= 5))
@torch.no_grad()
def test_attention_does_not_depend_on_how_the_target_is_split(pieces):
    network, (source, mask, target) = model(), inputs()
    whole = network.decoder(target[:, : sum(pieces)], network.start_with_attention(source, mask))[1].attention
    state = network.start_with_attention(source, mask)
    for part in target[:, : sum(pieces)].split(pieces, 1):
        _, state = network.decoder(part, state)
    torch.testing.assert_close(state.attention, whole, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_attention_changes_no_output_and_is_not_computed_unless_requested(monkeypatch):
    network, (source, mask, target) = model(), inputs()
    looking, plain = network.start_with_attention(source, mask), network.start(source, mask)
    rows = torch.tensor([0, 0, 2, 2])
    for t in range(4):
        one, looking = network.step(target[: len(target), : t + 1], looking)
        with monkeypatch.context() as patched:
            patched.setattr(type(network.decoder), "_attention", None)
            other, plain = network.step(target[: len(target), : t + 1], plain)
        assert torch.equal(one.log_probs(), other.log_probs())
        assert plain.attention is None
        if t == 1:
            looking, plain, target = looking.select(rows), plain.select(rows), target[rows]
            assert looking.attention.shape == (4, S)


@torch.no_grad()
def test_each_row_of_a_sentence_has_its_own_attention():
    network, (source, mask, target) = model(), inputs()
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    _, state = network.step(target[:, :1], network.start_with_attention(source, mask))
    prefix = torch.cat([target[:, :1][rows], torch.tensor([[5], [6], [7], [8], [9], [10]])], 1)
    _, together = network.step(prefix, state.select(rows))
    for row, sentence in enumerate(rows.tolist()):
        one = slice(sentence, sentence + 1)
        _, alone = network.step(prefix[row : row + 1], network.start_with_attention(source[one], mask[one]))
        torch.testing.assert_close(together.attention[row], alone.attention[0], rtol=1e-4, atol=1e-6)
