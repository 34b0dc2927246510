"""The same weights give the same numbers in torch.nn.Transformer."""

import pytest
import torch
from torch import nn

from translume.errors import SettingsError
from translume.interchange.torch_transformer import weights_from_torch, weights_to_torch
from translume.model.layout import Layout


def theirs_of(settings):
    shape = (settings.width, settings.attention_heads, settings.feed_forward, 0.0, settings.activation)
    options = {"batch_first": True, "norm_first": settings.norm == "pre"}
    final = [nn.LayerNorm(settings.width) if settings.norm == "pre" else None for _ in range(2)]
    above, below = nn.TransformerEncoderLayer(*shape, **options), nn.TransformerDecoderLayer(*shape, **options)
    encoder = nn.TransformerEncoder(above, settings.encoder_layers, final[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(below, settings.decoder_layers, final[1])
    return nn.Transformer(
        settings.width, settings.attention_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    ).eval()


@pytest.mark.parametrize("changes", [{"norm": "post"}, {"norm": "pre"}, {"norm": "pre", "activation": "gelu"}])
@torch.no_grad()
def test_hidden_states_equal_torch_nn_transformers(make, changes):
    model, settings = make(**changes)
    theirs = theirs_of(settings)
    state = weights_to_torch(model, settings)
    theirs.load_state_dict(state)
    source, target = torch.randint(53, (3, 7)), torch.randint(53, (3, 5))
    mask = torch.arange(7)[None] < torch.tensor([7, 3, 5])[:, None]
    places = [torch.arange(each.size(1)).expand(each.shape) for each in (source, target)]
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    wanted = theirs(
        model.encoder.embedding(source, places[0]), model.decoder.embedding(target, places[1]),
        tgt_mask=future, src_key_padding_mask=~mask, memory_key_padding_mask=~mask,
    )  # fmt: skip
    stepped, _ = model.decoder(target, model.start(source, mask))
    torch.testing.assert_close(stepped, wanted, rtol=0, atol=1e-5)
    layout, whole = Layout.of(mask), Layout.of(torch.ones_like(target, dtype=torch.bool))
    packed = model.decoder.packed(target, whole, model.encoder.packed(source, layout), layout)
    torch.testing.assert_close(whole.unpack(packed), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_weights_survive_a_round_trip_through_torch(make, norm):
    model, settings = make(norm=norm)
    ours = model.state_dict()
    back = weights_from_torch(weights_to_torch(model, settings), settings)
    assert set(ours) - set(back) == {
        "encoder.embedding.table.weight", "decoder.embedding.table.weight", "head.weight", "head.bias",
    }  # fmt: skip
    for name, tensor in back.items():
        assert torch.equal(tensor, ours[name]), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotary"},
         "model.positions: found 'rotary', expected 'sinusoidal' or 'marian' or 'fairseq' or 'learned' "
         "or 'none' for torch.nn.Transformer"),
        ({"decoder_mixing": "ssru"},
         "model.decoder_mixing: found 'ssru', expected 'attention' for torch.nn.Transformer"),
    ],
)  # fmt: skip
def test_settings_unsupported_by_torch_are_refused_by_name(make, changes, message):
    model, settings = make(**changes)
    with pytest.raises(SettingsError) as caught:
        weights_to_torch(model, settings)
    assert str(caught.value) == message
