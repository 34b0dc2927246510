"""Convert config.json and generation_config.json of transformers to our settings; refuse unsupported ones by name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translume.config import Config
from translume.errors import DataError, ModelFolderError, SettingsError, nearest

CONFIG, GENERATION = "config.json", "generation_config.json"
ARCHITECTURES = {"MarianMTModel": "post", "PegasusForConditionalGeneration": "pre"}
"""The supported architectures, and the position of their norms."""
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}

_NORM_FIRST = {"normalize_before": {"post": False, "pre": True}, "add_final_layer_norm": {"post": False, "pre": True}}
_ALWAYS = {"normalize_embedding": False, "do_blenderbot_90_layernorm": False}
_UNCARRIED: dict[str, tuple[object, ...]] = {
    "do_sample": (False,), "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,), "min_length": (0,),
    "repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,), "num_beam_groups": (1,), "penalty_alpha": (),
    "diversity_penalty": (0.0,), "forced_bos_token_id": (), "suppress_tokens": (), "begin_suppress_tokens": (),
    "sequence_bias": (), "min_new_tokens": (), "max_new_tokens": (), "num_return_sequences": (1,),
}  # fmt: skip
"""Settings of a search that we do not have, with the values that change nothing. null never changes anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConfig:
    """The contents of the two files.

    place: of config.json.  architecture: one of `ARCHITECTURES`.  vocabulary, target_vocabulary: sizes.
    pad, bos, eos: ids; bos starts decoding.  values: all of config.json.
    """

    place: Path
    architecture: str
    vocabulary: int
    target_vocabulary: int
    pad: int
    bos: int
    eos: int
    values: Mapping[str, Any]


def read_foreign_config(folder: Path) -> ForeignConfig:
    """Read the shape of the model in `folder`. Raises DataError for a damaged file, SettingsError for a bad value."""
    place = folder / CONFIG
    values = _json(place)
    named = values.get("architectures")
    architecture = named[0] if isinstance(named, list) and len(named) == 1 else named
    if architecture not in ARCHITECTURES:
        word = architecture if isinstance(architecture, str) else ""
        raise SettingsError(f"{place}: architectures: found {architecture!r}{nearest(word, ARCHITECTURES)}")
    norm = ARCHITECTURES[architecture]
    wanted = _ALWAYS | {name: of[norm] for name, of in _NORM_FIRST.items()}
    if architecture == "MarianMTModel":
        wanted["static_position_embeddings"] = True
    for name, value in wanted.items():
        if values.get(name, value) != value:
            raise SettingsError(
                f"{place}: {name}: found {_shown(values[name])}, expected {_shown(value)} for {architecture}"
            )
    if architecture != "MarianMTModel" and values.get("tie_word_embeddings", True) is not True:
        raise SettingsError(
            f"{place}: tie_word_embeddings: found {_shown(values['tie_word_embeddings'])}, expected true for Pegasus"
        )
    size = _integer(place, values, "vocab_size")
    shared = values.get("share_encoder_decoder_embeddings", True) is True
    target = size if shared or values.get("decoder_vocab_size") is None else values["decoder_vocab_size"]
    found = ForeignConfig(
        place=place,
        architecture=architecture,
        vocabulary=size,
        target_vocabulary=_integer(place, {"decoder_vocab_size": target}, "decoder_vocab_size"),
        pad=_integer(place, values, "pad_token_id"),
        bos=_integer(place, values, "decoder_start_token_id"),
        eos=_integer(place, values, "eos_token_id"),
        values=values,
    )
    for name, number in (
        ("pad_token_id", found.pad),
        ("decoder_start_token_id", found.bos),
        ("eos_token_id", found.eos),
    ):
        if not 0 <= number < min(found.vocabulary, found.target_vocabulary):
            raise SettingsError(f"{place}: {name}: found {number}, expected an id of the vocabulary, 0 to {size - 1}")
    return found


def model_values(config: ForeignConfig, *, learned_positions: bool, bias: bool) -> dict[str, Any]:
    """Return the [model] settings. Raises SettingsError naming an unsupported value."""
    values, place = config.values, config.place
    for one, other in (
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("encoder_attention_heads", "decoder_attention_heads"),
    ):
        if _integer(place, values, one) != _integer(place, values, other):
            raise SettingsError(
                f"{place}: {other}: found {values[other]}, expected {values[one]}, that of {one}; here both are alike"
            )
    activation = values.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise SettingsError(
            f"{place}: activation_function: found {activation!r}{nearest(str(activation), ACTIVATIONS)}"
        )
    return {
        "width": _integer(place, values, "d_model"),
        "feed_forward": values["encoder_ffn_dim"],
        "encoder_layers": _integer(place, values, "encoder_layers"),
        "decoder_layers": _integer(place, values, "decoder_layers"),
        "attention_heads": values["encoder_attention_heads"],
        "dropout": values.get("dropout", 0.0),
        "attention_dropout": values.get("attention_dropout", 0.0),
        "activation_dropout": values.get("activation_dropout", 0.0),
        "norm": ARCHITECTURES[config.architecture],
        "activation": ACTIVATIONS[activation],
        "positions": "learned" if learned_positions else "sinusoidal",
        "max_positions": _integer(place, values, "max_position_embeddings"),
        "scale_embeddings": _boolean(place, values, "scale_embedding", False),
        "head": {"kind": "softmax", "tie": _tie(config), "bias": bias},
    }


def _tie(config: ForeignConfig) -> str:
    shared = _boolean(config.place, config.values, "share_encoder_decoder_embeddings", True)
    tied = _boolean(config.place, config.values, "tie_word_embeddings", True)
    if shared and not tied:
        raise SettingsError(
            f"{config.place}: tie_word_embeddings: found false with share_encoder_decoder_embeddings true, "
            "expected true, or both false"
        )
    return "all" if shared else "target" if tied else "none"


def decoding_values(folder: Path, config: ForeignConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the [decoding] settings that match `generate`, and a line for each setting that is left out.

    generation_config.json has precedence; older folders have these settings in config.json.
    """
    path = folder / GENERATION
    values = {**config.values, **(_json(path) if path.exists() else {})}
    place = path if path.exists() else config.place
    decoding: dict[str, Any] = {}
    beams = values.get("num_beams", 1)
    decoding |= {"strategy": "greedy"} if beams == 1 else {"strategy": "beam", "beam": beams}
    decoding["length_penalty"] = values.get("length_penalty", 1.0)
    decoding["stop"] = "first" if values.get("early_stopping") is True else "optimal"
    longest = values.get("max_length")
    if isinstance(longest, int) and longest > 1:
        decoding["max_length"] = longest - 1  # `generate` counts the start token
    notes = []
    for name, harmless in _UNCARRIED.items():
        found = values.get(name)
        if found is not None and found not in harmless:
            notes.append(f"{place}: {name}: {_shown(found)} has no setting here and is left out")
    banned = values.get("bad_words_ids") or []
    others = [words for words in banned if words not in ([config.pad], [config.bos])]
    if others:
        notes.append(f"{place}: bad_words_ids: {_shown(others)} have no setting here and are left out")
    return decoding, notes


def build_config(place: Path, values: dict[str, Any]) -> Config:
    """Build our settings. Raises SettingsError, prefixed with `place`, for values out of range."""
    return Config.build(values, place=str(place))


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(f"{path}: no such file, expected one as transformers saves it") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise DataError(f"{path}: found {type(values).__name__}, expected a JSON object")
    return values


def _integer(place: Path, values: Mapping[str, Any], name: str) -> int:
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        shown = "nothing" if name not in values else _shown(found)
        raise SettingsError(f"{place}: {name}: found {shown}, expected a whole number")
    return found


def _boolean(place: Path, values: Mapping[str, Any], name: str, default: bool) -> bool:
    found = values.get(name, default)
    if not isinstance(found, bool):
        raise SettingsError(f"{place}: {name}: found {_shown(found)}, expected true or false")
    return found


def _shown(value: object) -> str:
    return json.dumps(value)
