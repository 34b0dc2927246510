"""WhisperForConditionalGeneration: pre-norm, windows of log-mel energies behind two convolutions, keys without bias."""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from translume.config import ModelSettings, SourceKind
from translume.errors import SettingsError
from translume.interchange.huggingface.bart import OURS, BartLayout
from translume.interchange.huggingface.config import (
    GENERATION,
    ForeignConfig,
    decoding_values,
    read_boolean,
    read_integer,
    read_json,
    shown,
)
from translume.interchange.huggingface.family import Names, TiedTable, with_kinds
from translume.interchange.huggingface.tokenizer import read_wrapped_tokenizer
from translume.model import Transformer
from translume.text import Tokenizer
from translume.text.specials import SECONDS_PER_TIME, SpeechTokens

MULTILINGUAL = 51_865
"""The vocabularies of several languages have at least so many tokens, for folders that do not say it."""
OWN_SETTINGS = (
    "alignment_heads", "forced_decoder_ids", "is_multilingual", "lang_to_id", "language", "task", "task_to_id",
    "max_initial_timestamp_index", "no_timestamps_token_id", "prev_sot_token_id", "return_timestamps",
)  # fmt: skip
"""Settings of `generate` that only Whisper has: those read here, and tables that follow from its vocabulary."""
CODES, TIMES = r"<\|([a-z]{2,3})\|>", r"<\|\d+\.\d\d\|>"


class Whisper(BartLayout):
    """WhisperForConditionalGeneration (Radford et al. 2023)."""

    architecture = "WhisperForConditionalGeneration"
    model_type = "whisper"
    tokenizer_class = "WhisperTokenizer"
    loader = "AutoModelForSpeechSeq2Seq"
    norm = "pre"
    language_tags = "speech"
    ties = ("target",)
    required: ClassVar[Mapping[str, object]] = {"scale_embedding": False}

    def positions(self, state: Mapping[str, Tensor]) -> str:
        return "learned"

    def tie(self, config: ForeignConfig) -> str:
        super().tie(config)
        return "target"

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        positions = read_integer(config.place, config.values, "max_target_positions")
        named = replace(config, values={**config.values, "max_position_embeddings": positions})
        tags = "speech" if _is_multilingual(config) else "english_speech"
        return {**super().model_values(named, state), "language_tags": tags}

    def data_values(self, config: ForeignConfig) -> dict[str, Any]:
        positions = read_integer(config.place, config.values, "max_source_positions")
        mels = read_integer(config.place, config.values, "num_mel_bins")
        return {
            "source": {"kind": "whisper", "mels": mels, "positions": positions},
            "cleaning": {"max_tokens": max(positions, config.values["max_target_positions"]), "max_ratio": 0.0},
        }

    def inputs(self, read: Tensor, source: SourceKind) -> dict[str, Tensor]:
        return {"input_features": read.mT}

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        tokenizer = read_wrapped_tokenizer(folder, config, CODES, special=TIMES, sources=False)
        if not _is_multilingual(config):
            tokenizer = Tokenizer(replace(tokenizer.vocabulary, languages={}))
        tokenizer.vocabulary.speech_tokens()  # raises SettingsError if one is missing
        return tokenizer, tokenizer

    def decoding_values(
        self, folder: Path, config: ForeignConfig, tokenizer: Tokenizer
    ) -> tuple[dict[str, Any], list[str]]:
        decoding, notes = decoding_values(folder, config, {}, own=OWN_SETTINGS)
        values = _generation(config)
        if "max_length" in decoding:  # `generate` counts the prompt
            decoding["max_length"] = max(1, decoding["max_length"] - (3 if tokenizer.languages else 1))
        decoding["timestamps"] = values.get("return_timestamps") is True
        if values.get("max_initial_timestamp_index") is not None:
            latest = read_integer(folder / GENERATION, values, "max_initial_timestamp_index")
            decoding["latest_start"] = SECONDS_PER_TIME * latest
        if tokenizer.languages:
            decoding |= _direction(values, tokenizer.vocabulary.speech_tokens())
        return decoding, notes

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        return [(OURS[1:], ("model.decoder.embed_tokens.weight", "proj_out.weight"))]

    def names(self, settings: ModelSettings) -> Names:
        convolutions = {
            f"encoder.embedding.convolutions.{number}": [f"model.encoder.conv{number + 1}"] for number in range(2)
        }
        return {**super().names(settings), **with_kinds(convolutions)}

    def weights_to(self, model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
        # A bias of the keys adds the same to all scores of a query, so it changes nothing.
        state = super().weights_to(model, settings)
        return {name: tensor for name, tensor in state.items() if not name.endswith("k_proj.bias")}

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        zeros = {
            f"{name.removesuffix('q_proj.bias')}k_proj.bias": torch.zeros(settings.width)
            for name in state
            if name.endswith("q_proj.bias")
        }
        # `state` reads a tensor when it is looked up, so it is not copied. Nothing is written to it.
        return super().weights_from(ChainMap(zeros, cast("MutableMapping[str, Tensor]", state)), settings)


def _generation(config: ForeignConfig) -> dict[str, Any]:
    """Return the settings of `generate`: generation_config.json has precedence over config.json."""
    path = config.place.parent / GENERATION
    return {**config.values, **(read_json(path) if path.exists() else {})}


def _is_multilingual(config: ForeignConfig) -> bool:
    return read_boolean(config.place, _generation(config), "is_multilingual", config.vocabulary >= MULTILINGUAL)


def _direction(values: Mapping[str, Any], tokens: SpeechTokens) -> dict[str, str]:
    """Return `from_` and `to` of [decoding] for `language` and `task`, or for the older `forced_decoder_ids`."""
    pairs = values.get("forced_decoder_ids") or []
    try:
        forced = {position: id_ for position, id_ in pairs if id_ is not None}
    except (TypeError, ValueError):
        raise SettingsError(
            f"{GENERATION}: forced_decoder_ids: found {shown(pairs)}, expected pairs of a position and an id"
        ) from None
    language = next((code for code, id_ in tokens.languages.items() if id_ == forced.get(1)), "")
    task = "translate" if forced.get(2) == tokens.translate else ""
    if values.get("language") or values.get("task"):
        language, task = str(values.get("language") or "").lower(), values.get("task") or ""
        language = _code(language)
        if language and language not in tokens.languages:
            raise SettingsError(f"{GENERATION}: language: found {values['language']!r}, which has no token")
    return {**({"from_": language} if language else {}), **({"to": "en"} if task == "translate" else {})}


def _code(language: str) -> str:
    """Return the code of a language that is given as a token, a code or an English name."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    return str(TO_LANGUAGE_CODE.get(language, language.removeprefix("<|").removesuffix("|>")))
