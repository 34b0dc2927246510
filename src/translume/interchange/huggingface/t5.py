"""T5's layout: T5 and T5 v1.1, mT5, Flan-T5, ByT5 and MADLAD-400.

T5 does not divide attention scores by √d, and the original T5 divides the states that a tied output layer reads by √D.
Here the first factor belongs to the weights of the queries, the second to those of the embedding, which our models
multiply by √D (`scale_embeddings`).
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings, SoftmaxSettings
from translume.config.model import GATED
from translume.errors import SettingsError, check_known
from translume.interchange.huggingface.config import ForeignConfig, read_integer
from translume.interchange.huggingface.family import Converted, Family, Names, TiedTable, layer_names, with_kinds
from translume.interchange.huggingface.t5_tokenizer import read_t5_tokenizer, t5_tokenizer
from translume.model import Transformer
from translume.text import Tokenizer

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "silu": "swish", "gated-gelu": "geglu", "gated-silu": "swiglu",
}  # fmt: skip
"""Our activation of each `feed_forward_proj`."""
OURS = ("encoder.embedding.table.weight", "decoder.embedding.table.weight", "head.weight")
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HEAD = "lm_head.weight"
TABLES: dict[str, list[TiedTable]] = {
    "all": [(OURS, (*EMBEDDINGS, HEAD))],
    "embeddings": [(OURS[:2], EMBEDDINGS), (OURS[2:], (HEAD,))],
}
_BLOCKS = {
    "self_attention.query_key_value": [f"0.SelfAttention.{name}" for name in ("q", "k", "v")],
    "self_attention.output": ["0.SelfAttention.o"],
}
LAYERS: dict[str, Names] = {
    "encoder": {**_BLOCKS, "around_attention.norm": ["0.layer_norm"]},
    "decoder": {
        **_BLOCKS, "around_self.norm": ["0.layer_norm"], "cross_attention.query": ["1.EncDecAttention.q"],
        "cross_attention.key_value": ["1.EncDecAttention.k", "1.EncDecAttention.v"],
        "cross_attention.output": ["1.EncDecAttention.o"], "around_cross.norm": ["1.layer_norm"],
    },
}  # fmt: skip
"""The names of the attention blocks of a layer."""
SIZES = {
    "width": "d_model", "head_width": "d_kv", "feed_forward": "d_ff", "encoder_layers": "num_layers",
    "attention_heads": "num_heads",
}  # fmt: skip
OPTIONAL = {
    "decoder_layers": "num_decoder_layers", "norm_epsilon": "layer_norm_epsilon",
    "relative_buckets": "relative_attention_num_buckets", "relative_max_distance": "relative_attention_max_distance",
}  # fmt: skip
"""Names of our settings and theirs; the optional ones have the same defaults as in `DEFAULTS`."""
DEFAULTS = {"norm_epsilon": 1e-6, "relative_buckets": 32, "relative_max_distance": 128}
SHARED = "embedding.positions.bias"
"""Biases by distance that all layers of a side have in common."""
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "final_dropout")
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
"""A weight of old checkpoints that transformers ignores too."""
LONG_ATTENTIONS = {"local": "LocalSelfAttention", "transient-global": "TransientGlobalSelfAttention"}
"""The name of the self-attention in LongT5's encoder for each `encoder_attention_type`."""
LONG_POSITIONS = 16_384
"""Minimum of `max_positions` of LongT5's encoder: the length of its longest trained sources."""
MIN_POSITIONS = 1024
"""Minimum of `max_positions`: relative positions work beyond the lengths of the training, which config.json states."""


class T5(Family):
    """T5ForConditionalGeneration."""

    architecture = "T5ForConditionalGeneration"
    model_type = "t5"
    required: ClassVar[Mapping[str, object]] = {"is_encoder_decoder": True}
    possible: Mapping[str, tuple[object, ...]] = {
        "norm": ("pre",), "normalization": ("rms",), "activation": tuple(ACTIVATIONS.values()), "bias": (False,),
        "embedding_norm": (False,), "segments": (0,), "decoder_mixing": ("attention",),
    }  # fmt: skip
    ties = tuple(TABLES)
    language_tags = "source"
    activation_name: ClassVar[str] = "feed_forward_proj"
    """The setting of config.json that names the activation."""

    def read_config(self, place: Path, values: Mapping[str, Any]) -> ForeignConfig:
        explicit = {name: value for name, value in values.items() if value is not None}
        pad = explicit.get("pad_token_id", 0)
        return super().read_config(
            place, {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": pad, **explicit}
        )

    def scales_logits(self, config: ForeignConfig) -> bool:
        """Return whether the output layer reads states divided by √D."""
        return bool(config.values.get("scale_decoder_outputs", config.values.get("tie_word_embeddings", True)))

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        values, place = config.values, config.place
        projection = values.get(self.activation_name, "relu")
        check_known(f"{place}: {self.activation_name}", projection, ACTIVATIONS)
        tied, scaled = _tied(state), self.scales_logits(config)
        if scaled and not tied:
            raise SettingsError(
                f"{place}: tie_word_embeddings: found true, but {HEAD} differs from {EMBEDDINGS[0]}; expected false"
            )
        sizes = {ours: read_integer(place, values, theirs) for ours, theirs in SIZES.items()}
        if sizes["encoder_layers"] < 1:
            raise SettingsError(f"{place}: num_layers: found {sizes['encoder_layers']}, expected at least 1")
        defaults = {"decoder_layers": sizes["encoder_layers"], **DEFAULTS}
        return {
            **sizes,
            **{ours: values.get(theirs, defaults[ours]) for ours, theirs in OPTIONAL.items()},
            **dict.fromkeys(DROPOUTS, values.get("dropout_rate", 0.1)),
            "norm": "pre",
            "normalization": "rms",
            "activation": ACTIVATIONS[projection],
            "positions": "relative",
            "max_positions": max(values.get("n_positions", 0), MIN_POSITIONS),
            "scale_embeddings": scaled,
            "bias": False,
            "head": {"kind": "softmax", "tie": "all" if tied else "embeddings", "bias": False},
        }

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        tokenizer = read_t5_tokenizer(folder, config)
        return tokenizer, tokenizer

    def describes(self, settings: ModelSettings) -> bool:
        return settings.positions == "relative"

    def refuse(self, settings: ModelSettings) -> None:
        super().refuse(settings)
        if isinstance(settings.head, SoftmaxSettings) and settings.head.bias:
            raise SettingsError(f"model.head.bias: found true, expected false for {self.architecture}")

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        settings = checkpoint.config.model
        projections = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
        return {
            **{theirs: getattr(settings, ours) for ours, theirs in {**SIZES, **OPTIONAL}.items()},
            "d_kv": settings.size_per_head,
            "dropout_rate": settings.dropout,
            "feed_forward_proj": projections[settings.activation],
            "n_positions": settings.max_positions,
            "tie_word_embeddings": _scaled_logits(settings),
        }

    def stored_values(self, settings: ModelSettings) -> dict[str, Any]:
        # transformers 5 writes true for every T5, which other releases and CTranslate2 take for the original T5.
        return {"tie_word_embeddings": _scaled_logits(settings)}

    def written_tokenizer(self, checkpoint: Checkpoint) -> Any:
        return t5_tokenizer(checkpoint)

    def prepared(self, theirs: Any, settings: ModelSettings) -> Any:
        if settings.head.tie != "all":  # transformers 5 ties every new T5
            theirs.lm_head.weight = nn.Parameter(torch.empty_like(theirs.lm_head.weight))
            theirs.all_tied_weights_keys.pop(HEAD, None)
        return theirs

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        return TABLES[settings.head.tie]

    def computed(self, settings: ModelSettings) -> frozenset[str]:
        return frozenset({UNUSED})

    def weights_to(self, model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
        return dict(Converted(super().weights_to(model, settings), partial(_scaled, settings, -1)))

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        return super().weights_from(Converted(state, partial(_scaled, settings, 1)), settings)

    def names(self, settings: ModelSettings) -> Names:
        names: dict[str, list[str]] = {}
        biases: dict[str, list[str]] = {}
        for side, layers in (("encoder", settings.encoder_layers), ("decoder", settings.decoder_layers)):
            names[f"{side}.norm"] = [f"{side}.final_layer_norm"]
            parts, last = LAYERS[side], f"{1 if side == 'encoder' else 2}"
            inner = ("wi_0", "wi_1") if settings.activation in GATED else ("wi",)
            parts = {
                **parts, "feed_forward.inner": [f"{last}.DenseReluDense.{name}" for name in inner],
                "feed_forward.outer": [f"{last}.DenseReluDense.wo"],
                "around_feed_forward.norm": [f"{last}.layer_norm"],
            }  # fmt: skip
            for number in range(layers):
                names |= layer_names(f"{side}.layers.{number}", f"{side}.block.{number}.layer", parts)
            for number in range(layers if settings.relative_per_layer else min(layers, 1)):
                ours = f"layers.{number}.self_attention.biases" if settings.relative_per_layer else SHARED
                attention = f"{side}.block.{number}.layer.0.SelfAttention"
                biases[f"{side}.{ours}"] = [f"{attention}.relative_attention_bias.weight"]
        return {**biases, **with_kinds(names, ["weight"])}


class Mt5(T5):
    """MT5ForConditionalGeneration, which never divides the states that its output layer reads."""

    architecture = "MT5ForConditionalGeneration"
    model_type = "mt5"

    def scales_logits(self, config: ForeignConfig) -> bool:
        return False

    def describes(self, settings: ModelSettings) -> bool:
        return False  # exported as T5


class Umt5(T5):
    """UMT5ForConditionalGeneration, whose layers each have biases by distance."""

    architecture = "UMT5ForConditionalGeneration"
    model_type = "umt5"
    modern: ClassVar[frozenset[str]] = frozenset({"relative_per_layer"})

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        return {**super().model_values(config, state), "relative_per_layer": True}

    def describes(self, settings: ModelSettings) -> bool:
        return settings.relative_per_layer


class LongT5(T5):
    """LongT5ForConditionalGeneration: a token of its encoder reads a window around it, and sums of blocks if global."""

    architecture = "LongT5ForConditionalGeneration"
    model_type = "longt5"
    modern: ClassVar[frozenset[str]] = frozenset({"encoder"})

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        values, place = super().model_values(config, state), config.place
        kind = config.values.get("encoder_attention_type", "local")
        check_known(f"{place}: encoder_attention_type", kind, LONG_ATTENTIONS)
        encoder: dict[str, Any] = {
            "attention_windows": (_positive(config, "local_radius") + 1,),
            "max_positions": max(values["max_positions"], LONG_POSITIONS),
        }
        if kind != "local":
            encoder["global_block"] = _positive(config, "global_block_size")
        return {**values, "encoder": encoder}

    def describes(self, settings: ModelSettings) -> bool:
        return settings.positions == "relative" and bool(settings.encoder.get("attention_windows"))

    def refuse(self, settings: ModelSettings) -> None:
        super().refuse(settings)
        known = {"attention_windows", "global_block", "max_positions"}
        if {*settings.encoder} - known or len(settings.of_encoder.attention_windows) != 1:
            raise SettingsError(
                f"model.encoder: found {settings.encoder}, expected attention_windows of one window for "
                f"{self.architecture}"
            )

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        encoder = checkpoint.config.model.of_encoder
        blocks = {"global_block_size": encoder.global_block} if encoder.global_block else {}
        return {
            **super().config_values(checkpoint),
            **blocks,
            "local_radius": encoder.window(0) - 1,
            "encoder_attention_type": "transient-global" if blocks else "local",
        }

    def names(self, settings: ModelSettings) -> Names:
        blocks, plain = settings.of_encoder.global_block, super().names(settings)
        own = LONG_ATTENTIONS["transient-global" if blocks else "local"]
        names = {
            ours: [each.replace("SelfAttention", own) for each in theirs] if ours.startswith("encoder") else theirs
            for ours, theirs in plain.items()
        }
        if blocks:
            attention = f"encoder.block.{{}}.layer.0.{own}.global_"
            biases = f"{attention.format(0)}relative_attention_bias.weight"
            names["encoder.embedding.positions.block_bias"] = [biases]
            for number in range(settings.encoder_layers):
                norm = f"{attention.format(number)}input_layer_norm.weight"
                names[f"encoder.layers.{number}.self_attention.block_norm.weight"] = [norm]
        return names


def _positive(config: ForeignConfig, name: str) -> int:
    if (size := read_integer(config.place, config.values, name)) < 1:
        raise SettingsError(f"{config.place}: {name}: found {size}, expected at least 1")
    return size


def _tied(state: Mapping[str, Tensor]) -> bool:
    head, table = state.get(HEAD), next((state[name] for name in EMBEDDINGS if name in state), None)
    return head is None or table is None or torch.equal(head, table)


def _scaled_logits(settings: ModelSettings) -> bool:
    return settings.head.tie == "all" and settings.scale_embeddings


def _scaled(settings: ModelSettings, power: int, name: str, tensor: Tensor) -> Tensor:
    """Return a weight of theirs with the factor that T5 does not have in it; with power −1 without it."""
    if name.endswith("Attention.q.weight"):
        return tensor * math.sqrt(settings.size_per_head) ** power
    if settings.scale_embeddings and (name in EMBEDDINGS or (name == HEAD and settings.head.tie == "all")):
        return tensor * math.sqrt(settings.width) ** -power
    return tensor
