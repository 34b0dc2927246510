"""MoonshineForConditionalGeneration: samples of sound behind three convolutions, and positions that rotate in part."""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from translume.config import ModelSettings, SourceKind
from translume.config.sources import WaveformSettings
from translume.errors import SettingsError, check_known
from translume.interchange.huggingface.bart import ACTIVATIONS, OURS, SIDES
from translume.interchange.huggingface.config import ForeignConfig, read_boolean, read_integer, read_json, shown
from translume.interchange.huggingface.family import Converted, Family, Names, TiedTable, layer_names, with_kinds
from translume.interchange.huggingface.tokenizer import read_wrapped_tokenizer
from translume.interchange.huggingface.trocr import PREPROCESSOR, PROCESSOR
from translume.text import Tokenizer

GATES = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu"}
"""Activations of the decoder, whose feed-forward blocks have a gate."""
SIZES = {
    "width": "hidden_size", "feed_forward": "intermediate_size", "attention_heads": "decoder_num_attention_heads",
    "encoder_layers": "encoder_num_hidden_layers", "decoder_layers": "decoder_num_hidden_layers",
    "max_positions": "max_position_embeddings",
}  # fmt: skip
_BLOCKS: Names = {
    "self_attention.query_key_value": [f"self_attn.{name}_proj" for name in "qkv"],
    "self_attention.output": ["self_attn.o_proj"], "feed_forward.inner": ["mlp.fc1"], "feed_forward.outer": ["mlp.fc2"],
}  # fmt: skip
LAYERS: dict[str, Names] = {
    "encoder": {
        **_BLOCKS, "around_attention.norm": ["input_layernorm"],
        "around_feed_forward.norm": ["post_attention_layernorm"],
    },
    "decoder": {
        **_BLOCKS, "around_self.norm": ["input_layernorm"], "cross_attention.query": ["encoder_attn.q_proj"],
        "cross_attention.key_value": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
        "cross_attention.output": ["encoder_attn.o_proj"], "around_cross.norm": ["post_attention_layernorm"],
        "around_feed_forward.norm": ["final_layernorm"],
    },
}  # fmt: skip
OTHERS = {
    "encoder.norm": ["model.encoder.layer_norm"],
    "decoder.norm": ["model.decoder.norm"],
    "encoder.embedding.group_norm": ["model.encoder.groupnorm"],
    **{f"encoder.embedding.convolutions.{number}": [f"model.encoder.conv{number + 1}"] for number in (1, 2)},
}
PROCESSED = {"do_normalize": (True, False), "sampling_rate": (16_000, 16_000), "feature_size": (1, 1)}
"""Settings of Wav2Vec2FeatureExtractor: the default, and the value that is read."""


class Moonshine(Family):
    """MoonshineForConditionalGeneration (Jeffries et al. 2024)."""

    architecture = "MoonshineForConditionalGeneration"
    model_type = "moonshine"
    loader = "AutoModelForSpeechSeq2Seq"
    ties = ("target", "none")
    modern: ClassVar[frozenset[str]] = frozenset({"encoder", "rotary_base", "rotary_width"})

    def read_config(self, place: Path, values: Mapping[str, Any]) -> ForeignConfig:
        # Without padding, `generate` fills up with EOS.
        usual = {"pad_token_id": values.get("eos_token_id", 2)}
        return super().read_config(place, usual | {name: each for name, each in values.items() if each is not None})

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        place, values = config.place, config.values
        sizes = {ours: read_integer(place, values, theirs) for ours, theirs in SIZES.items()}
        heads, size = sizes["attention_heads"], sizes["width"] // sizes["attention_heads"]
        rope = values.get("rope_parameters") or {}
        part = rope.get("partial_rotary_factor", values.get("partial_rotary_factor", 0.9))
        wanted = {
            "encoder_num_attention_heads": heads, "encoder_num_key_value_heads": heads,
            "decoder_num_key_value_heads": heads, "head_dim": size, "rope_scaling": None,
        }  # fmt: skip
        for name, value in wanted.items():  # transformers computes no other numbers of heads
            if values.get(name, value) != value:
                raise SettingsError(f"{place}: {name}: found {shown(values[name])}, expected {shown(value)}")
        if rope.get("rope_type", "default") != "default" or int(size * part) % 2:
            raise SettingsError(
                f'{place}: rope_parameters: found {shown(rope)}, expected type "default" and a part of the {size} '
                "components of a head that is an even number"
            )
        tie = "target" if read_boolean(place, values, "tie_word_embeddings", True) else "none"
        acts = {
            side: values.get(f"{side}_hidden_act", usual) for side, usual in zip(SIDES, ("gelu", "silu"), strict=True)
        }
        for side, known in zip(SIDES, (ACTIVATIONS, GATES), strict=True):
            check_known(f"{place}: {side}_hidden_act", acts[side], known)
        return {
            **sizes,
            "dropout": 0.0,
            "attention_dropout": values.get("attention_dropout", 0.0),
            "activation": GATES[acts["decoder"]],
            "encoder": {"activation": ACTIVATIONS[acts["encoder"]]},
            "positions": "rotary",
            "rotary_base": float(rope.get("rope_theta", values.get("rope_theta", 10_000.0))),
            "rotary_width": int(size * part),
            "scale_embeddings": False,
            "head": {"kind": "softmax", "tie": tie, "bias": False},
        }

    def data_values(self, config: ForeignConfig) -> dict[str, Any]:
        folder = config.place.parent
        path = next((each for each in (folder / PREPROCESSOR, folder / PROCESSOR) if each.exists()), None)
        values = {} if path is None else read_json(path)
        values = values.get("feature_extractor", values)
        for name, (usual, wanted) in PROCESSED.items() if path is not None else ():
            if values.get(name, usual) != wanted:
                raise SettingsError(f"{path}: {name}: found {shown(values.get(name, usual))}, expected {shown(wanted)}")
        return {
            "source": {"kind": "waveform"},
            "cleaning": {"max_tokens": WaveformSettings().longest(0), "max_ratio": 0.0},
        }

    def inputs(self, read: Tensor, source: SourceKind) -> dict[str, Tensor]:
        return {"input_values": read.flatten(1)}

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        tokenizer = read_wrapped_tokenizer(folder, config, sources=False)
        return tokenizer, tokenizer

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        names = ("model.decoder.embed_tokens.weight", "proj_out.weight")
        if settings.head.tie == "target":
            return [(OURS[1:], names)]
        return [((ours,), (name,)) for ours, name in zip(OURS[1:], names, strict=True)]

    def names(self, settings: ModelSettings) -> Names:
        names = dict(OTHERS)
        for side, count in zip(SIDES, (settings.encoder_layers, settings.decoder_layers), strict=True):
            for layer in (f"{side}.layers.{number}" for number in range(count)):
                names |= layer_names(layer, f"model.{layer}", LAYERS[side])
        return {**with_kinds(names), "encoder.embedding.convolutions.0.weight": ["model.encoder.conv1.weight"]}

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        zeros = {  # norms and attention have no biases, or fewer
            each: torch.zeros(settings.width)
            for ours, theirs in self.names(settings).items()
            for each in theirs
            if ours.endswith(".bias") and ".feed_forward." not in ours and "embedding" not in ours
        }
        # `state` reads a tensor when it is looked up, so it is not copied. Nothing is written to it.
        found = ChainMap(cast("MutableMapping[str, Tensor]", state), zeros)
        heads = settings.attention_heads

        def converted(name: str, tensor: Tensor) -> Tensor:
            if ".q_proj." in name or ".k_proj." in name:  # pairs of components are adjacent there
                return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).flatten(0, 2)
            gated = ".decoder." in name and ".fc1." in name
            return torch.cat(tensor.chunk(2)[::-1]) if gated else tensor

        return super().weights_from(Converted(found, converted), settings)
