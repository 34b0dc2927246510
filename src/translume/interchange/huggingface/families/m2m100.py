"""M2M100ForConditionalGeneration (M2M-100, NLLB-200): pre-norm, with the sinusoids of fairseq."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.errors import SettingsError
from translume.interchange.huggingface.config import ForeignConfig
from translume.interchange.huggingface.families.bart_layout import BartLayout
from translume.interchange.huggingface.tokenizer import (
    m2m100_tokenizer,
    read_m2m100_tokenizer,
    read_tokenizer,
    refuse_tokenizers,
    tokenizer_class,
)
from translume.text import Tokenizer

PAD = 1
"""The id whose successor is the first position of the sinusoids."""


class M2M100(BartLayout):
    """M2M100ForConditionalGeneration."""

    architecture = "M2M100ForConditionalGeneration"
    model_type = "m2m_100"
    tokenizer_class = "NllbTokenizer"
    norm = "pre"
    required: ClassVar[Mapping[str, object]] = {
        "normalize_embedding": False, "normalize_before": True, "add_final_layer_norm": True,
    }  # fmt: skip

    def read_config(self, place: Path, values: Mapping[str, Any]) -> ForeignConfig:
        config = super().read_config(place, values)
        if config.pad != PAD:
            raise SettingsError(
                f"{place}: pad_token_id: found {config.pad}, expected {PAD}, after which {self.architecture} counts "
                "positions"
            )
        return config

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        refuse_tokenizers(folder, ("NllbTokenizer", "M2M100Tokenizer"))
        if tokenizer_class(folder) == "M2M100Tokenizer":
            tokenizer = read_m2m100_tokenizer(folder, config)
            return tokenizer, tokenizer
        return read_tokenizer(folder, config, "[a-z]{3}_[A-Z][a-z]{3}")

    def written_tokenizer(self, checkpoint: Checkpoint) -> Any:
        return m2m100_tokenizer(checkpoint)

    def describes(self, settings: ModelSettings) -> bool:
        return settings.positions == "fairseq"

    def positions(self, state: Mapping[str, Tensor]) -> str:
        return "fairseq"
