"""BART and its descendants, which share a layout: mBART, M2M-100 and NLLB, Marian (OPUS-MT), and Pegasus."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.errors import ModelFolderError, SettingsError, check_known
from translume.interchange.huggingface.config import ForeignConfig, read_boolean, read_integer
from translume.interchange.huggingface.family import Family, Names, TiedTable, layer_names, shared_tensor, with_kinds
from translume.interchange.huggingface.tokenizer import (
    NAME,
    SOURCE,
    m2m100_tokenizer,
    marian_tokenizer,
    read_m2m100_tokenizer,
    read_marian_tokenizers,
    read_tokenizer,
    tokenizer_class,
)
from translume.model import Transformer
from translume.model.positions import encoding_class, sinusoids
from translume.text import Tokenizer

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
SIZES = {
    "width": "d_model", "encoder_layers": "encoder_layers", "decoder_layers": "decoder_layers",
    "max_positions": "max_position_embeddings",
}  # fmt: skip
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
_BLOCKS = {
    "self_attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": ("self_attn.out_proj",), "feed_forward.inner": ("fc1",), "feed_forward.outer": ("fc2",),
    "around_feed_forward.norm": ("final_layer_norm",),
}  # fmt: skip
LAYERS: dict[str, Names] = {
    "encoder": {**_BLOCKS, "around_attention.norm": ("self_attn_layer_norm",)},
    "decoder": {
        **_BLOCKS, "around_self.norm": ("self_attn_layer_norm",), "cross_attention.query": ("encoder_attn.q_proj",),
        "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
        "cross_attention.output": ("encoder_attn.out_proj",), "around_cross.norm": ("encoder_attn_layer_norm",),
    },
}  # fmt: skip
"""The names of the parts of a layer."""


class BartLayout(Family):
    """Attention and feed-forward blocks with biases and LayerNorm, under the names that BART has."""

    norm: ClassVar[str]
    """`model.norm`; with "pre" the stacks have final norms."""
    embedding_norm: ClassVar[bool] = False
    """`model.embedding_norm`."""
    offset: ClassVar[int] = 0
    """Rows at the beginning of stored position tables that no position uses."""
    root: ClassVar[str] = "model"
    """What names of weights begin with."""
    dimensions: ClassVar[Mapping[str, str]] = SIZES
    """Our names and their names of sizes."""
    layers: ClassVar[Mapping[str, Names]] = LAYERS
    """The names of the parts of a layer of each side."""

    def __init__(self) -> None:
        self.possible = {
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
        for name in ("ffn_dim", "attention_heads"):
            sizes = {side: read_integer(place, values, f"{side}_{name}") for side in SIDES}
            if sizes["encoder"] != sizes["decoder"]:
                raise SettingsError(
                    f"{place}: decoder_{name}: found {sizes['decoder']}, expected {sizes['encoder']}, that of "
                    f"encoder_{name}; here both are alike"
                )
        activation = values.get("activation_function", "gelu")
        check_known(f"{place}: activation_function", activation, ACTIVATIONS)
        bias = self.logit_bias in state and bool(state[self.logit_bias].any())
        return {
            **{ours: read_integer(place, values, theirs) for ours, theirs in self.dimensions.items()},
            **{name: values.get(name, 0.0) for name in DROPOUTS},
            "feed_forward": values["encoder_ffn_dim"],
            "attention_heads": values["encoder_attention_heads"],
            "norm": self.norm,
            "embedding_norm": self.embedding_norm,
            "activation": ACTIVATIONS[activation],
            "positions": self.positions(state),
            "scale_embeddings": read_boolean(place, values, "scale_embedding", False),
            "head": {"kind": "softmax", "tie": self.tie(config), "bias": bias},
        }

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        settings = checkpoint.config.model
        return {
            **{theirs: getattr(settings, ours) for ours, theirs in self.dimensions.items()},
            **{name: getattr(settings, name) for name in DROPOUTS},
            **{f"{side}_attention_heads": settings.attention_heads for side in SIDES},
            **{f"{side}_ffn_dim": settings.feed_forward for side in SIDES},
            "activation_function": settings.activation,
            "scale_embedding": settings.scale_embeddings,
            "forced_eos_token_id": None,
        }

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        return [
            (ours, tuple(name.replace("model.", f"{self.root}.") for name in theirs))
            for ours, theirs in TABLES[settings.head.tie]
        ]

    @property
    def position_names(self) -> dict[str, str]:
        """Our names and their names of the position tables."""
        return {f"{side}.embedding.positions.table": f"{self.root}.{side}.embed_positions.weight" for side in SIDES}

    def stored_positions(self, settings: ModelSettings) -> bool:
        """Return whether position tables are among the weights."""
        return encoding_class(settings.positions).trained

    def computed(self, settings: ModelSettings) -> frozenset[str]:
        return frozenset() if encoding_class(settings.positions).trained else frozenset(self.position_names.values())

    def weights_to(self, model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
        state = super().weights_to(model, settings)
        if self.stored_positions(settings):
            embeddings = (model.encoder.embedding, model.decoder.embedding)
            for embedding, name in zip(embeddings, self.position_names.values(), strict=True):
                table = embedding.positions.table
                assert table is not None  # `refuse` names other encodings
                state[name] = torch.cat([table.new_zeros(self.offset, table.size(1)), table.detach()])
        return state

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        weights = super().weights_from(state, settings)
        if encoding_class(settings.positions).trained:
            for ours, theirs in self.position_names.items():
                weights[ours] = shared_tensor(state, ours, (theirs,))[self.offset :]
        return weights

    def names(self, settings: ModelSettings) -> Names:
        names: dict[str, list[str]] = {}
        for side, layers in zip(SIDES, (settings.encoder_layers, settings.decoder_layers), strict=True):
            if settings.embedding_norm:
                names[f"{side}.embedding.norm"] = [f"{self.root}.{side}.layernorm_embedding"]
            if settings.norm == "pre":
                names[f"{side}.norm"] = [f"{self.root}.{side}.layer_norm"]
            for number in range(layers):
                ours = f"{side}.layers.{number}"
                names |= layer_names(ours, f"{self.root}.{ours}", self.layers[side])
        return with_kinds(names)


class Bart(BartLayout):
    """BartForConditionalGeneration: post-norm, with a norm of the embeddings and learned positions from row 2 on."""

    architecture = "BartForConditionalGeneration"
    model_type = "bart"
    tokenizer_class = "BartTokenizer"
    norm = "post"
    embedding_norm = True
    offset = 2
    logit_bias = "final_logits_bias"
    required: ClassVar[Mapping[str, object]] = {
        "normalize_embedding": True, "normalize_before": False, "add_final_layer_norm": False,
        "static_position_embeddings": False,
    }  # fmt: skip

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        return read_tokenizer(folder, config, known=(self.tokenizer_class,))  # `<s>` begins every text instead of a tag

    def describes(self, settings: ModelSettings) -> bool:
        return settings.embedding_norm and settings.norm == self.norm

    def positions(self, state: Mapping[str, Tensor]) -> str:
        return "learned"


class MBart(Bart):
    """MBartForConditionalGeneration (mBART, mBART-50): BART with pre-norm layers."""

    architecture = "MBartForConditionalGeneration"
    model_type = "mbart"
    tokenizer_class = "MBart50Tokenizer"
    norm = "pre"
    required: ClassVar[Mapping[str, object]] = {
        "normalize_embedding": True, "normalize_before": True, "add_final_layer_norm": True,
        "static_position_embeddings": False,
    }  # fmt: skip

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        return read_tokenizer(folder, config, "[a-z]{2}_[A-Z]{2}", known=(self.tokenizer_class,))


class M2M100(BartLayout):
    """M2M100ForConditionalGeneration (M2M-100, NLLB-200): pre-norm, with the sinusoids of fairseq."""

    architecture = "M2M100ForConditionalGeneration"
    model_type = "m2m_100"
    tokenizer_class = "NllbTokenizer"
    norm = "pre"
    required: ClassVar[Mapping[str, object]] = {
        "normalize_embedding": False, "normalize_before": True, "add_final_layer_norm": True,
    }  # fmt: skip
    pad: ClassVar[int] = 1
    """The id whose successor is the first position of the sinusoids."""

    def read_config(self, place: Path, values: Mapping[str, Any]) -> ForeignConfig:
        config = super().read_config(place, values)
        if config.pad != self.pad:
            raise SettingsError(
                f"{place}: pad_token_id: found {config.pad}, expected {self.pad}, after which {self.architecture} "
                "counts positions"
            )
        return config

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        if tokenizer_class(folder) == "M2M100Tokenizer":
            tokenizer = read_m2m100_tokenizer(folder, config)
            return tokenizer, tokenizer
        known = ("NllbTokenizer", "M2M100Tokenizer")
        return read_tokenizer(folder, config, "[a-z]{3}_[A-Z][a-z]{3}|__([a-z]{2,3})__", known=known)

    def written_tokenizer(self, checkpoint: Checkpoint) -> Any:
        return m2m100_tokenizer(checkpoint)

    def describes(self, settings: ModelSettings) -> bool:
        return settings.positions == "fairseq"

    def positions(self, state: Mapping[str, Tensor]) -> str:
        return "fairseq"


class Marian(BartLayout):
    """MarianMTModel (OPUS-MT): post-norm, with sinusoids that transformers computes when it loads the model."""

    architecture = "MarianMTModel"
    model_type = "marian"
    norm = "post"
    logit_bias = "final_logits_bias"
    sinusoids = ("hf", "marian")
    ties = tuple(TABLES)
    required: ClassVar[Mapping[str, object]] = {
        "normalize_embedding": False, "do_blenderbot_90_layernorm": False, "normalize_before": False,
        "add_final_layer_norm": False, "static_position_embeddings": True,
    }  # fmt: skip

    def describes(self, settings: ModelSettings) -> bool:
        return settings.norm == "post"

    def target_vocabulary(self, place: Path, values: Mapping[str, Any]) -> int:
        shared = values.get("share_encoder_decoder_embeddings", True) is True
        separate = not shared and values.get("decoder_vocab_size") is not None
        return read_integer(place, values, "decoder_vocab_size" if separate else "vocab_size")

    def positions(self, state: Mapping[str, Tensor]) -> str:
        return "sinusoidal"

    def tie(self, config: ForeignConfig) -> str:
        shared = read_boolean(config.place, config.values, "share_encoder_decoder_embeddings", True)
        tied = read_boolean(config.place, config.values, "tie_word_embeddings", True)
        if shared and not tied:
            raise SettingsError(
                f"{config.place}: tie_word_embeddings: found false with share_encoder_decoder_embeddings true, "
                "expected true, or both false"
            )
        return "all" if shared else "target" if tied else "none"

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        tie = checkpoint.config.model.head.tie
        return {
            **super().config_values(checkpoint),
            "decoder_vocab_size": len(checkpoint.target_tokenizer),
            "share_encoder_decoder_embeddings": tie == "all",
            "tie_word_embeddings": tie != "none",
        }

    def written_tokenizer(self, checkpoint: Checkpoint) -> Any:
        return marian_tokenizer(checkpoint)

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        if (folder / SOURCE).exists():
            return read_marian_tokenizers(folder, config)
        if not (folder / NAME).exists():
            raise ModelFolderError(
                f"{folder}: no tokenizer, expected {SOURCE}, target.spm and vocab.json of Marian, or a {NAME}"
            )
        return read_tokenizer(folder, config)


class Pegasus(BartLayout):
    """PegasusForConditionalGeneration: pre-norm, with a stored position table, of sinusoids or learned vectors."""

    architecture = "PegasusForConditionalGeneration"
    model_type = "pegasus"
    tokenizer_class = "PegasusTokenizer"
    norm = "pre"
    logit_bias = "final_logits_bias"
    required: ClassVar[Mapping[str, object]] = {
        "normalize_embedding": False, "do_blenderbot_90_layernorm": False, "normalize_before": True,
        "add_final_layer_norm": True,
    }  # fmt: skip
    roundings: ClassVar[float] = 4.0
    """Largest difference from sinusoids, in units of the dtype's epsilon, that does not count as learned positions."""

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        return read_tokenizer(folder, config, known=(self.tokenizer_class,))

    def describes(self, settings: ModelSettings) -> bool:
        return settings.norm == "pre"

    def positions(self, state: Mapping[str, Tensor]) -> str:
        for table in (state[name] for name in self.position_names.values() if name in state):
            if table.ndim == 2 and table.size(1) % 2 == 0 and table.is_floating_point():
                off = float((table.float() - sinusoids(table.size(0), table.size(1))).abs().max())
                if not off <= self.roundings * torch.finfo(table.dtype).eps:
                    return "learned"
        return "sinusoidal"

    def stored_positions(self, settings: ModelSettings) -> bool:
        return True
