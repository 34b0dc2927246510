"""Values for the slots of the demo's phrases: drawn once, then formatted in each language by CLDR's rules."""

import datetime
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from random import Random

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_time, get_timezone_location
from babel.numbers import format_currency, format_decimal, format_percent, get_currency_name
from babel.units import format_unit

from translume.errors import SettingsError, nearest

Value = tuple[str | int | float, ...]
"""A drawn value, independent of the language: its kind, then its parts."""

WOMEN = {
    "Anna": "安娜",
    "Clara": "克拉拉",
    "Emma": "艾玛",
    "Eva": "伊娃",
    "Julia": "朱莉娅",
    "Laura": "劳拉",
    "Lisa": "丽莎",
    "Maria": "玛丽亚",
    "Nina": "妮娜",
    "Sarah": "萨拉",
}
MEN = {
    "Daniel": "丹尼尔",
    "David": "大卫",
    "Felix": "费利克斯",
    "Hugo": "雨果",
    "Martin": "马丁",
    "Max": "马克斯",
    "Oscar": "奥斯卡",
    "Paul": "保罗",
    "Robert": "罗伯特",
    "Thomas": "托马斯",
}
_LANGUAGES = "en de fr es zh it pt ru ja ko ar tr pl nl sv no da fi el hu cs ro bg hr sk sl uk hi th vi ga is et lv lt"
LANGUAGES = tuple(_LANGUAGES.split())
_COUNTRIES = (
    "DE FR IT ES CN PL SE NO FI AT BE GR HU IE IS AU AR CO EG DZ ET TZ KR TH MY ID BG RO HR SI RS AL EE LV LT "
    "AM NZ JO BO NA ZM ZA RU SY LY"
)
COUNTRIES = tuple(_COUNTRIES.split())
CITIES = tuple(
    f"{region}/{city}"
    for region, cities in {
        "Europe": "London Berlin Paris Madrid Rome Vienna Athens Stockholm Oslo Helsinki Copenhagen Dublin Lisbon "
        "Warsaw Prague Budapest Zurich Brussels Amsterdam Istanbul Moscow Belgrade Bucharest Riga Tallinn Vilnius",
        "Asia": "Tokyo Shanghai Singapore Seoul Bangkok Jakarta Manila Dubai Taipei Baghdad Beirut Damascus Tashkent",
        "America": "New_York Chicago Los_Angeles Toronto Vancouver Lima Bogota Caracas Montevideo Denver",
        "Africa": "Nairobi Algiers Casablanca",
        "Australia": "Sydney Melbourne Perth",
    }.items()
    for city in cities.split()
)
PRICED = ("USD", "EUR", "GBP", "JPY", "CNY", "CHF", "KRW", "INR")
NAMED = ("USD", "EUR", "GBP", "JPY", "CHF", "SEK", "CAD", "AUD", "PLN", "CZK", "MXN")
WHOLE = ("JPY", "KRW")
"""Currencies without fractions."""
QUANTITIES: dict[str, tuple[str, range]] = {
    "journey": ("length-kilometer", range(100, 9000)),
    "height": ("length-meter", range(5, 900)),
    "volume": ("volume-liter", range(2, 95)),
    "temperature": ("temperature-celsius", range(2, 40)),
    "heat": ("temperature-celsius", range(40, 100)),
    "speed": ("speed-kilometer-per-hour", range(20, 150)),
    "area": ("area-square-meter", range(20, 240)),
    "minutes": ("duration-minute", range(2, 60)),
    "hours": ("duration-hour", range(2, 15)),
    "days": ("duration-day", range(2, 31)),
    "weeks": ("duration-week", range(2, 30)),
    "years": ("duration-year", range(2, 41)),
}
"""Slots of a whole number with a CLDR unit; never 1, to avoid singular forms."""


def _a_date(random: Random) -> Value:
    # Not the first of a month, which French writes differently ("1er").
    return ("date", random.randrange(1950, 2036), random.randrange(1, 13), random.randrange(2, 29))


def _a_time(random: Random) -> Value:
    return ("time", random.randrange(6, 23), random.randrange(60))


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


def _quantity(slot: str) -> Callable[[Random], Value]:
    unit, numbers = QUANTITIES[slot]
    return lambda random: ("unit", unit, random.choice(numbers))


def _one_of(kind: str, names: Iterable[str]) -> Callable[[Random], Value]:
    choices = tuple(names)
    return lambda random: (kind, random.choice(choices))


DRAWS: dict[str, Callable[[Random], Value]] = {
    "date": _a_date,
    "fulldate": lambda random: ("fulldate", *_a_date(random)[1:]),
    "time": _a_time,
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
    "currency": _one_of("currency", NAMED),
    "city": _one_of("city", CITIES),
    "country": _one_of("country", COUNTRIES),
    "language": _one_of("language", LANGUAGES),
    "woman": _one_of("name", WOMEN),
    "man": _one_of("name", MEN),
    "name": _one_of("name", (*WOMEN, *MEN)),
    "distance": _a_distance,
    "weight": _a_weight,
    **{slot: _quantity(slot) for slot in QUANTITIES},
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
    return re.sub(r"\s+", " ", _format(value, locale_of(language))).strip()


def _format(value: Value, locale: Locale) -> str:
    kind, *parts = value
    match kind, *parts:
        case ("date" | "fulldate", int(year), int(month), int(day)):
            text = format_date(datetime.date(year, month, day), "full" if kind == "fulldate" else "long", locale)
            return text.replace(", ", ", der ", 1) if kind == "fulldate" and locale.language == "de" else text
        case ("time", int(hour), int(minute)):
            return format_time(datetime.time(hour, minute), "short", locale=locale)
        case ("weekday", int(day)):
            return str(locale.days["format"]["wide"][day])
        case ("month", int(month)):
            return str(locale.months["format"]["wide"][month])
        case ("year" | "count", int(number)):
            return str(number)
        case ("number", int(number)):
            return format_decimal(number, locale=locale)
        case ("percent", int(number)):
            return format_percent(number / 100, locale=locale)
        case ("unit", str(unit), (int() | float()) as number):
            return _with_unit(number, unit, locale)
        case _:
            return _named(str(kind), parts, locale)


def _named(kind: str, parts: list[str | int | float], locale: Locale) -> str:
    match kind, *parts:
        case ("price", str(currency), (int() | float()) as number):
            return format_currency(number, currency, locale=locale)
        case ("amount", str(currency), int(number)):
            return format_currency(number, currency, "#,##0", locale=locale, currency_digits=False, format_type="name")
        case ("currency", str(currency)):
            return get_currency_name(currency, 2, locale)
        case ("city", str(zone)):
            return get_timezone_location(zone, locale, return_city=True)
        case ("country", str(code)):
            return str(locale.territories[code])
        case ("language", str(code)):
            return str(locale.languages[code])
        case ("name", str(name)):
            return {**WOMEN, **MEN}[name] if locale.language == "zh" else name
        case _:
            raise AssertionError(f"no such value: {kind} {parts}")


def _with_unit(number: float, unit: str, locale: Locale) -> str:
    text = format_unit(number, unit, "long", locale=locale)
    # Babel writes the unit's identifier if CLDR has no long form; its short form is a word then.
    return format_unit(number, unit, "short", locale=locale) if unit in text else text
