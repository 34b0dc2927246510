"""What a request wants its translations to hold: words and phrases, checked before any work is done for them."""

from collections.abc import Mapping
from typing import Any

from translume.config import DecodingSettings
from translume.errors import SettingsError
from translume.serving.api.errors import RequestError
from translume.translator.constraints import refuse_unfit

MOST, LONGEST = 16, 200
"""Constraints of a text, and characters of one: a search keeps more hypotheses, the longer they are together."""


def constraints_in(values: Mapping[str, Any], count: int, settings: DecodingSettings) -> tuple[tuple[str, ...], ...]:
    """The constraints of each of `count` texts; nothing where the request has none.

    `constraints` is a text or a list of texts where `text` is one text, and a list of such for a list of texts.
    Raises RequestError (422) for anything else, and where the strategy takes no constraints.
    """
    value = values.get("constraints", [])
    each = value if isinstance(values.get("text"), list) else [value]
    if not isinstance(each, list) or (value and len(each) != count):
        found = f"{len(each):,} for {count:,} texts" if isinstance(each, list) else "no list"
        raise _error(f"constraints: found {found}, wanted a text or a list of texts for each")
    wanted = tuple(_phrases(one, place) for place, one in enumerate(each))
    if not any(wanted):
        return ()
    try:
        refuse_unfit(settings)
    except SettingsError as error:
        raise _error(f"constraints: {str(error).removeprefix('decoding.')}") from None
    return wanted


def _phrases(value: Any, place: int) -> tuple[str, ...]:
    phrases = [value] if isinstance(value, str) else value
    if not isinstance(phrases, list) or not all(isinstance(phrase, str) for phrase in phrases):
        raise _error(f"constraints: found something else for text {place}, wanted a text or a list of texts")
    if len(phrases) > MOST:
        raise _error(f"constraints: found {len(phrases):,} for text {place}, wanted at most {MOST}")
    for phrase in phrases:
        if not phrase.strip():
            raise _error(f"constraints: found a blank one for text {place}, wanted a word or a phrase")
        if len(phrase) > LONGEST:
            raise _error(f"constraints: found {len(phrase):,} characters in one, wanted at most {LONGEST}")
    return tuple(phrases)


def _error(reason: str) -> RequestError:
    return RequestError(422, reason, field="constraints")
