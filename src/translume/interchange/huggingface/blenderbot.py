"""BlenderBot, BlenderBot-small and PLBart: BART's layout, with other norms or for code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.interchange.huggingface.bart import Bart, BartLayout
from translume.interchange.huggingface.config import ForeignConfig
from translume.interchange.huggingface.tokenizer import NAME, read_plbart_tokenizer, read_tokenizer
from translume.interchange.huggingface.word_tokenizer import read_blenderbot_tokenizer, word_tokenizer
from translume.text import Tokenizer

NO_TAGS = "(?!)"
"""Matches nothing: a text begins with its first token."""


class Blenderbot(BartLayout):
    """BlenderbotForConditionalGeneration: pre-norm, with learned positions from row 0 on."""

    architecture = "BlenderbotForConditionalGeneration"
    model_type = "blenderbot"
    tokenizer_class = "BlenderbotTokenizer"
    norm = "pre"
    logit_bias = "final_logits_bias"
    required: ClassVar[Mapping[str, object]] = {"normalize_before": True, "static_position_embeddings": False}

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        # With transformers 5, the tokenizer adds no EOS.
        return read_tokenizer(folder, config, NO_TAGS, known=(self.tokenizer_class,), endless=True)

    def describes(self, settings: ModelSettings) -> bool:
        return False  # exported as Pegasus

    def positions(self, state: Mapping[str, Tensor]) -> str:
        return "learned"


class BlenderbotSmall(Blenderbot):
    """BlenderbotSmallForConditionalGeneration: post-norm; its decoder adds positions to normalised embeddings."""

    architecture = "BlenderbotSmallForConditionalGeneration"
    model_type = "blenderbot-small"
    tokenizer_class = "BlenderbotSmallTokenizer"
    norm = "post"
    embedding_norm = True
    required: ClassVar[Mapping[str, object]] = {"normalize_before": False, "static_position_embeddings": False}

    def __init__(self) -> None:
        super().__init__()
        self.possible = {**self.possible, "late_positions": (True,)}

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        if (folder / NAME).exists():
            return super().tokenizers(folder, config)
        tokenizer = read_blenderbot_tokenizer(folder, config)
        return tokenizer, tokenizer

    def written_tokenizer(self, checkpoint: Checkpoint) -> Any:
        return word_tokenizer(checkpoint)

    def describes(self, settings: ModelSettings) -> bool:
        return settings.late_positions

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        return {**super().model_values(config, state), "late_positions": True}


class PLBart(Bart):
    """PLBartForConditionalGeneration: BART for programs and their descriptions."""

    architecture = "PLBartForConditionalGeneration"
    model_type = "plbart"
    tokenizer_class = "PLBartTokenizer"

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        if (folder / NAME).exists():
            return super().tokenizers(folder, config)
        tokenizer = read_plbart_tokenizer(folder, config)
        return tokenizer, tokenizer

    def describes(self, settings: ModelSettings) -> bool:
        return False  # exported as BART
