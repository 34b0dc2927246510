"""MBartForConditionalGeneration (mBART, mBART-50): BART with pre-norm layers."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from translume.config import ModelSettings
from translume.interchange.huggingface.config import ForeignConfig
from translume.interchange.huggingface.families.bart import Bart
from translume.interchange.huggingface.tokenizer import read_tokenizer, refuse_tokenizers
from translume.text import Tokenizer


class MBart(Bart):
    """MBartForConditionalGeneration."""

    architecture = "MBartForConditionalGeneration"
    model_type = "mbart"
    tokenizer_class = "MBart50Tokenizer"
    norm = "pre"
    required: ClassVar[Mapping[str, object]] = {
        "normalize_embedding": True, "normalize_before": True, "add_final_layer_norm": True,
        "static_position_embeddings": False,
    }  # fmt: skip

    codes = "[a-z]{2}_[A-Z]{2}"

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        refuse_tokenizers(folder, ("MBart50Tokenizer",))
        return read_tokenizer(folder, config, self.codes)

    def describes(self, settings: ModelSettings) -> bool:
        return settings.embedding_norm and settings.norm == "pre"
