"""MBartForConditionalGeneration (mBART, mBART-50): BART with pre-norm layers."""

from collections.abc import Mapping
from typing import ClassVar

from translume.config import ModelSettings
from translume.interchange.huggingface.families.bart import Bart


class MBart(Bart):
    """MBartForConditionalGeneration."""

    architecture = "MBartForConditionalGeneration"
    model_type = "mbart"
    norm = "pre"
    required: ClassVar[Mapping[str, object]] = {
        "normalize_embedding": True, "normalize_before": True, "add_final_layer_norm": True,
        "static_position_embeddings": False,
    }  # fmt: skip

    def describes(self, settings: ModelSettings) -> bool:
        return settings.embedding_norm and settings.norm == "pre"
