"""Convert config.json and generation_config.json of transformers to our settings; refuse unsupported ones by name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translume.config import Config
from translume.errors import DataError, ModelFolderError, SettingsError

CONFIG, GENERATION = "config.json", "generation_config.json"
_UNCARRIED: dict[str, tuple[object, ...]] = {
    "do_sample": (False,), "encoder_no_repeat_ngram_size": (0,),
    "repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,), "num_beam_groups": (1,), "penalty_alpha": (),
    "diversity_penalty": (0.0,), "forced_bos_token_id": (),
    "sequence_bias": (), "min_new_tokens": (), "max_new_tokens": (), "num_return_sequences": (1,),
}  # fmt: skip
"""Settings of a search that we do not have, with the values that change nothing. null never changes anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConfig:
    """The contents of config.json.

    place: its path.  architecture: the name of the family.  vocabulary, target_vocabulary: sizes.
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

    @classmethod
    def of(cls, place: Path, architecture: str, values: Mapping[str, Any], target_vocabulary: int) -> "ForeignConfig":
        """Read sizes and special ids. Raises SettingsError for one that is missing or out of range."""
        vocabulary = read_whole_number(place, values, "vocab_size")
        names = {"pad": "pad_token_id", "bos": "decoder_start_token_id", "eos": "eos_token_id"}
        ids = {ours: read_whole_number(place, values, theirs) for ours, theirs in names.items()}
        for ours, number in ids.items():
            if not 0 <= number < min(vocabulary, target_vocabulary):
                raise SettingsError(
                    f"{place}: {names[ours]}: found {number}, expected an id of the vocabulary, 0 to {vocabulary - 1}"
                )
        return cls(
            place=place,
            architecture=architecture,
            vocabulary=vocabulary,
            target_vocabulary=target_vocabulary,
            values=values,
            **ids,
        )


def decoding_values(
    folder: Path, config: ForeignConfig, languages: Mapping[str, int]
) -> tuple[dict[str, Any], list[str]]:
    """Return the [decoding] settings that match `generate`, and a line for each setting that is left out.

    languages: the ids of the tags that begin a target.
    generation_config.json has precedence; older folders have these settings in config.json.
    """
    path = folder / GENERATION
    values = {**config.values, **(read_json(path) if path.exists() else {})}
    place = path if path.exists() else config.place
    decoding: dict[str, Any] = {}
    beams = values.get("num_beams", 1)
    decoding |= {"strategy": "greedy"} if beams == 1 else {"strategy": "beam", "beam": beams}
    decoding["length_penalty"] = values.get("length_penalty", 1.0)
    decoding["stop"] = "first" if values.get("early_stopping") is True else "optimal"
    longest = values.get("max_length")
    if isinstance(longest, int) and longest > 1:
        decoding["max_length"] = max(1, longest - 1 - bool(languages))  # `generate` counts the start token and the tag
    if isinstance(shortest := values.get("min_length"), int) and shortest > 1:
        decoding["min_length"] = max(0, shortest - 1 - bool(languages))
    if isinstance(order := values.get("no_repeat_ngram_size"), int) and order > 0:
        decoding["no_repeat_ngram"] = order
    for ours, theirs in (("suppress", "suppress_tokens"), ("suppress_first", "begin_suppress_tokens")):
        if ids := read_ids(place, values, theirs):
            decoding[ours] = sorted({id_ for id_ in ids if 0 <= id_ < config.target_vocabulary})
    if "" in languages:  # texts of one language, not to be translated sentence by sentence
        decoding["split"] = "never"
    first = values.get("forced_bos_token_id")
    code = next((code for code, id_ in languages.items() if id_ == first), None)
    if code:
        decoding["to"] = code
    notes = []
    for name, harmless in _UNCARRIED.items():
        found = values.get(name)
        if name == "forced_bos_token_id" and code is not None:
            continue
        if found is not None and found not in harmless:
            why = " that divides logits" if name == "repetition_penalty" else ""
            notes.append(f"{place}: {name}: {shown(found)} has no setting here{why} and is left out")
    banned = values.get("bad_words_ids") or []
    others = [words for words in banned if words not in ([config.pad], [config.bos])]
    if others:
        notes.append(f"{place}: bad_words_ids: {shown(others)} have no setting here and are left out")
    return decoding, notes


def build_config(place: Path, values: dict[str, Any]) -> Config:
    """Build our settings. Raises SettingsError, prefixed with `place`, for values out of range."""
    return Config.build(values, place=str(place))


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ModelFolderError if it is missing, DataError for a damaged one."""
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


def read_whole_number(place: Path, values: Mapping[str, Any], name: str) -> int:
    """Return a setting of config.json. Raises SettingsError if it is missing or not a whole number."""
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        there = shown(found) if name in values else "nothing"
        raise SettingsError(f"{place}: {name}: found {there}, expected a whole number")
    return found


def read_ids(place: Path, values: Mapping[str, Any], name: str) -> list[int]:
    """Return a list of ids; empty for null. Raises SettingsError if it is no list of whole numbers."""
    found = values.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise SettingsError(f"{place}: {name}: found {shown(found)}, expected a list of ids")
    return found


def read_boolean(place: Path, values: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a setting of config.json, or `default`. Raises SettingsError if it is not a boolean."""
    found = values.get(name, default)
    if not isinstance(found, bool):
        raise SettingsError(f"{place}: {name}: found {shown(found)}, expected true or false")
    return found


def shown(value: object) -> str:
    """Return a value as config.json writes it."""
    return json.dumps(value)
