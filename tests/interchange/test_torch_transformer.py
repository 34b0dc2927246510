"""The same weights give the same numbers in torch.nn.Transformer."""

import pytest
import torch
from torch import nn

from translume.model.layout import Layout


def theirs_of(model, settings):
    """A torch.nn.Transformer with the weights of a model; with post-norm, one without final norms."""
    shape = (settings.width, settings.attention_heads, settings.feed_forward, 0.0, settings.activation)
    options = {"batch_first": True, "norm_first": settings.norm == "pre"}
    final = [nn.LayerNorm(settings.width) if settings.norm == "pre" else None for _ in range(2)]
    above, below = nn.TransformerEncoderLayer(*shape, **options), nn.TransformerDecoderLayer(*shape, **options)
    encoder = nn.TransformerEncoder(above, settings.encoder_layers, final[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(below, settings.decoder_layers, final[1])
    theirs = nn.Transformer(
        settings.width, settings.attention_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    ).eval()
    weights, state = model.state_dict(), {}
    for name in theirs.state_dict():
        ours = name.replace("self_attn.in_proj_", "self_attention.query_key_value.").replace(
            "self_attn.out_proj", "self_attention.output"
        )
        ours = ours.replace("multihead_attn.out_proj", "cross_attention.output")
        ours = ours.replace("linear1", "feed_forward.inner").replace("linear2", "feed_forward.outer")
        norms = ["self", "cross", "feed_forward"] if name.startswith("decoder") else ["attention", "feed_forward"]
        for number, norm in enumerate(norms, 1):
            ours = ours.replace(f".norm{number}.", f".around_{norm}.norm.")
        if "multihead_attn.in_proj_" in ours:
            parts = [
                ours.replace("multihead_attn.in_proj_", f"cross_attention.{part}.") for part in ("query", "key_value")
            ]
            state[name] = torch.cat([weights[part] for part in parts])
        else:
            state[name] = weights[ours]
    theirs.load_state_dict(state)
    return theirs


@pytest.mark.parametrize("changes", [{"norm": "post"}, {"norm": "pre"}, {"norm": "pre", "activation": "gelu"}])
@torch.no_grad()
def test_hidden_states_equal_torch_nn_transformers(make, changes):
    model, settings = make(**changes)
    theirs = theirs_of(model, settings)
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
    layout, whole = Layout.from_mask(mask), Layout.from_mask(torch.ones_like(target, dtype=torch.bool))
    packed = model.decoder.packed(target, whole, model.encoder.packed(source, layout), layout)
    torch.testing.assert_close(whole.unpack(packed), wanted, rtol=0, atol=1e-5)
