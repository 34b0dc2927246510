"""BartForConditionalGeneration: post-norm, with a norm of the embeddings and learned positions from row 2 on."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from translume.config import ModelSettings
from translume.interchange.huggingface.config import ForeignConfig
from translume.interchange.huggingface.families.bart_layout import BartLayout
from translume.interchange.huggingface.tokenizer import read_tokenizer
from translume.text import Tokenizer


class Bart(BartLayout):
    """BartForConditionalGeneration."""

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

    def describes(self, settings: ModelSettings) -> bool:
        return settings.embedding_norm and settings.norm == "post"

    codes: ClassVar[str] = ""
    """A regular expression for the tags of languages; empty: every text begins with `<s>` instead of a tag."""

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        return read_tokenizer(folder, config, self.codes)

    def positions(self, state: Mapping[str, Tensor]) -> str:
        return "learned"
