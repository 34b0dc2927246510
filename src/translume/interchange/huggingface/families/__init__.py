"""Families of models in transformers: the interface, and one module for each layout of weights.

`ARCHITECTURES` maps the names in their config.json to classes. No code outside this package branches on a family.
"""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from translume.config import ModelSettings
from translume.errors import SettingsError, nearest
from translume.interchange.huggingface.families.family import Family, TiedTable

__all__ = ["ARCHITECTURES", "Family", "TiedTable", "family_for", "family_named"]

_HERE = "translume.interchange.huggingface.families"
ARCHITECTURES: dict[str, str] = {
    "T5ForConditionalGeneration": f"{_HERE}.t5:T5",
    "MT5ForConditionalGeneration": f"{_HERE}.t5:Mt5",
    "BartForConditionalGeneration": f"{_HERE}.bart:Bart",
    "MBartForConditionalGeneration": f"{_HERE}.mbart:MBart",
    "M2M100ForConditionalGeneration": f"{_HERE}.m2m100:M2M100",
    "MarianMTModel": f"{_HERE}.marian:Marian",
    "PegasusForConditionalGeneration": f"{_HERE}.pegasus:Pegasus",
    "WhisperForConditionalGeneration": f"{_HERE}.whisper:Whisper",
}
"""The class of each architecture. An export takes the first family whose `describes` holds."""
_OTHER_KINDS = {
    "ForCausalLM": "a language model without an encoder",
    "LMHeadModel": "a language model without an encoder",
    "ForMaskedLM": "an encoder without a decoder",
    "ForPreTraining": "an encoder without a decoder",
    "ForSequenceClassification": "a classifier",
    "ForTokenClassification": "a classifier",
}
"""What the names of other architectures end with."""


def family_named(place: Path, values: Mapping[str, Any]) -> Family:
    """Return the family that the config.json at `place` names. Raises SettingsError for one that we do not have."""
    named = values.get("architectures")
    architecture = named[0] if isinstance(named, list) and len(named) == 1 else named
    if values.get("auto_map"):
        raise SettingsError(
            f"{place}: auto_map: the model needs Python code of its repository, which Translume never executes"
        )
    for ending, kind in _OTHER_KINDS.items():
        if str(architecture).endswith(ending):
            raise SettingsError(
                f"{place}: architectures: found {architecture!r}, {kind}, expected one with an encoder and a decoder: "
                f"{', '.join(ARCHITECTURES)}"
            )
    if architecture not in ARCHITECTURES:
        word = architecture if isinstance(architecture, str) else ""
        raise SettingsError(f"{place}: architectures: found {architecture!r}{nearest(word, ARCHITECTURES)}")
    return _family(architecture)


def family_for(settings: ModelSettings) -> Family:
    """Return the family as which a model with these settings is exported; its `refuse` may still refuse them."""
    return next(family for family in map(_family, ARCHITECTURES) if family.describes(settings))


def _family(architecture: str) -> Family:
    family: Family = resolve_name(ARCHITECTURES[architecture])()
    return family
