"""The table of `translume init`, read from init.toml: sizes of models by amounts of data, and settings by features."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from translume.config import CleaningSettings, ModelSettings
from translume.experiments import Choice

MAX_POSITIONS, SPARE = 2048, 8
"""The largest `model.max_positions` proposed, and the positions that `max_tokens` leaves free for marks."""
FEW_PAIRS = 5000
"""Up to this many pairs, too few are held out to see whether a model still improves."""


@cache
def table() -> dict[str, Any]:
    """Return what init.toml has.  rows: by the names of `columns`."""
    content = tomllib.loads(Path(__file__).with_name("init.toml").read_text("utf-8"))
    return content | {"rows": [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]}


def rows_for(kinds: Iterable[str], amount: float) -> Iterator[dict[str, Any]]:
    """Yield the row of each kind of data, if it has one for this amount."""
    for kind in kinds:
        yield from [row for row in table()["rows"] if row["data"] == kind and amount <= row["up_to"]][:1]


def choose(kinds: Iterable[str], amount: float, facts: Mapping[str, object]) -> tuple[Choice, ...]:
    """Return the settings that the table has for some data, in the order in which they are printed.

    kinds: kinds of data that have rows; what the row of one leaves out is taken from the next.
    amount: of the data, in the unit of these rows.  facts: features of the data, by their names in the rules.
    """
    known: dict[str, Any] = {"average_last": 5, "ctc_weight": 0.3}
    for row in reversed([*rows_for(kinds, amount)]):
        known |= {name: value for name, value in {**row, **row["more"]}.items() if value != "-"}
    every = max(100, known.get("updates", 0) // 20)
    known = {"every": every, "save_every": every, **known, **facts}
    choices: dict[str, Choice] = {}
    for features, path, given, why in table()["rules"]:
        value = known.get(given[1:]) if isinstance(given, str) and given.startswith("=") else given
        value = tuple(value) if isinstance(value, list) else value
        met = all(bool(known.get(name.lstrip("!"))) != name.startswith("!") for name in features.split())
        if met and value is not None and path not in choices:
            choices[path] = Choice(path, value, why.format_map(known))
    return tuple(choices.values())


def limits(longest: int, most: int | None = None) -> dict[str, Any]:
    """Return facts about the positions for sources and targets of up to `longest` tokens: the next power of two.

    most: how many tokens to read of longer ones; None: all.
    """
    positions = min(MAX_POSITIONS, 1 << (min(longest, most or longest) + SPARE - 1).bit_length())
    proposed = positions if positions > ModelSettings().max_positions else None
    return {"long": longest > CleaningSettings().max_tokens, "limit": positions - SPARE, "max_positions": proposed}
