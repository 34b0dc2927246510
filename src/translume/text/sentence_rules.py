"""What is known of a language to find the ends of its sentences; `sentence_rules.toml` has the tables."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

_TABLES: Final[dict[str, Any]] = tomllib.loads(
    (files("translume.text") / "sentence_rules.toml").read_text(encoding="utf-8")
)
_TITLES: Final = frozenset(_TABLES["titles"].split())
_ORDINALS: Final = ("", *_TABLES["ordinals"].split())


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceRules:
    """What is known of a language.

    words, numbered: abbreviations that do not end a sentence, always or before a number.  starts: words that seldom
    follow an abbreviation unless they begin a sentence.  says: matches what follows a quotation that its sentence goes
    on after.  ordinals: whether "3. Mai" is one sentence although a capital letter follows.  titles: abbreviations that
    never end a sentence.
    """

    words: frozenset[str]
    numbered: frozenset[str]
    starts: frozenset[str]
    says: re.Pattern[str]
    ordinals: bool
    titles: frozenset[str] = _TITLES


@cache
def rules_of(code: str) -> SentenceRules:
    """Return the rules of a language, by its ISO 639-1 code; for another one, what all languages have in common.

    Latin words in other scripts have the rules of English.
    """
    ordinals, code = code in _ORDINALS, _TABLES["like"].get(code, code)
    says = _TABLES["says"]
    known = code in _TABLES["words"] or code in says
    codes = [code] if code in _TABLES["starts"] else [code, "en"] if known else [*_TABLES["starts"]]
    words, numbered, starts = (
        frozenset(" ".join(_TABLES[name].get(each, "") for each in codes).split())
        for name in ("words", "numbered", "starts")
    )
    pattern = "|".join(says[each] for each in ([code] if known else ["zh", "ja", "ko"]) if each in says)
    return SentenceRules(
        words=words if known else _TITLES,
        numbered=numbered,
        starts=starts,
        says=re.compile(pattern or "(?!)"),
        ordinals=ordinals,
    )
