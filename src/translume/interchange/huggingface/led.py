"""LED (Beltagy et al. 2020): BART with an encoder for long documents."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings, SourceKind
from translume.errors import SettingsError
from translume.interchange.huggingface.bart import LAYERS, SIZES, Bart
from translume.interchange.huggingface.config import ForeignConfig, read_integer, shown
from translume.interchange.huggingface.family import Names
from translume.interchange.huggingface.tokenizer import read_tokenizer
from translume.text import Tokenizer

_MAPS = "self_attn.longformer_self_attn"


class Led(Bart):
    """LEDForConditionalGeneration: tokens of the encoder read a window and the first token, which reads all.

    In transformers, the caller chooses the global tokens of each text. Summarisation uses the first one.
    """

    architecture = "LEDForConditionalGeneration"
    model_type = "led"
    tokenizer_class = "LEDTokenizer"
    offset = 0
    root = "led"
    required: ClassVar[Mapping[str, object]] = {**Bart.required, "scale_embedding": False}
    modern: ClassVar[frozenset[str]] = frozenset({"encoder"})
    dimensions: ClassVar[Mapping[str, str]] = {**SIZES, "max_positions": "max_decoder_position_embeddings"}
    layers: ClassVar[Mapping[str, Names]] = {
        "decoder": LAYERS["decoder"],
        "encoder": {
            **LAYERS["encoder"],
            "self_attention.query_key_value": [f"{_MAPS}.{name}" for name in ("query", "key", "value")],
            "self_attention.output": ["self_attn.output"],
            "self_attention.global_maps.query": [f"{_MAPS}.query_global"],
            "self_attention.global_maps.key_value": [f"{_MAPS}.{name}_global" for name in ("key", "value")],
        },
    }

    def __init__(self) -> None:
        super().__init__()
        self.possible = {**self.possible, "scale_embeddings": (False,)}

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        values = super().model_values(config, state)
        encoder = {
            "attention_windows": _windows(config, values["encoder_layers"]),
            "global_tokens": 1,
            "max_positions": read_integer(config.place, config.values, "max_encoder_position_embeddings"),
        }
        return {**values, "encoder": encoder}

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        return read_tokenizer(folder, config, known=(self.tokenizer_class, "BartTokenizer", ""))

    def inputs(self, read: Tensor, source: SourceKind) -> dict[str, Tensor]:
        first = torch.arange(read.size(1)) == 0
        return {"input_ids": read, "global_attention_mask": first.long().expand_as(read)}

    def describes(self, settings: ModelSettings) -> bool:
        return super().describes(settings) and bool(settings.encoder.get("global_tokens"))

    def refuse(self, settings: ModelSettings) -> None:
        super().refuse(settings)
        own = settings.of_encoder
        others = {*settings.encoder} - {"attention_windows", "global_tokens", "max_positions"}
        if others or own.global_tokens != 1 or own.global_block or min(own.attention_windows) < 2:
            raise SettingsError(
                f"model.encoder: found {settings.encoder}, expected global_tokens 1, and otherwise only "
                f"attention_windows above 1 and max_positions, for {self.architecture}"
            )

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        settings = checkpoint.config.model
        return {
            **super().config_values(checkpoint),
            "attention_window": [2 * (settings.of_encoder.window(n) - 1) for n in range(settings.encoder_layers)],
            "max_encoder_position_embeddings": settings.of_encoder.max_positions,
        }


def _windows(config: ForeignConfig, layers: int) -> tuple[int, ...]:
    """Return `attention_windows` of the encoder. Raises SettingsError for sizes that transformers cannot compute."""
    stated = config.values.get("attention_window")
    sizes = [stated] * layers if type(stated) is int else stated
    counts = sizes if isinstance(sizes, list) and all(type(each) is int for each in sizes) else []
    # A source is padded to a multiple of the largest.
    if len(counts) != layers or not all(size > 0 == size % 2 == max(counts) % size for size in counts):
        raise SettingsError(
            f"{config.place}: attention_window: found {shown(stated)}, expected an even number above 0, or one for "
            f"each of {layers} layers that divides the largest"
        )
    return tuple(size // 2 + 1 for size in (counts[:1] if len({*counts}) == 1 else counts))
