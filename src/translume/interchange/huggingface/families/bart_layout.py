"""The layout that BART's descendants in transformers share: Marian, Pegasus, mBART, M2M-100."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.errors import SettingsError, nearest
from translume.interchange.huggingface.config import ForeignConfig, read_boolean, read_whole_number
from translume.interchange.huggingface.families.family import Family, TiedTable, found
from translume.interchange.weight_names import Row, same, stacked
from translume.model import Transformer
from translume.model.positions import encoding_class

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
SIDES = ("encoder", "decoder")
OURS = ("encoder.embedding.table.weight", "decoder.embedding.table.weight", "head.weight")
THEIRS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
TABLES: dict[str, list[TiedTable]] = {
    "all": [(OURS, ("model.shared.weight", *THEIRS))],
    "target": [(OURS[:1], THEIRS[:1]), (OURS[1:], THEIRS[1:])],
    "none": [((ours,), (theirs,)) for ours, theirs in zip(OURS, THEIRS, strict=True)],
}
"""The tables for each `model.head.tie`."""
POSITIONS = {f"{side}.embedding.positions.table": f"model.{side}.embed_positions.weight" for side in SIDES}
"""Our names and their names of the position tables."""


class BartLayout(Family):
    """Attention and feed-forward blocks with biases and LayerNorm, under the names that BART has."""

    norm: ClassVar[str]
    """`model.norm`; with "pre" the stacks have final norms."""
    embedding_norm: ClassVar[bool] = False
    """`model.embedding_norm`."""
    offset: ClassVar[int] = 0
    """Rows at the beginning of stored position tables that no position uses."""

    @property
    def possible(self) -> Mapping[str, tuple[object, ...]]:  # type: ignore[override]  # depends on `norm`
        """Values of [model] settings that the layout can express."""
        return {
            "norm": (self.norm,), "embedding_norm": (self.embedding_norm,), "normalization": ("layer",),
            "norm_epsilon": (1e-5,), "activation": ("relu", "gelu", "swish"), "bias": (True,), "segments": (0,),
            "decoder_mixing": ("attention",),
        }  # fmt: skip

    def refuse(self, settings: ModelSettings) -> None:
        super().refuse(settings)
        if settings.size_per_head * settings.attention_heads != settings.width:
            raise SettingsError(
                f"model.head_width: found {settings.head_width}, expected 0 for {self.architecture}, "
                "whose heads divide the width"
            )

    @abstractmethod
    def positions(self, state: Mapping[str, Tensor]) -> str:
        """Return `model.positions` of stored weights."""

    def tie(self, config: ForeignConfig) -> str:
        """Return `model.head.tie`."""
        if not read_boolean(config.place, config.values, "tie_word_embeddings", True):
            raise SettingsError(
                f"{config.place}: tie_word_embeddings: found false, expected true for {self.architecture}"
            )
        return "all"

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        values, place = config.values, config.place
        for one, other in (
            ("encoder_ffn_dim", "decoder_ffn_dim"),
            ("encoder_attention_heads", "decoder_attention_heads"),
        ):
            if read_whole_number(place, values, one) != read_whole_number(place, values, other):
                raise SettingsError(
                    f"{place}: {other}: found {values[other]}, expected {values[one]}, that of {one}; "
                    "here both are alike"
                )
        activation = values.get("activation_function", "gelu")
        if activation not in ACTIVATIONS:
            raise SettingsError(
                f"{place}: activation_function: found {activation!r}{nearest(str(activation), ACTIVATIONS)}"
            )
        bias = self.logit_bias in state and bool(state[self.logit_bias].any())
        return {
            "width": read_whole_number(place, values, "d_model"),
            "feed_forward": values["encoder_ffn_dim"],
            "encoder_layers": read_whole_number(place, values, "encoder_layers"),
            "decoder_layers": read_whole_number(place, values, "decoder_layers"),
            "attention_heads": values["encoder_attention_heads"],
            "dropout": values.get("dropout", 0.0),
            "attention_dropout": values.get("attention_dropout", 0.0),
            "activation_dropout": values.get("activation_dropout", 0.0),
            "norm": self.norm,
            "embedding_norm": self.embedding_norm,
            "activation": ACTIVATIONS[activation],
            "positions": self.positions(state),
            "max_positions": read_whole_number(place, values, "max_position_embeddings"),
            "scale_embeddings": read_boolean(place, values, "scale_embedding", False),
            "head": {"kind": "softmax", "tie": self.tie(config), "bias": bias},
        }

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        settings = checkpoint.config.model
        return {
            "d_model": settings.width,
            "encoder_layers": settings.encoder_layers,
            "decoder_layers": settings.decoder_layers,
            "encoder_attention_heads": settings.attention_heads,
            "decoder_attention_heads": settings.attention_heads,
            "encoder_ffn_dim": settings.feed_forward,
            "decoder_ffn_dim": settings.feed_forward,
            "activation_function": settings.activation,
            "max_position_embeddings": settings.max_positions,
            "scale_embedding": settings.scale_embeddings,
            "forced_eos_token_id": None,
            "dropout": settings.dropout,
            "attention_dropout": settings.attention_dropout,
            "activation_dropout": settings.activation_dropout,
        }

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        return TABLES[settings.head.tie]

    def stored_positions(self, settings: ModelSettings) -> bool:
        """Return whether position tables are among the weights."""
        return encoding_class(settings.positions).trained

    def computed(self, settings: ModelSettings) -> frozenset[str]:
        return frozenset() if encoding_class(settings.positions).trained else frozenset(POSITIONS.values())

    def weights_to(self, model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
        renamed = super().weights_to(model, settings)
        if self.stored_positions(settings):
            embeddings = (model.encoder.embedding, model.decoder.embedding)
            for embedding, name in zip(embeddings, POSITIONS.values(), strict=True):
                table = embedding.positions.table
                assert table is not None  # `refuse` names other encodings
                renamed[name] = torch.cat([table.new_zeros(self.offset, table.size(1)), table.detach()])
        return renamed

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        renamed = super().weights_from(state, settings)
        if encoding_class(settings.positions).trained:
            renamed |= {ours: found(state, ours, (theirs,))[self.offset :] for ours, theirs in POSITIONS.items()}
        return renamed

    def rows(self, settings: ModelSettings) -> Iterator[Row]:
        if settings.embedding_norm:
            for side in SIDES:
                yield from same(f"{side}.embedding.norm", f"model.{side}.layernorm_embedding")
        if settings.norm == "pre":
            for side in SIDES:
                yield from same(f"{side}.norm", f"model.{side}.layer_norm")
        for side, count in zip(SIDES, (settings.encoder_layers, settings.decoder_layers), strict=True):
            for number in range(count):
                ours, theirs = f"{side}.layers.{number}", f"model.{side}.layers.{number}"
                attention = f"{theirs}.self_attn"
                parts = [(f"{attention}.{name}_proj", 1) for name in ("q", "k", "v")]
                yield from stacked([(f"{ours}.self_attention.query_key_value", 3)], parts)
                yield from same(f"{ours}.self_attention.output", f"{attention}.out_proj")
                around = "around_attention" if side == "encoder" else "around_self"
                yield from same(f"{ours}.{around}.norm", f"{theirs}.self_attn_layer_norm")
                if side == "decoder":
                    yield from same(f"{ours}.cross_attention.query", f"{theirs}.encoder_attn.q_proj")
                    parts = [(f"{theirs}.encoder_attn.{name}_proj", 1) for name in ("k", "v")]
                    yield from stacked([(f"{ours}.cross_attention.key_value", 2)], parts)
                    yield from same(f"{ours}.cross_attention.output", f"{theirs}.encoder_attn.out_proj")
                    yield from same(f"{ours}.around_cross.norm", f"{theirs}.encoder_attn_layer_norm")
                yield from same(f"{ours}.feed_forward.inner", f"{theirs}.fc1")
                yield from same(f"{ours}.feed_forward.outer", f"{theirs}.fc2")
                yield from same(f"{ours}.around_feed_forward.norm", f"{theirs}.final_layer_norm")
