"""Convert config.json and generation_config.json of transformers to our settings; refuse unsupported ones by name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    def from_values(
        cls, place: Path, architecture: str, values: Mapping[str, Any], target_vocabulary: int
    ) -> "ForeignConfig":
        """Read sizes and special ids. Raises SettingsError for one that is missing or out of range."""
        vocabulary = read_integer(place, values, "vocab_size")
        names = {"pad": "pad_token_id", "bos": "decoder_start_token_id", "eos": "eos_token_id"}
        ids = {ours: read_integer(place, values, theirs) for ours, theirs in names.items()}
        for ours, number in ids.items():
            if not 0 <= number < min(vocabulary, target_vocabulary):
                raise SettingsError(
                    f"{place}: {names[ours]}: found {number}, expected an id of the vocabulary, 0 to {vocabulary - 1}"
                )
        sizes = {"vocabulary": vocabulary, "target_vocabulary": target_vocabulary}
        return cls(place=place, architecture=architecture, values=values, **sizes, **ids)


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
    beams = values.get("num_beams", 1)
    decoding: dict[str, Any] = {"strategy": "greedy"} if beams == 1 else {"strategy": "beam", "beam": beams}
    decoding["length_penalty"] = values.get("length_penalty", 1.0)
    decoding["stop"] = "first" if values.get("early_stopping") is True else "optimal"
    uncounted = 1 + bool(languages)  # `generate` counts the start token and the tag
    for ours, theirs, offset, minimum in (
        ("max_length", "max_length", uncounted, 1),
        ("min_length", "min_length", uncounted, 0),
        ("no_repeat_ngram", "no_repeat_ngram_size", 0, 1),
    ):
        number = values.get(theirs)
        if isinstance(number, int) and number > min(offset, 1):
            decoding[ours] = max(minimum, number - offset)
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
        value = values.get(name)
        if value is None or value in harmless or (name == "forced_bos_token_id" and code is not None):
            continue
        why = " that divides logits" if name == "repetition_penalty" else ""
        notes.append(f"{place}: {name}: {shown(value)} has no setting here{why} and is left out")
    banned = values.get("bad_words_ids") or []
    others = [words for words in banned if words not in ([config.pad], [config.bos])]
    if others:
        notes.append(f"{place}: bad_words_ids: {shown(others)} have no setting here and are left out")
    return decoding, notes


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


def read_integer(place: Path, values: Mapping[str, Any], name: str) -> int:
    """Return a setting of config.json. Raises SettingsError if it is missing or not an integer."""
    value = values.get(name)
    if type(value) is not int:
        there = shown(value) if name in values else "nothing"
        raise SettingsError(f"{place}: {name}: found {there}, expected an integer")
    return value


def read_ids(place: Path, values: Mapping[str, Any], name: str) -> list[int]:
    """Return a list of ids; empty for null. Raises SettingsError if it is not a list of integers."""
    ids = values.get(name)
    if ids is None:
        return []
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise SettingsError(f"{place}: {name}: found {shown(ids)}, expected a list of ids")
    return ids


def read_boolean(place: Path, values: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return a setting of config.json, or `default`. Raises SettingsError if it is not a boolean."""
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise SettingsError(f"{place}: {name}: found {shown(value)}, expected true or false")
    return value


def shown(value: object) -> str:
    """Return a value as config.json writes it."""
    return json.dumps(value)
