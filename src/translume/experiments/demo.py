"""The demo: a parallel corpus generated offline, and settings for a small model.

Sentence templates are filled with names, dates, numbers and money, which are drawn once, then formatted in each
language by CLDR's rules.
"""

import datetime
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_time, get_timezone_location
from babel.numbers import format_currency, format_decimal, format_percent, get_currency_name
from babel.units import format_unit

from translume.atomic import make_folder
from translume.config import Config
from translume.errors import DataError, SettingsError, nearest

UPDATES = 2000
NAME = "demo.toml"
UNSPACED = ("zh", "ja", "th")
PARTS = ("train", "valid", "test")

Sentences = tuple[tuple[str, str], ...]
"""Pairs of a source and its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCorpus:
    """Training, validation and test pairs. No sentence occurs twice, on either side."""

    source_language: str
    target_language: str
    train: Sentences
    valid: Sentences
    test: Sentences

    def write(self, folder: Path) -> None:
        """Write `train.en`, `train.zh`, …; files that already hold the same bytes are not written."""
        texts: dict[str, str] = {}
        for part in PARTS:
            for side, language in enumerate((self.source_language, self.target_language)):
                texts[f"{part}.{language}"] = "".join(f"{pair[side]}\n" for pair in getattr(self, part))
        _write(folder, texts)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the text of each file in a folder, unless it holds that already."""
    try:
        make_folder(folder)
        for path, content in ((folder / name, text.encode()) for name, text in texts.items()):
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be written: {error.strerror}") from None


def make_corpus(
    source_language: str, target_language: str, *, pairs: int = 40_000, held_out: int = 1000, seed: int = 1
) -> DemoCorpus:
    """Generate `pairs` training pairs, and `held_out` pairs each for validation and test.

    The result depends on the seed alone. Each source has exactly one target and each target exactly one source, so a
    perfect model reaches 100 %. Raises SettingsError for a language without phrases, or for too many pairs.
    """
    languages = (source_language, target_language)
    random = Random(f"{seed} {source_language} {target_language}")
    phrases = [tuple(phrase[language] for language in languages) for phrase in read_phrases(languages)]
    slots = [sorted({match[1] for match in SLOT.finditer(source)}) for source, _ in phrases]
    wanted = pairs + 2 * held_out
    corpus: list[tuple[str, str]] = []
    seen: tuple[set[str], set[str]] = (set(), set())
    for _ in range(20 * wanted):
        if len(corpus) == wanted:
            break
        index = random.randrange(len(phrases))
        values = draw(slots[index], random)
        source, target = (fill(phrases[index][side], values, languages[side]) for side in (0, 1))
        if source not in seen[0] and target not in seen[1]:
            seen[0].add(source)
            seen[1].add(target)
            corpus.append((source, target))
    if len(corpus) < wanted:
        raise SettingsError(f"--pairs {pairs}: the demo's phrases make at most {max(0, len(corpus) - 2 * held_out)}")
    # Shuffle: phrases with few fillings run out early and would all land in the held-out parts.
    random.shuffle(corpus)
    test, valid, train = corpus[:held_out], corpus[held_out : 2 * held_out], corpus[2 * held_out :]
    return DemoCorpus(
        source_language=source_language,
        target_language=target_language,
        train=tuple(train),
        valid=tuple(valid),
        test=tuple(test),
    )


SLOT = re.compile(r"\{(\w+)(:\w+)?\}")
VOWEL = re.compile(r"[aeiouàâäéèêëîïôöûü]", re.IGNORECASE)
SOUNDS_I = re.compile(r"h?[ií]", re.IGNORECASE)


def fill(phrase: str, values: dict[str, tuple[str | int | float, ...]], language: str) -> str:
    """Fill the slots of a phrase in one language, with elision in French and "e" for "y" before an i in Spanish.

    `{language:le}` is the value with the French article.
    """
    text = ""
    end = 0
    for match in SLOT.finditer(phrase):
        text += phrase[end : match.start()]
        end = match.end()
        value = format_value(values[match[1]], language)
        if match[2] == ":le":
            text += "le "
        if language == "fr" and VOWEL.match(value) and text.endswith((" de ", " que ", " le ", " la ")):
            text = f"{text[:-2]}'"
        if language == "es" and SOUNDS_I.match(value) and text.endswith(" y "):
            text = f"{text[:-2]}e "
        text += value
    return text + phrase[end:]


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((files("translume.experiments") / name).read_text(encoding="utf-8"))


_PHRASES: list[dict[str, str]] = _table("phrases.toml")["phrase"]


def phrase_languages() -> tuple[str, ...]:
    """Return the codes of the languages that have phrases."""
    return tuple(_PHRASES[0])


def read_phrases(languages: Iterable[str]) -> list[dict[str, str]]:
    """Return all phrases; raise SettingsError for a language without phrases."""
    known = phrase_languages()
    for language in languages:
        if language not in known:
            raise SettingsError(f"--languages: the demo has no phrases in '{language}'{nearest(language, known)}")
    return _PHRASES


Value = tuple[str | int | float, ...]
"""A drawn value, independent of the language: its kind, then its parts."""

_TABLES = _table("demo.toml")
"""What the slots are filled with, and the settings of the demo."""
WOMEN: dict[str, str]
MEN: dict[str, str]
WOMEN, MEN = _TABLES["women"], _TABLES["men"]
LANGUAGES, COUNTRIES, PRICED, NAMED, WHOLE = (
    tuple(_TABLES[name].split()) for name in ("languages", "countries", "priced", "named", "whole")
)
CITIES = tuple(f"{region}/{city}" for region, cities in _TABLES["cities"].items() for city in cities.split())


def _a_date(random: Random) -> Value:
    # Not the first of a month, which French writes differently ("1er").
    return ("date", random.randrange(1950, 2036), random.randrange(1, 13), random.randrange(2, 29))


def _a_price(random: Random) -> Value:
    currency = random.choice(PRICED)
    cents = random.randrange(200, 200_000)
    return ("price", currency, cents if currency in WHOLE else cents / 100)


def _a_distance(random: Random) -> Value:
    return ("unit", "length-kilometer", random.choice((random.randrange(2, 2000), random.randrange(20, 400) / 10)))


def _a_weight(random: Random) -> Value:
    if random.random() < 0.5:
        return ("unit", "mass-gram", random.randrange(50, 1000, 10))
    return ("unit", "mass-kilogram", random.choice((random.randrange(2, 60), random.randrange(20, 99) / 10)))


def _one_of(values: Iterable[str | int], *kind: str) -> Callable[[Random], Value]:
    choices = tuple(values)
    return lambda random: (*kind, random.choice(choices))


DRAWS: dict[str, Callable[[Random], Value]] = {
    "date": _a_date,
    "fulldate": lambda random: ("fulldate", *_a_date(random)[1:]),
    "time": lambda random: ("time", random.randrange(6, 23), random.randrange(60)),
    "weekday": lambda random: ("weekday", random.randrange(7)),
    "month": lambda random: ("month", random.randrange(1, 13)),
    "year": lambda random: ("year", random.randrange(1950, 2025)),
    "number": lambda random: ("number", random.randrange(1000, 100_000)),
    "count": lambda random: ("count", random.randrange(2, 100)),
    "age": lambda random: ("count", random.randrange(18, 100)),
    "few": lambda random: ("count", random.randrange(2, 16)),
    "percent": lambda random: ("percent", random.randrange(2, 100)),
    "price": _a_price,
    "amount": lambda random: ("amount", random.choice(NAMED), random.randrange(20, 10_000)),
    "currency": _one_of(NAMED, "currency"),
    "city": _one_of(CITIES, "city"),
    "country": _one_of(COUNTRIES, "country"),
    "language": _one_of(LANGUAGES, "language"),
    "woman": _one_of(WOMEN, "name"),
    "man": _one_of(MEN, "name"),
    "name": _one_of((*WOMEN, *MEN), "name"),
    "distance": _a_distance,
    "weight": _a_weight,
    **{slot: _one_of(range(least, end), "unit", unit) for slot, (unit, least, end) in _TABLES["quantities"].items()},
}
"""The function that draws each slot. `{city2}` is a second draw of `{city}`, different from the first; for ordered
values it is later or larger (`count2` is smaller)."""


def draw(slots: Iterable[str], random: Random) -> dict[str, Value]:
    """Draw a value for each slot of a phrase."""
    values: dict[str, Value] = {}
    for slot in sorted(slots):
        if not slot.endswith("2"):
            values[slot] = DRAWS[slot](random)
            continue
        first = slot[:-1]
        pair = [values[first], values[first]]
        while pair[0] == pair[1]:
            pair[1] = DRAWS[first](random)
        if first in ("date", "time", "year", "count"):
            pair.sort(reverse=first == "count")
        values[first], values[slot] = pair
    return values


def locale_of(language: str) -> Locale:
    """Return the CLDR locale of a language code; raise SettingsError for an unknown one."""
    try:
        return Locale.parse(language)
    except (UnknownLocaleError, ValueError):
        raise SettingsError(f"{language}: unknown to CLDR{nearest(language, LANGUAGES)}") from None


@lru_cache(maxsize=200_000)
def format_value(value: Value, language: str) -> str:
    """Format a value in a language, with plain spaces only."""
    kind, *parts = value
    return re.sub(r"\s+", " ", FORMATS[str(kind)](locale_of(language), *parts)).strip()


def _full_date(locale: Locale, year: int, month: int, day: int) -> str:
    text = format_date(datetime.date(year, month, day), "full", locale)
    return text.replace(", ", ", der ", 1) if locale.language == "de" else text


def _with_unit(number: float, unit: str, locale: Locale) -> str:
    text = format_unit(number, unit, "long", locale=locale)
    # Babel writes the unit's identifier if CLDR has no long form; its short form is a word then.
    return format_unit(number, unit, "short", locale=locale) if unit in text else text


FORMATS: dict[str, Callable[..., str]] = {
    "date": lambda locale, *parts: format_date(datetime.date(*parts), "long", locale),
    "fulldate": _full_date,
    "time": lambda locale, *parts: format_time(datetime.time(*parts), "short", locale=locale),
    "weekday": lambda locale, day: str(locale.days["format"]["wide"][day]),
    "month": lambda locale, month: str(locale.months["format"]["wide"][month]),
    "year": lambda locale, year: str(year),
    "count": lambda locale, number: str(number),
    "number": lambda locale, number: format_decimal(number, locale=locale),
    "percent": lambda locale, number: format_percent(number / 100, locale=locale),
    "unit": lambda locale, unit, number: _with_unit(number, unit, locale),
    "price": lambda locale, currency, number: format_currency(number, currency, locale=locale),
    "amount": lambda locale, currency, number: format_currency(
        number, currency, "#,##0", locale=locale, currency_digits=False, format_type="name"
    ),
    "currency": lambda locale, currency: get_currency_name(currency, 2, locale),
    "city": lambda locale, zone: get_timezone_location(zone, locale, return_city=True),
    "country": lambda locale, code: str(locale.territories[code]),
    "language": lambda locale, code: str(locale.languages[code]),
    "name": lambda locale, name: {**WOMEN, **MEN}[name] if locale.language == "zh" else name,
}
"""What writes a value of each kind in a locale, from its parts."""


def demo_config(source_language: str, target_language: str, *, updates: int = UPDATES) -> Config:
    """Return the settings for a corpus in the same folder as the settings file."""
    tables = deepcopy(_TABLES["settings"])
    tables["data"] = {"source_language": source_language, "target_language": target_language}
    for part in PARTS[:2]:
        tables["data"] |= {f"{part}_source": f"{part}.{source_language}", f"{part}_target": f"{part}.{target_language}"}
    quarter = max(1, updates // 4)
    tables["training"] |= {
        "updates": updates,
        "warmup_updates": min(200, max(1, updates // 5)),
        "validate_every": quarter,
        "save_every": quarter,
    }
    tables["evaluation"]["tokenize"] = "zh" if target_language in UNSPACED else "13a"
    return Config.build(tables, place="demo")


def write_recipe(folder: Path, config: Config) -> Path:
    """Write the settings to `demo.toml` in `folder`, unless it holds them already; return its path."""
    _write(folder, {NAME: config.to_toml()})
    return folder / NAME
