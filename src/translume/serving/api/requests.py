"""What a request of API v1 asks for, checked field by field before any work is done for it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from translume.config import Config, DecodingSettings
from translume.decoding import refuse_unread, strategy_from
from translume.errors import SettingsError, nearest
from translume.serving.access.limits import Limits
from translume.serving.api.constraints import constraints_in
from translume.serving.api.errors import RequestError
from translume.serving.api.texts import Texts
from translume.serving.workers.models import Models, Served

SPLITS = ("sentences", "lines")
"""What texts are translated by; the first one unless a request says otherwise."""
CHOICE = ("model", "source", "target")
WITHHELD = frozenset({"max_tokens", "vocabulary", "terminology"})
"""Settings of [decoding] that no request may replace: batches are the server's, and files are not read for clients."""
KNOBS = tuple(name for name in DecodingSettings.model_fields if name not in WITHHELD)
"""Those that it may."""
LARGEST = 1e6
"""No number may be larger: what a search computes with it must stay finite."""
TIGHTER = {"length_penalty": 10.0, "max_length_ratio": 100.0, "coverage_penalty": 100.0, "diversity": 1000.0}
SMALLEST_TEMPERATURE = 1e-3
LONGEST_REASON = 300
"""Most characters of a reason that quotes what was found."""
LONGEST_NAME = 200
MOST_BANNED = 2000
"""Characters of all that is banned: the table that finds them takes longer, the more there are."""

T = TypeVar("T", bool, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to translate."""

    texts: Texts
    served: Served
    settings: DecodingSettings
    detail: bool


def asked(values: Mapping[str, Any], models: Models, limits: Limits) -> Asked:
    """The request in a JSON object; RequestError naming the first field that is wrong."""
    known = ("text", *CHOICE, "constraints", "detail", "split", "timeout_seconds", *KNOBS)
    refuse_unknown(values, known)
    texts = texts_in(values, "text", limits)
    served = chosen(values, models)
    detail = typed(values, "detail", bool, False)
    knobs = {name: value for name, value in values.items() if name in KNOBS}
    if detail:
        knobs.setdefault("alignment", True)
    settings = settings_with(served, knobs, limits)
    return Asked(
        texts=Texts(
            texts=texts,
            field="text",
            several=isinstance(values["text"], list),
            timeout_seconds=timeout(values, limits),
            language=split_by(values, served),
            constraints=constraints_in(values, len(texts), settings),
        ),
        served=served,
        settings=settings,
        detail=detail,
    )


def split_by(values: Mapping[str, Any], served: Served) -> str | None:
    """The language by whose rules texts are split into sentences; None where they are split into lines alone."""
    split = typed(values, "split", str, SPLITS[0])
    if split not in SPLITS:
        raise RequestError(422, f"split: wanted one of: {', '.join(SPLITS)}", field="split")
    return served.source if split == SPLITS[0] else None


def settings_with(served: Served, knobs: Mapping[str, Any], limits: Limits) -> DecodingSettings:
    """A model's [decoding] with what a request gives instead; RequestError (422) for what does not fit."""
    for name, value in knobs.items():
        _refuse_extreme(name, value, limits)
    _refuse_long_ban(knobs.get("ban", ""))
    own = served.translator.config.decoding
    given = {**knobs, "ban": _as_words(knobs["ban"])} if "ban" in knobs else knobs
    try:
        settings = Config.build({"decoding": {**own.model_dump(), **given}}, place="request").decoding
        refuse_unread(settings, knobs)
        width = strategy_from(settings).width
        served.translator.check(settings)
    except SettingsError as error:
        reason = str(error).removeprefix("request: ").removeprefix("decoding.")
        field = reason.partition(":")[0].partition(".")[0]
        short = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 1]}…"
        raise RequestError(422, short, field=field if field in KNOBS else "") from None
    if width > limits.width:
        raise RequestError(
            422, f"found {width} targets searched per sentence, wanted at most {limits.width}", code="too_wide"
        )
    return settings


def chosen(values: Mapping[str, Any], models: Models) -> Served:
    """The model that `model`, or `source` and `target`, name."""
    return models.choose(*(typed(values, name, str, "") for name in CHOICE))


def timeout(values: Mapping[str, Any], limits: Limits) -> float:
    """Seconds that the request gives itself; at most the server's."""
    value = values.get("timeout_seconds", limits.timeout_seconds)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= limits.timeout_seconds:
        raise RequestError(
            422,
            f"timeout_seconds: found {shown(value)}, wanted a number above 0, at most {limits.timeout_seconds:g}",
            field="timeout_seconds",
        )
    return float(value)


def texts_in(values: Mapping[str, Any], field: str, limits: Limits) -> tuple[str, ...]:
    """The texts of a field that holds one or a list of them; RequestError for none, too many, too long ones."""
    value = values.get(field)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        found = "nothing" if field not in values else shown(value)
        raise RequestError(422, f"{field}: found {found}, wanted a text or a list of texts", field=field)
    if len(texts) > limits.texts:
        raise RequestError(
            413,
            f"{field}: found {len(texts):,} texts, wanted at most {limits.texts:,}",
            code="too_many_texts",
            field=field,
        )
    for number, text in enumerate(texts):
        place = field if isinstance(value, str) else f"{field}[{number}]"
        if not isinstance(text, str):
            raise RequestError(422, f"{place}: found {shown(text)}, wanted a text", field=place)
        refuse_long(text, place, limits)
    return tuple(texts)


def refuse_long(text: str, place: str, limits: Limits) -> None:
    """RequestError (413) naming a place in the request whose text is too long."""
    if len(text) > limits.characters:
        reason = f"{place}: found {len(text):,} characters, wanted at most {limits.characters:,}"
        raise RequestError(413, reason, code="text_too_long", field=place)


def refuse_unknown(values: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """RequestError for a field that means nothing, with the nearest one that does, or that is not for requests."""
    for name in values:
        if name in WITHHELD:
            raise RequestError(422, f"{name}: no request may set it, the model's own setting holds", field=name)
        if name not in known:
            short = name if len(name) <= 40 else f"{name[:39]}…"
            raise RequestError(422, f"{short}: no such field{nearest(short, known)}", code="unknown_field", field=short)


def typed(values: Mapping[str, Any], field: str, kind: type[T], default: T) -> T:
    """The value of a field; RequestError where it is of another type."""
    value = values.get(field, default)
    if not isinstance(value, kind):
        wanted = {bool: "true or false", str: "a text"}[kind]
        raise RequestError(422, f"{field}: found {shown(value)}, wanted {wanted}", field=field)
    if isinstance(value, str) and len(value) > LONGEST_NAME:
        raise RequestError(422, f"{field}: found {len(value):,} characters, wanted at most {LONGEST_NAME}", field=field)
    return value


def shown(value: Any) -> str:
    """A value as errors show it, of any size and depth: texts are not quoted, they are the user's own."""
    if isinstance(value, str):
        return "a text"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:.6g}" if abs(value) < 10**308 else "a number without end"


def _refuse_long_ban(ban: Any) -> None:
    """RequestError (413) for phrases of which a table would be made for longer than anybody else can wait."""
    size = sum(map(len, [ban] if isinstance(ban, str) else ban))
    if size > MOST_BANNED:
        raise RequestError(
            413,
            f"ban: found {size:,} characters in all, wanted at most {MOST_BANNED:,}",
            code="text_too_long",
            field="ban",
        )


def _as_words(value: Any) -> list[str]:
    """What is banned, as words: in settings, "@" would name a file."""
    return [f"@{text}" if text.startswith("@") else text for text in ([value] if isinstance(value, str) else value)]


def _refuse_extreme(name: str, value: Any, limits: Limits) -> None:
    """RequestError for values that settings allow and that a server cannot afford, or not compute with."""
    if isinstance(value, str):
        refuse_long(value, name, limits)
        return
    if isinstance(value, list):
        texts_in({name: value}, name, limits)
        return
    if name == "ban":
        raise RequestError(422, f"ban: found {shown(value)}, wanted a text or a list of texts", field="ban")
    if isinstance(value, dict) or value is None:
        raise RequestError(422, f"{name}: found {shown(value)}, wanted a number, a text, true or false", field=name)
    if isinstance(value, bool) or name == "seed":
        return
    most = TIGHTER.get(name, LARGEST)
    if abs(value) > most or not math.isfinite(value):
        raise RequestError(422, f"{name}: found {shown(value)}, wanted at most {most:,.10g}", field=name)
    if name == "temperature" and 0 < value < SMALLEST_TEMPERATURE:
        raise RequestError(422, f"{name}: found {shown(value)}, wanted at least {SMALLEST_TEMPERATURE}", field=name)
