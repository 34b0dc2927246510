"""Settings of [decoding] that a request may replace, and the constraints of its texts."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from translume.config import Config, DecodingSettings
from translume.decoding import resolve_strategy, strategy_from
from translume.errors import SettingsError, TranslumeError
from translume.serving.api.errors import RequestError, field_error, refuse_more, shown
from translume.serving.api.requests import DECODING_FIELDS, TranslateRequest, as_list, check_texts
from translume.serving.api.texts import in_thread
from translume.serving.server import Server
from translume.serving.settings import Limits
from translume.serving.work import Generating, LineCost, Part, Translating
from translume.translator.constraints import refuse_constraints
from translume.translator.planning import splits_sentences
from translume.translator.search import target_limit

LARGEST_NUMBER: Final = 1e6
"""Largest number in a decoding setting, so that everything a search computes from it is finite."""
LARGEST: Final = {"length_penalty": 10.0, "max_length_ratio": 100.0, "coverage_penalty": 100.0, "diversity": 1000.0}
"""Smaller bounds of some settings."""
SMALLEST_TEMPERATURE: Final = 1e-3
LONGEST_REASON: Final = 300
"""Maximum number of characters of an error message that quotes a value."""
LONGEST_RULES: Final = 2000
"""Maximum number of characters of all banned phrases, and of a prefix: building their tables takes time."""
KNOWN_SETTINGS: Final = 1000
"""Maximum number of settings of requests that are kept for a model."""
_KNOWN: Final = WeakKeyDictionary[Any, dict[tuple[str, Limits], DecodingSettings]]()
"""For each model, the valid settings of earlier requests by what they changed, and by the limits."""
MAX_CONSTRAINTS, LONGEST_CONSTRAINT = 16, 200
"""Maximum number of constraints of a text, and of characters of one: the beam grows with the length of all."""
SPLIT: Final = {"sentences": "always", "lines": "never"}
"""Earlier values of a request's `split`, and the values of `decoding.split` that they mean."""


async def loaded(served: Any) -> None:
    """Load a model in a thread, unless it is loaded."""
    if not served.loaded:
        await run_in_threadpool(served.model.load)


async def settings_with(served: Any, changes: Mapping[str, Any], limits: Limits) -> DecodingSettings:
    """Return a model's [decoding] with changes; RequestError (422) for a value that is not allowed.

    The server splits texts before they are translated, so `split` is "never". Results are kept, and new ones found in
    a thread.
    """
    if any(isinstance(value, list | dict) for value in changes.values()):
        return await run_in_threadpool(decoding_settings, served, changes, limits)
    known = _KNOWN.setdefault(served.model, {})
    key = json.dumps([dict(served.direction), dict(changes)], sort_keys=True), limits
    if (settings := known.get(key)) is None:
        settings = await run_in_threadpool(decoding_settings, served, changes, limits)
        if len(known) >= KNOWN_SETTINGS:
            known.clear()
        known[key] = settings
    return settings


def decoding_settings(served: Any, changes: Mapping[str, Any], limits: Limits) -> DecodingSettings:
    """Return what `settings_with` returns."""
    for name, value in changes.items():
        _check_setting(name, value, limits)
    # In settings, a leading "@" of a banned phrase would name a file.
    ban = {"ban": [f"@{text}" if text.startswith("@") else text for text in as_list(changes.get("ban", []))]}
    config = served.model.config
    values = {**config.decoding.model_dump(), **served.direction, **changes, **(ban if "ban" in changes else {})}
    try:
        settings = resolve_strategy(Config.build({"decoding": values}, place="request").decoding, changes)
        width = strategy_from(settings).width
        served.model.check(settings)
    except SettingsError as error:
        reason = str(error).removeprefix("request: ").removeprefix("decoding.")
        field = reason.partition(":")[0].partition(".")[0]
        short = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 1]}…"
        raise RequestError(422, short, field=field if field in DECODING_FIELDS else "") from None
    if width > limits.width:
        reason = f"found {width} hypotheses per sentence, expected at most {limits.width}"
        raise RequestError(422, reason, code="too_wide")
    # A language model has no split.
    return settings if served.facts["offers"] == ["generate"] else settings.model_copy(update={"split": "never"})


def _check_setting(name: str, value: Any, limits: Limits) -> None:
    """Raise RequestError for a value that settings allow but that is too expensive or too large for a server."""
    if name == "utility" and value not in ("none", "chrf", "bleu"):  # others start processes
        raise field_error(name, f"found {shown(value)}, expected none, chrf or bleu")
    if isinstance(value, str | list) or name == "ban":
        check_texts(value, name, limits)
        if name in ("ban", "prefix"):
            refuse_more(name, sum(map(len, as_list(value))), " characters in all", LONGEST_RULES, "text_too_long")
        return
    if isinstance(value, dict) or value is None:
        raise field_error(name, f"found {shown(value)}, expected a number, a string, true or false")
    if name == "seed":
        return
    maximum = LARGEST.get(name, LARGEST_NUMBER)
    if abs(value) > maximum or not math.isfinite(value):
        raise field_error(name, f"found {shown(value)}, expected at most {maximum:,.10g}")
    if name == "temperature" and 0 < value < SMALLEST_TEMPERATURE:
        raise field_error(name, f"found {shown(value)}, expected at least {SMALLEST_TEMPERATURE}")


def split_language(served: Any, split: str = "") -> str | None:
    """Return the language whose rules split texts for a model; None if texts are split into lines only.

    split: of a request; by default the model's own.
    """
    chosen = split or served.model.config.decoding.split
    return served.source if splits_sentences(served.model.checkpoint, cast(Any, SPLIT.get(chosen, chosen))) else None


def constraints_of(request: TranslateRequest, settings: DecodingSettings) -> tuple[tuple[str, ...], ...]:
    """Return the constraints of each text; an empty tuple if the request has none. Raises RequestError (422)."""
    several, count = isinstance(request.text, list), len(as_list(request.text))
    by_text = request.constraints if several else [request.constraints]
    if not isinstance(by_text, list) or (request.constraints and len(by_text) != count):
        found = f"{len(by_text):,} for {count:,} texts" if isinstance(by_text, list) else shown(by_text)
        raise field_error("constraints", f"found {found}, expected a string or a list of strings for each")
    constraints = tuple(_phrases(phrases, place) for place, phrases in enumerate(by_text))
    if not any(constraints):
        return ()
    try:
        refuse_constraints(settings)
    except SettingsError as error:
        raise field_error("constraints", str(error).removeprefix("decoding.")) from None
    return constraints


def _phrases(value: Any, place: int) -> tuple[str, ...]:
    phrases = [value] if isinstance(value, str) else value
    if not isinstance(phrases, list) or not all(isinstance(phrase, str) for phrase in phrases):
        raise field_error(
            "constraints", f"found {shown(value)} for text {place}, expected a string or a list of strings"
        )
    refuse_more("constraints", len(phrases), f" for text {place}", MAX_CONSTRAINTS, status=422)
    for phrase in phrases:
        if not phrase.strip():
            raise field_error("constraints", f"found a blank one for text {place}, expected a word or a phrase")
        refuse_more("constraints", len(phrase), " characters in one", LONGEST_CONSTRAINT, status=422)
    return tuple(phrases)


LENGTHENING: Final = ("max_length", "max_length_extra", "max_length_ratio", "prefix")
"""Settings that make targets longer."""
WIDENING: Final = ("beam", "samples", "nbest", "strategy")
"""Settings that keep more hypotheses."""


async def accept_parts(
    server: Server,
    request: Request,
    texts: Sequence[str],
    work: Translating,
    parts: Sequence[Part],
    changed: Collection[str],
) -> None:
    """Charge texts that are split into parts, and what their search costs beyond the usual.

    changed: the settings that the request replaces.
    Raises RequestError if it is too much.
    """
    size = sum(len(part.text) for part in parts)
    more = await in_thread(size, lambda: characters_to_charge(work, parts, changed, server.limits))
    await server.accept(request, texts, more, sum(part.characters for part in parts if part.frames is not None))


def characters_to_charge(work: Translating, parts: Sequence[Part], changed: Collection[str], limits: Limits) -> int:
    """Return the number of characters to charge beyond those of the parts, as they may cost more than usual.

    A line that may make twice as many target tokens as with the model's own settings counts twice.
    Raises RequestError (413) that names the field to lower if all lines may make too many target tokens.
    """
    changed = [name for name in (*LENGTHENING, *WIDENING) if name in changed]
    if not changed and _bound(work, parts) <= limits.target_tokens:
        return 0
    costs = list(_costs(work, parts))
    total = sum(each.target_tokens for each in costs)
    if total > limits.target_tokens:
        field = _field_to_lower(work, parts, total, changed)
        factors = f"(hypotheses per sentence × longest target, for all {len(parts):,} sentences)"
        raise _too_costly(field, f"{total:,} target tokens {factors}", limits)
    return sum(
        part.characters * (each.target_tokens - each.usual_target_tokens) // each.usual_target_tokens
        for part, each in zip(parts, costs, strict=True)
        if each.target_tokens > each.usual_target_tokens > 0
    )


def tokens_to_charge(work: Generating, prompts: Sequence[str], limits: Limits) -> int:
    """Return the maximum number of tokens that may be generated after prompts, which count like characters.

    Raises RequestError (413) that names the field to lower if they are too many.
    """
    width = strategy_from(work.settings).width
    longest = work.settings.max_length or work.generator.checkpoint.config.data.block_length
    total = len(prompts) * width * longest
    if total > limits.target_tokens:
        field = "max_length" if work.settings.max_length else "strategy"
        factors = f"({width} texts × {longest:,} tokens, for {len(prompts):,} prompts)"
        raise _too_costly(field, f"{total:,} tokens {factors}", limits)
    return total


def _too_costly(field: str, tokens: str, limits: Limits) -> RequestError:
    reason = f"the search may make {tokens}, expected at most {limits.target_tokens:,}; lower it"
    return field_error(field, reason, 413, "too_costly")


def _bound(work: Translating, parts: Sequence[Part]) -> float:
    """Return the maximum number of target tokens of texts with the model's own settings, as if bytes were tokens."""
    if any(part.constraints or part.frames is not None for part in parts):
        return math.inf
    checkpoint: Any = work.translator.checkpoint
    limits = (target_limit(checkpoint, len(part.text.encode()), 0, work.settings) for part in parts)
    return strategy_from(work.settings).width * sum(limits)


def _costs(work: Translating, parts: Sequence[Part]) -> Iterator[LineCost]:
    for part in parts:
        try:
            yield work.cost(part)
        except TranslumeError:  # reported when the line is translated
            yield LineCost(size=0, target_tokens=0, usual_target_tokens=0)


def _field_to_lower(work: Translating, parts: Sequence[Part], total: int, changed: Collection[str]) -> str:
    """Return the field of the request that adds most to its cost; that of the texts if none adds a third of it."""
    if any(part.constraints for part in parts):
        return "constraints"
    usual, field = work.translator.config.decoding, "text" if all(part.frames is None for part in parts) else "file"
    cheapest = 2 * total // 3
    for name in changed:
        other = Translating(work.translator, work.settings.model_copy(update={name: getattr(usual, name)}))
        if (without := sum(each.target_tokens for each in _costs(other, parts))) < cheapest:
            cheapest, field = without, name
    return field
