"""MarianMTModel (OPUS-MT): post-norm, with sinusoids that transformers computes when it loads the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.errors import ModelFolderError, SettingsError
from translume.interchange.huggingface.config import ForeignConfig, read_boolean, read_whole_number
from translume.interchange.huggingface.families.bart_layout import TABLES, BartLayout
from translume.interchange.huggingface.tokenizer import (
    NAME,
    SOURCE,
    read_exported_tokenizer,
    read_marian_tokenizers,
)
from translume.text import Tokenizer


class Marian(BartLayout):
    """MarianMTModel."""

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
        return read_whole_number(place, values, "decoder_vocab_size" if separate else "vocab_size")

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

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        if (folder / SOURCE).exists():
            return read_marian_tokenizers(folder, config)
        if not (folder / NAME).exists():
            raise ModelFolderError(
                f"{folder}: no tokenizer, expected {SOURCE}, target.spm and vocab.json of Marian, "
                f"or the {NAME} of `translume export`"
            )
        return read_exported_tokenizer(folder, config)
