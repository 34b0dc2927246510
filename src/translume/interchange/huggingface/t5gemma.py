"""T5GemmaForConditionalGeneration: Gemma 2's layers as encoder and decoder (Zhang et al. 2025).

Its norms multiply by 1 + gain, and its scores are divided by a number of their own. Here both belong to the weights.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.errors import SettingsError
from translume.interchange.huggingface.config import ForeignConfig, read_boolean, read_integer, shown
from translume.interchange.huggingface.family import (
    Converted,
    Family,
    Names,
    TiedTable,
    encoder_differences,
    layer_names,
    require,
    with_kinds,
)
from translume.interchange.huggingface.tokenizer import read_tokenizer
from translume.model import Transformer
from translume.text import Tokenizer

SIDES = ("encoder", "decoder")
SIZES = {
    "width": "hidden_size", "feed_forward": "intermediate_size", "attention_heads": "num_attention_heads",
    "key_value_heads": "num_key_value_heads", "head_width": "head_dim",
}  # fmt: skip
PLAIN = {"attention_bias": False, "hidden_activation": "gelu_pytorch_tanh"}
"""Settings of a side that must have this value if they are present."""
OURS = ("decoder.embedding.table.weight", "head.weight")
THEIRS = ("model.decoder.embed_tokens.weight", "lm_head.out_proj.weight")
ENCODER_TABLE: TiedTable = (("encoder.embedding.table.weight",), ("model.encoder.embed_tokens.weight",))
_BLOCKS = {
    "self_attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": ("self_attn.o_proj",), "feed_forward.inner": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.outer": ("mlp.down_proj",), "around_feed_forward.norm": ("pre_feedforward_layernorm",),
    "around_feed_forward.after": ("post_feedforward_layernorm",),
}  # fmt: skip


def _around(ours: str, theirs: str) -> Names:
    return {f"{ours}.norm": (f"pre_{theirs}_layernorm",), f"{ours}.after": (f"post_{theirs}_layernorm",)}


LAYERS: dict[str, Names] = {
    "encoder": {**_BLOCKS, **_around("around_attention", "self_attn")},
    "decoder": {
        **_BLOCKS, **_around("around_self", "self_attn"), **_around("around_cross", "cross_attn"),
        "cross_attention.query": ("cross_attn.q_proj",),
        "cross_attention.key_value": ("cross_attn.k_proj", "cross_attn.v_proj"),
        "cross_attention.output": ("cross_attn.o_proj",),
    },
}  # fmt: skip


class T5Gemma(Family):
    """T5GemmaForConditionalGeneration."""

    architecture = "T5GemmaForConditionalGeneration"
    model_type = "t5gemma"
    ties = ("target", "none")
    language_tags = "source"
    heads = ("softmax", "capped")
    possible: Mapping[str, tuple[object, ...]] = {
        "norm": ("both",), "normalization": ("rms",), "activation": ("geglu",), "bias": (False,), "segments": (0,),
        "embedding_norm": (False,), "decoder_mixing": ("attention",), "scale_embeddings": (True,),
    }  # fmt: skip
    like: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-6, "attn_logit_softcapping": 50.0, "rope_theta": 10_000.0, "query_pre_attn_scalar": 256,
    }  # fmt: skip
    """Settings of a side with their defaults, which both sides must have in common."""
    layers: ClassVar[Mapping[str, Names]] = LAYERS
    """The names of the parts of a layer of each side."""
    places: ClassVar[Mapping[str, str]] = {"encoder": "encoder", "decoder": "decoder"}
    """Where the settings of each side are in config.json."""
    stacks: ClassVar[Mapping[str, str]] = {"encoder": "model.encoder", "decoder": "model.decoder"}
    """What the names of the weights of each side begin with."""
    period: ClassVar[int] = 2
    """Every so many layers the usual `layer_types` have one that reads all positions."""
    _factor = 1.0
    """What the weights of queries are multiplied by here; `model_values` reads it."""
    modern: ClassVar[frozenset[str]] = frozenset(
        {"encoder", "key_value_heads", "attention_cap", "attention_windows", "rotary_base"}
    )

    def read_config(self, place: Path, values: Mapping[str, Any]) -> ForeignConfig:
        decoder = self.sides(place, values)["decoder"]
        given = {name: value for name, value in values.items() if value is not None}
        ids = {name: decoder.get(name) for name in ("pad_token_id", "eos_token_id", "vocab_size")}
        return super().read_config(place, {**ids, "decoder_start_token_id": decoder.get("bos_token_id"), **given})

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        place, values = config.place, config.values
        sides = self.sides(place, values)
        self._factor = math.sqrt(sides["decoder"]["head_dim"] / sides["decoder"].get("query_pre_attn_scalar", 256))
        for name, usual in self.like.items():
            found = [side.get(name, usual) for side in sides.values()]
            if found[0] != found[1]:
                raise SettingsError(
                    f"{place}: {self.places['encoder']}.{name}: found {shown(found[0])}, expected {shown(found[1])}, "
                    "that of the decoder"
                )
        windows = {side: self.window(side, each.get("sliding_window") or 0) for side, each in sides.items()}
        settings = {
            side: _layers(place, self.places[side], each, self.period, windows[side]) for side, each in sides.items()
        }
        decoder, cap = sides["decoder"], sides["decoder"].get("final_logit_softcapping")
        tie = "target" if read_boolean(place, values, "tie_word_embeddings", True) else "none"
        dropout = values.get("dropout_rate", 0.0)
        return {
            **settings["decoder"],
            "encoder": encoder_differences(settings["encoder"], settings["decoder"]),
            "encoder_layers": read_integer(place, sides["encoder"], "num_hidden_layers"),
            "decoder_layers": read_integer(place, decoder, "num_hidden_layers"),
            **dict.fromkeys(("dropout", "activation_dropout", "final_dropout"), dropout),
            "attention_dropout": values.get("attention_dropout", 0.0),
            "norm": "both",
            "normalization": "rms",
            "norm_epsilon": decoder.get("rms_norm_eps", 1e-6),
            "activation": "geglu",
            "bias": False,
            "attention_cap": decoder.get("attn_logit_softcapping") or 0.0,
            "positions": "rotary",
            "rotary_base": float(decoder["rope_theta"]),
            "max_positions": min(read_integer(place, side, "max_position_embeddings") for side in sides.values()),
            "head": {"tie": tie, "bias": False, **({"kind": "capped", "cap": cap} if cap else {"kind": "softmax"})},
        }

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        return read_tokenizer(folder, config, "", endless=True)

    def describes(self, settings: ModelSettings) -> bool:
        return settings.norm == "both"

    def sides(self, place: Path, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the settings of encoder and decoder, with `rope_theta`. Raises SettingsError for unsupported ones."""
        sides = {}
        for side in SIDES:
            given = values.get(side)
            if not isinstance(given, dict):
                raise SettingsError(f"{place}: {side}: found {shown(given)}, expected the settings of the {side}")
            rope = given.get("rope_parameters") or {}
            found = {"rope_type": rope.get("rope_type", "default"), **given}
            require(f"{place}: {side}.", found, {"rope_type": "default", "rope_scaling": None, **PLAIN})
            theta = rope.get("rope_theta", given.get("rope_theta", self.like["rope_theta"]))
            sides[side] = {**given, "rope_theta": theta}
        return sides

    def window(self, side: str, size: int) -> int:
        """Return the window of a layer of a side with this `sliding_window`; 0 for none."""
        # A token of an encoder reads those that are a window away, one of a decoder does not.
        return size and size + (side == "encoder")

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        settings, size = checkpoint.config.model, len(checkpoint.source_tokenizer)
        specials = checkpoint.target_tokenizer.specials
        sides = {}
        for side, own, layers in (
            ("encoder", settings.of_encoder, settings.encoder_layers),
            ("decoder", settings, settings.decoder_layers),
        ):
            windows = [own.window(layer) for layer in range(layers)]
            window = max(windows) - self.window(side, 1) + 1 if any(windows) else None
            sides[side] = {
                **{theirs: getattr(own, ours) for ours, theirs in SIZES.items()},
                "head_dim": own.size_per_head,
                "num_key_value_heads": own.key_value_heads or own.attention_heads,
                "num_hidden_layers": layers,
                "query_pre_attn_scalar": settings.size_per_head,
                "sliding_window": window,
                "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
                "attn_logit_softcapping": settings.attention_cap or None,
                "final_logit_softcapping": getattr(settings.head, "cap", None),
                "rms_norm_eps": settings.norm_epsilon,
                "max_position_embeddings": settings.max_positions,
                "rope_parameters": {"rope_type": "default", "rope_theta": settings.rotary_base},
                "vocab_size": size,
                "pad_token_id": specials.pad,
                "bos_token_id": specials.bos,
                "eos_token_id": specials.eos,
            }
        return {
            **sides,
            "dropout_rate": settings.dropout,
            "attention_dropout": settings.attention_dropout,
            "tie_word_embeddings": settings.head.tie == "target",
        }

    def refuse(self, settings: ModelSettings) -> None:
        super().refuse(settings)
        for own in (settings, settings.of_encoder):
            if len({*own.attention_windows} - {0}) > 1:
                raise SettingsError(
                    f"model.attention_windows: found {list(own.attention_windows)}, expected one size of windows for "
                    f"{self.architecture}"
                )

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        if settings.head.tie == "target":
            return [ENCODER_TABLE, (OURS, THEIRS)]
        return [ENCODER_TABLE, *(((ours,), (theirs,)) for ours, theirs in zip(OURS, THEIRS, strict=True))]

    def names(self, settings: ModelSettings) -> Names:
        names: dict[str, list[str]] = {}
        for side, layers in zip(SIDES, (settings.encoder_layers, settings.decoder_layers), strict=True):
            names[f"{side}.norm"] = [f"{self.stacks[side]}.norm"]
            for number in range(layers):
                theirs = f"{self.stacks[side]}.layers.{number}"
                names |= layer_names(f"{side}.layers.{number}", theirs, self.layers[side])
        return with_kinds(names, ["weight"])

    def sizes(self, ours: str, settings: ModelSettings) -> list[int]:
        own = settings.of_encoder if ours.startswith("encoder") else settings
        keys = [own.key_value_width] * 2
        if ours.endswith("query_key_value.weight"):
            return [own.attention_width, *keys]
        return keys if ours.endswith("key_value.weight") else [own.feed_forward] * 2

    def weights_to(self, model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
        return dict(Converted(super().weights_to(model, settings), partial(self._converted, -1)))

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        return super().weights_from(Converted(state, partial(self._converted, 1), self.renamed), settings)

    def _converted(self, sign: int, name: str, tensor: Tensor) -> Tensor:
        """Return a weight of theirs as ours; with sign −1 the reverse."""
        if name.endswith("norm.weight"):
            return tensor + sign
        return tensor * self._factor**sign if name.endswith("q_proj.weight") else tensor


def _layers(place: Path, side: str, values: Mapping[str, Any], period: int, window: int) -> dict[str, Any]:
    """Return the settings of the layers of a side, which some read through a window."""
    sizes = {ours: read_integer(place, values, theirs) for ours, theirs in SIZES.items()}
    count = read_integer(place, values, "num_hidden_layers")
    usual = ["sliding_attention" if number % period else "full_attention" for number in range(1, count + 1)]
    kinds = values.get("layer_types") or usual
    if not isinstance(kinds, list) or len(kinds) != count or not {*kinds} <= {"full_attention", "sliding_attention"}:
        raise SettingsError(f"{place}: {side}.layer_types: found {shown(kinds)}, expected a kind for each layer")
    windows = tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    repeat = next(size for size in range(1, count + 1) if windows == (windows[:size] * count)[:count])
    return {**sizes, "attention_windows": windows[:repeat] if any(windows) else ()}
