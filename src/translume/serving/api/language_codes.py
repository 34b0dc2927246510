"""Language codes: which of a server's languages a client means, and the names and codes that clients know."""

import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Final

from translume.text.sentences import ALIASES

NAMES: Final[dict[str, str]] = json.loads(files(__package__).joinpath("language_names.json").read_bytes())
"""English names of languages, by code in lower case."""
TRADITIONAL: Final = frozenset({"hant", "tw", "hk", "mo"})
"""Scripts and regions of Traditional Chinese; other Chinese is simplified."""
MAX_SUBTAGS: Final = 8
"""Parts of a code that are compared with known ones; a longer beginning is no code."""


def public(code: str) -> str:
    """Return a language code as clients write it, such as zh-Hans for zh, zh_CN and zt (BCP 47, section 2.1.1)."""
    first, *rest = _normal(code).split("-")
    return "-".join([first, *(_cased(part) for part in rest)])


def name_of(code: str) -> str:
    """Return a language's English name, or the code if the name is unknown."""
    normal = _normal(code)
    return NAMES.get(normal) or NAMES.get(normal.partition("-")[0]) or code


def find_language(code: str, known: Iterable[str]) -> str | None:
    """Return the known code that a client's code means; None if there is none.

    That is the same language in any spelling, else the longest beginning of the code (en for en-US; RFC 4647, section
    3.4), else, if the code names no region or script, the first known code of the language (pt-BR for pt).
    """
    codes = {_normal(each): each for each in reversed([*known])}
    parts = _normal(code).split("-")
    for count in range(min(len(parts), MAX_SUBTAGS), 0, -1):
        if (language := codes.get("-".join(parts[:count]))) is not None:
            return language
    if code.strip().lower() != parts[0]:
        return None
    return next((each for normal, each in reversed(codes.items()) if normal.partition("-")[0] == parts[0]), None)


def _normal(code: str) -> str:
    """Return a code in lower case and with hyphens, and one code for each script of Chinese."""
    first, *rest = code.strip().lower().replace("_", "-").split("-")
    first, *subtags = [*ALIASES.get(first, first).split("-"), *rest]
    return "-".join(["zh", "hant" if TRADITIONAL & {*subtags} else "hans"] if first == "zh" else [first, *subtags])


def _cased(part: str) -> str:
    """Return a subtag as it is usually written: scripts capitalised, regions in capitals."""
    return part.title() if len(part) == 4 else part.upper() if len(part) == 2 else part
