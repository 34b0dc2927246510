"""Convert config.json and generation_config.json of transformers to our settings; refuse unsupported ones by name."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translume import json_values
from translume.errors import ModelFolderError, SettingsError, nearest

CONFIG, GENERATION = "config.json", "generation_config.json"
_CARRIED = frozenset({
    "num_beams", "length_penalty", "early_stopping", "max_length", "max_new_tokens", "min_length", "min_new_tokens",
    "no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "forced_bos_token_id",
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
})  # fmt: skip
"""Settings of `generate` that are read; `forced_bos_token_id` only if it is the tag of a language."""
_UNCARRIED: dict[str, tuple[object, ...]] = {
    "do_sample": (False,), "encoder_no_repeat_ngram_size": (0,), "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,), "num_beam_groups": (1,), "penalty_alpha": (), "diversity_penalty": (0.0,),
    "sequence_bias": (), "num_return_sequences": (1,), "forced_eos_token_id": (), "forced_decoder_ids": (),
    "exponential_decay_length_penalty": (), "renormalize_logits": (False,), "guidance_scale": (1.0,),
    "watermarking_config": (), "token_healing": (False,), "stop_strings": (), "max_time": (), "constraints": (),
    "force_words_ids": (), "dola_layers": (),
}  # fmt: skip
"""Settings of a search that we do not have, with the values that change nothing. null never changes anything."""
_OF_SAMPLING: dict[str, tuple[object, ...]] = {
    "temperature": (1.0,), "top_k": (0,), "top_p": (1.0,), "min_p": (), "top_h": (), "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,),
}  # fmt: skip
"""As `_UNCARRIED`; they have an effect only with `do_sample`."""
_WITHOUT_EFFECT = frozenset({
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "use_mtp", "remove_invalid_values",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "prompt_lookup_num_tokens",
    "max_matching_ngram_size", "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind",
    "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "compile_config", "disable_compile",
    "continuous_batching_config", "low_memory", "prefill_chunk_size", "transformers_version", "_from_model_config",
    "_commit_hash",
})  # fmt: skip
"""Settings that change only how fast `generate` is or what else it returns."""
GENERATION_SETTINGS = _CARRIED | _UNCARRIED.keys() | _OF_SAMPLING.keys() | _WITHOUT_EFFECT
"""All settings of `generate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConfig:
    """The contents of config.json.

    place: its path.  architecture: the name of the family.  vocabulary, target_vocabulary: sizes.
    pad, bos, eos: ids; bos starts decoding.  ends: ids that end a target.  values: all of config.json.
    """

    place: Path
    architecture: str
    vocabulary: int
    target_vocabulary: int
    pad: int
    bos: int
    eos: int
    ends: tuple[int, ...]
    values: Mapping[str, Any]

    @classmethod
    def from_values(
        cls, place: Path, architecture: str, values: Mapping[str, Any], target_vocabulary: int
    ) -> "ForeignConfig":
        """Read sizes and special ids, as `generate` does. Raises SettingsError if one is missing or out of range."""
        vocabulary = read_integer(place, values, "vocab_size")
        generation_place, generation = generation_values(place.parent, values)
        defaults = _class_defaults(values)
        as_start = {"decoder_start_token_id": generation.get("bos_token_id")}
        # The model was made with config.json's padding and reads a text to its EOS; only `generate` reads the others.
        found = {
            "pad": ("pad_token_id", (values, generation, defaults)),
            "bos": ("decoder_start_token_id", (generation, as_start, values, defaults)),
            "eos": ("eos_token_id", (values, generation, defaults)),
        }
        ids: dict[str, int] = {}
        for ours, (name, sources) in found.items():
            given = next((source for source in sources if source.get(name) is not None), {})
            there = generation_place if given is generation else place
            several = read_id_or_ids(there, given, name)
            usual = defaults.get(name)
            ids[ours] = usual if usual in several else several[0]
            if not 0 <= ids[ours] < min(vocabulary, target_vocabulary):
                raise SettingsError(
                    f"{there}: {name}: found {ids[ours]}, expected an id of the vocabulary, 0 to {vocabulary - 1}"
                )
        ends: tuple[int, ...] = (ids["eos"],)
        if generation.get("eos_token_id") is not None:
            all_ends = read_id_or_ids(generation_place, generation, "eos_token_id")
            ends = tuple(dict.fromkeys(each for each in all_ends if 0 <= each < target_vocabulary)) or ends
        sizes = {"vocabulary": vocabulary, "target_vocabulary": target_vocabulary}
        return cls(place=place, architecture=architecture, values=values, ends=ends, **sizes, **ids)


def generation_values(folder: Path, values: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the settings of `generate` without null, and their file.

    values: those of config.json, which count only if there is no generation_config.json.
    """
    path = folder / GENERATION
    stated = read_json(path) if path.exists() else values
    place = path if path.exists() else folder / CONFIG
    return place, {name: value for name, value in stated.items() if value is not None}


def _class_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a new model of the same type."""
    from transformers import CONFIG_MAPPING

    kind = values.get("model_type")
    return CONFIG_MAPPING[kind]().to_dict() if isinstance(kind, str) and kind in CONFIG_MAPPING else {}


def decoding_values(
    folder: Path, config: ForeignConfig, languages: Mapping[str, int], own: Collection[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Return the [decoding] settings that match `generate`, and a line for each setting that is left out.

    languages: the ids of the tags that begin a target.  own: names of settings that the family itself reads.
    """
    place, values = generation_values(folder, config.values)
    beams = values.get("num_beams", 1)
    decoding: dict[str, Any] = {"strategy": "greedy"} if beams == 1 else {"strategy": "beam", "beam": beams}
    decoding["length_penalty"] = values.get("length_penalty", 1.0)
    decoding["stop"] = "first" if values.get("early_stopping") is True else "optimal"
    uncounted = 1 + bool(languages)  # `generate` counts the start token and the tag, as new tokens only the tag
    for ours, theirs, offset, minimum in (
        ("max_length", "max_length", uncounted, 1),
        ("min_length", "min_length", uncounted, 0),
        ("max_length", "max_new_tokens", uncounted - 1, 1),
        ("min_length", "min_new_tokens", uncounted - 1, 0),
        ("no_repeat_ngram", "no_repeat_ngram_size", 0, 1),
    ):
        number = values.get(theirs)
        if isinstance(number, int) and number > min(offset, 1):
            decoding[ours] = max(minimum, number - offset)
    banned = values.get("bad_words_ids") or []
    single = {words[0] for words in banned if isinstance(words, list) and len(words) == 1}
    single -= {config.pad, config.bos, *config.ends}  # never written in any case
    values["suppress_tokens"] = [*read_ids(place, values, "suppress_tokens"), *single]
    for ours, theirs in (("suppress", "suppress_tokens"), ("suppress_first", "begin_suppress_tokens")):
        ids = {id_ for id_ in read_ids(place, values, theirs) if 0 <= id_ < config.target_vocabulary}
        if ids:
            decoding[ours] = sorted(ids)
    if config.ends != (config.eos,):
        decoding["ends"] = list(config.ends)
    if "" in languages:  # texts of one language, not to be translated sentence by sentence
        decoding["split"] = "never"
    first = values.get("forced_bos_token_id")
    code = next((code for code, id_ in languages.items() if id_ == first), None)
    if code:
        decoding["to"] = code
    return decoding, _notes(place, values, code is not None, own)


def _notes(place: Path, values: Mapping[str, Any], tagged: bool, own: Collection[str]) -> list[str]:
    """Return a line for each setting of `generate` that is left out.

    tagged: whether `forced_bos_token_id` is the tag of a language.
    """
    notes = []
    limits = _UNCARRIED | ({} if tagged else {"forced_bos_token_id": ()})
    limits |= _OF_SAMPLING if values.get("do_sample") is True else {}
    for name, harmless in limits.items():
        if name not in own and name in values and values[name] not in harmless:
            why = " that divides logits" if name == "repetition_penalty" else ""
            notes.append(f"{place}: {name}: {shown(values[name])} has no setting here{why} and is left out")
    if several := [words for words in values.get("bad_words_ids", ()) if not isinstance(words, list) or len(words) > 1]:
        notes.append(f"{place}: bad_words_ids: {shown(several)} have no setting here and are left out")
    if place.name == GENERATION:
        unknown = values.keys() - GENERATION_SETTINGS - set(own)
        notes += [f"{place}: {name} is unknown here and is left out" for name in sorted(unknown)]
    return notes


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ModelFolderError if it is missing, DataError for a damaged one."""
    try:
        values: dict[str, Any] = json_values.read_json(path)
    except FileNotFoundError:
        raise ModelFolderError(f"{path}: no such file, expected one as transformers saves it") from None
    return values


def read_integer(place: Path, values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a setting of config.json. Raises SettingsError if it is missing without a default, or not an integer."""
    value = values.get(name, default)
    if type(value) is not int:
        there = shown(value) if name in values else "nothing"
        raise SettingsError(f"{place}: {name}: found {there}, expected an integer")
    return value


def read_side(place: Path, values: Mapping[str, Any], side: str, known: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the encoder or decoder of a pair. Raises SettingsError for a type that is not `known`."""
    given = values.get(side)
    if not isinstance(given, dict):
        raise SettingsError(f"{place}: {side}: found {shown(given)}, expected the settings of the {side}")
    if (kind := given.get("model_type")) not in known:
        raise SettingsError(f"{place}: {side}.model_type: found {shown(kind)}{nearest(str(kind), known)}")
    return given


def read_id_or_ids(place: Path, values: Mapping[str, Any], name: str) -> list[int]:
    """Return the ids of a setting that is an id or a list of some. Raises SettingsError for anything else."""
    value = values.get(name)
    if not isinstance(value, list):
        return [read_integer(place, values, name)]
    if not value or not all(type(each) is int for each in value):
        raise SettingsError(f"{place}: {name}: found {shown(value)}, expected an integer or a list of them")
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
