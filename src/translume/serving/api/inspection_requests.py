"""What a request to inspect asks for, checked field by field before any work is done for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from translume.config import DecodingSettings
from translume.errors import nearest
from translume.inspection.tracing import EVERYTHING, KNOWN, Part
from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError
from translume.serving.api.requests import (
    CHOICE,
    KNOBS,
    chosen,
    refuse_long,
    refuse_unknown,
    settings_with,
    shown,
    split_by,
    timeout,
    typed,
)
from translume.serving.workers.models import Models, Served

SHOWABLE: Final = tuple(part for part in KNOWN if part != "integrated-gradients")
"""Parts of a trace that a request may ask for: integrated gradients take too long."""
OWN: Final = (
    "text",
    "split",
    "part",
    "translation",
    "prefix_tokens",
    "target_tokens",
    "k",
    "show",
    "search",
    "reference",
)
GIVEN: Final = ("translation", "prefix_tokens", "target_tokens")
"""Fields that say what target is looked at; a request has one of them, or none for the model's own translation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What is to be inspected, checked but for what only the tokenizer knows.

    language: of the text's sentences; None: it is split into lines.  part: of those that it is translated in, counted
    from 0.  translation: a target as a text.
    prefix, target: tokens that the target begins with, or consists of; at most one of the three is given.
    """

    served: Served
    settings: DecodingSettings
    text: str
    language: str | None
    part: int
    translation: str | None
    prefix: tuple[str, ...]
    target: tuple[str, ...]
    k: int
    show: tuple[Part, ...]
    search: bool
    reference: str | None
    timeout_seconds: float


def inspection(values: Mapping[str, Any], models: Models, limits: Limits) -> Inspection:
    """What a JSON object asks for; RequestError naming the first field that is wrong."""
    refuse_unknown(values, (*OWN, *CHOICE, "timeout_seconds", *KNOBS))
    text = _text(values, "text", limits)
    if text is None:
        raise RequestError(422, "text: found nothing, wanted a text", field="text")
    served = chosen(values, models)
    settings = settings_with(served, {name: value for name, value in values.items() if name in KNOBS}, limits)
    if len(given := [name for name in GIVEN if name in values]) > 1:
        raise RequestError(422, f"{given[1]}: found {given[0]} beside it, wanted one of them", field=given[1])
    search, reference = typed(values, "search", bool, False), _text(values, "reference", limits)
    if reference is not None and not search:
        raise RequestError(422, 'reference: wanted "search": true with it', field="reference")
    if search and settings.strategy not in ("beam", "greedy"):
        raise RequestError(
            422, f"search: found strategy '{settings.strategy}', wanted 'beam' or 'greedy' to record", field="search"
        )
    return Inspection(
        served=served,
        settings=settings.model_copy(update={"nbest": 1}),
        text=text,
        language=split_by(values, served),
        part=_number(values, "part", 0, 0, limits.lines),
        translation=_text(values, "translation", limits),
        prefix=_tokens(values, "prefix_tokens", limits),
        target=_tokens(values, "target_tokens", limits),
        k=_number(values, "k", 5, 1, limits.listed),
        show=_show(values),
        search=search,
        reference=reference,
        timeout_seconds=timeout(values, limits),
    )


def _text(values: Mapping[str, Any], field: str, limits: Limits) -> str | None:
    """The text of a field; None where it is not there."""
    value = values.get(field)
    if field not in values:
        return None
    if not isinstance(value, str):
        raise RequestError(422, f"{field}: found {shown(value)}, wanted a text", field=field)
    refuse_long(value, field, limits)
    return value


def _tokens(values: Mapping[str, Any], field: str, limits: Limits) -> tuple[str, ...]:
    """The tokens of a field; empty where it is not there."""
    if field not in values:
        return ()
    value = values[field]
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise RequestError(422, f"{field}: wanted a list of tokens, at least one", field=field)
    if len(value) > limits.characters:
        raise RequestError(
            413, f"{field}: found {len(value):,} tokens, wanted at most {limits.characters:,}", field=field
        )
    return tuple(value)


def _number(values: Mapping[str, Any], field: str, default: int, least: int, most: int) -> int:
    value = values.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(
            422, f"{field}: found {shown(value)}, wanted a whole number from {least} to {most}", field=field
        )
    return value


def _show(values: Mapping[str, Any]) -> tuple[Part, ...]:
    """The parts that are wanted, each once."""
    value = values.get("show", list(EVERYTHING))
    if not isinstance(value, list):
        raise RequestError(422, f"show: found {shown(value)}, wanted a list of parts", field="show")
    for place, each in enumerate(value):
        if not isinstance(each, str) or each not in SHOWABLE:
            found = nearest(each, SHOWABLE) if isinstance(each, str) and len(each) <= 40 else ""
            wanted = found or f", wanted one of: {', '.join(SHOWABLE)}"
            raise RequestError(422, f"show[{place}]: no such part{wanted}", field=f"show[{place}]")
    return tuple(dict.fromkeys(cast(list[Part], value)))
