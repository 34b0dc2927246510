"""Models of transformers' families give the same numbers here, and the same weights on the way back."""

from pathlib import Path

import pytest
import torch

from translume.checkpoint import build_model
from translume.config import ModelSettings
from translume.engine import build_engine, self_test
from translume.errors import SettingsError
from translume.interchange.huggingface.families import family_for, family_named

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

PLACE, SIZE = Path("config.json"), 97
SHAPE = {
    "vocab_size": SIZE, "d_model": 34, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 17,
    "decoder_attention_heads": 17, "encoder_ffn_dim": 29, "decoder_ffn_dim": 29, "max_position_embeddings": 41,
    "decoder_start_token_id": 2,
}  # fmt: skip
UNUSED = {"bart": 2, "mbart": 2, "m2m_100": 0}
"""Rows of the position table before the first position."""


def random_model(family, **changes):
    """A model of transformers with random weights, norms and biases, and its config.json."""
    config = transformers.AutoConfig.for_model(family.model_type, **{**SHAPE, **changes})
    torch.manual_seed(23)
    model = getattr(transformers, family.architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if family.logit_bias:
            model.final_logits_bias.copy_(torch.randn(1, SIZE))
    return model, config.to_dict()


@pytest.fixture(
    scope="module",
    params=["BartForConditionalGeneration", "MBartForConditionalGeneration", "M2M100ForConditionalGeneration"],
)
def pair(request):
    """A family, a model of transformers, its settings here, and the model made from its weights."""
    family = family_named(PLACE, {"architectures": [request.param]})
    theirs, values = random_model(family, scale_embedding=request.param != "BartForConditionalGeneration")
    state = theirs.state_dict()
    settings = ModelSettings(**family.model_values(family.read_config(PLACE, values), state))
    model = build_model(settings, SIZE, SIZE).eval()
    model.load_state_dict(family.weights_from(state, settings))
    return family, theirs, settings, model


@torch.no_grad()
def test_encoder_states_and_logits_equal_those_of_transformers(pair):
    _, theirs, _, model = pair
    mask = torch.arange(11)[None] < torch.tensor([11, 5, 8])[:, None]
    source, target = torch.randint(4, SIZE, (3, 11)).masked_fill(~mask, 1), torch.randint(4, SIZE, (3, 7))
    wanted = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target, use_cache=False)
    state = model.start(source, mask)
    memory = wanted.encoder_last_hidden_state.masked_fill(~mask[..., None], 0.0)
    torch.testing.assert_close(state.memory, memory, rtol=0, atol=1e-5)
    hidden, _ = model.decoder(target, state)
    belief = model.head.next_token(hidden.flatten(0, 1), None).log_probs()
    torch.testing.assert_close(belief, wanted.logits.flatten(0, 1).log_softmax(-1), rtol=0, atol=1e-5)


def test_the_way_back_gives_the_same_family_and_weights(pair):
    family, theirs, settings, model = pair
    assert family_for(settings).architecture == family.architecture
    weights, back = theirs.state_dict(), family.weights_to(model, settings)
    assert set(back) == set(weights)
    for name, value in weights.items():
        unused = UNUSED[family.model_type] if "embed_positions" in name else 0
        assert back[name].shape == value.shape, name
        assert torch.equal(back[name][unused:], value[unused:]), name


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_the_engine_agrees_with_the_model(pair, dtype):
    *_, model = pair
    assert self_test(build_engine(model, dtype), model).agrees


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("BartForConditionalGeneration", {"normalize_before": True},
         "normalize_before: found true, expected false for BartForConditionalGeneration"),
        ("MBartForConditionalGeneration", {"add_final_layer_norm": False},
         "add_final_layer_norm: found false, expected true for MBartForConditionalGeneration"),
        ("M2M100ForConditionalGeneration", {"pad_token_id": 3},
         "pad_token_id: found 3, expected 1, after which M2M100ForConditionalGeneration counts positions"),
        ("BartForConditionalGeneration", {"decoder_attention_heads": 2},
         "decoder_attention_heads: found 2, expected 17, that of encoder_attention_heads; here both are alike"),
        ("BartForConditionalGeneration", {"tie_word_embeddings": False},
         "tie_word_embeddings: found false, expected true for BartForConditionalGeneration"),
    ],
)  # fmt: skip
def test_unsupported_settings_of_a_family_are_refused_by_name(architecture, values, message):
    family = family_named(PLACE, {"architectures": [architecture]})
    whole = {**SHAPE, "pad_token_id": 1, "eos_token_id": 2, **values}
    with pytest.raises(SettingsError) as error:
        family.model_values(family.read_config(PLACE, whole), {})
    assert str(error.value) == f"config.json: {message}"
