"""Position encodings: relative biases against T5's, and every encoding in training, decoding and saving."""

from types import SimpleNamespace

import pytest
import torch

from translume.checkpoint import build_model
from translume.config import ModelSettings, SoftmaxSettings
from translume.config.model import POSITIONS
from translume.errors import SettingsError
from translume.model.positions import RelativeBias, distance_buckets, encoding_class, rotation

CPU = torch.device("cpu")


def relative(**changes: int) -> RelativeBias:
    values = {"width": 22, "attention_heads": 11, "positions": "relative"}
    return RelativeBias(ModelSettings(**{**values, **changes}))


@pytest.fixture(scope="module")
def t5():
    return pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("count", "furthest"), [(32, 128), (6, 9), (4, 3), (64, 100)])
def test_buckets_equal_those_of_t5(t5, causal, count, furthest):
    distances = torch.arange(-300, 301)
    expected = t5._relative_position_bucket(distances, not causal, count, furthest)
    found = distance_buckets(distances, count, furthest, causal=causal)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_equals_that_of_t5(t5, causal):
    config = SimpleNamespace(
        is_decoder=causal, relative_attention_num_buckets=8, relative_attention_max_distance=12, d_model=22, d_kv=2,
        num_heads=11, dropout_rate=0.0,
    )  # fmt: skip
    theirs = t5(config, has_relative_attention_bias=True, layer_idx=0)
    ours = relative(relative_buckets=8, relative_max_distance=12)
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(ours.bias)
    whole = ours.for_attention(0, 29, causal=causal, device=CPU).bias
    torch.testing.assert_close(whole[None], theirs.compute_bias(29, 29))


def test_the_bias_of_some_positions_is_a_slice_of_the_full_bias():
    encoding = relative()
    whole = encoding.for_attention(0, 40, causal=True, device=CPU).bias
    for start, count in ((0, 1), (7, 1), (7, 5), (39, 1)):
        part = encoding.for_attention(start, count, causal=True, device=CPU).bias
        assert torch.equal(part, whole[:, start : start + count, : start + count])


@pytest.mark.parametrize("positions", POSITIONS)
def test_class_attributes_agree_with_the_encoding_returned(positions):
    encoding = encoding_class(positions)(ModelSettings(width=24, attention_heads=4, positions=positions))
    given = encoding.for_attention(3, 5, causal=True, device=CPU)
    assert encoding.in_attention == (given.rotation is not None or given.bias is not None)
    assert encoding.in_attention <= (encoding.table is None)
    assert encoding.trained == isinstance(encoding.table, torch.nn.Parameter)


@pytest.mark.parametrize("positions", POSITIONS)
def test_training_lowers_the_loss(make_inputs, positions):
    torch.manual_seed(11)
    settings = ModelSettings(
        width=24, feed_forward=13, encoder_layers=1, decoder_layers=2, attention_heads=4, max_positions=29,
        positions=positions, head=SoftmaxSettings(tie="none"), dropout=0.0,
    )  # fmt: skip
    model = build_model(settings, 17, 19)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    data = make_inputs([5, 2, 7], [3, 6, 1]).all()
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model.loss(*data)
        loss.objective.backward()
        optimizer.step()
        losses.append(float(loss.nll) / loss.tokens)
    assert losses[-1] < losses[0] - 0.5
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_relative_biases_are_weights_of_each_stack_shared_by_its_layers(make):
    names = [name for name in make(positions="relative").state_dict() if "positions" in name]
    assert names == ["encoder.embedding.positions.bias", "decoder.embedding.positions.bias"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotory"}, "model.positions: found 'rotory'; did you mean 'rotary'?"),
        ({"positions": "learned", "relative_buckets": 16},
         "model: relative_buckets is set with positions 'learned', expected 'relative'"),
        ({"positions": "relative", "relative_buckets": 32, "relative_max_distance": 16},
         "model: relative_max_distance is 16, expected more than half of relative_buckets, 16"),
        ({"positions": "rotary", "width": 6, "attention_heads": 2},
         "model: rotary positions need an even width per head, found 3"),
        ({"positions": "marian", "width": 7, "attention_heads": 7},
         "model: marian positions need an even width, found 7"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(SettingsError) as caught:
        ModelSettings(**changes)
    assert str(caught.value) == message


def test_frequencies_of_rotations_are_rounded_as_little_as_powers_are() -> None:
    sines = rotation(torch.tensor([1]), 64)[1, 0, 1:32].double()  # of angles below 1: the frequencies
    exact = 10_000.0 ** -(torch.arange(2, 64, 2, dtype=torch.float64) / 64)
    assert ((sines.arcsin() / exact - 1).abs() < 2e-7).all()  # 4.9e-7 from an exponential of logarithms
