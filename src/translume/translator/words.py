"""Find the words of texts in all scripts, including those without spaces between words."""

import itertools
import re
import unicodedata
from collections.abc import Iterable
from typing import Final

Span = tuple[int, int]

WITHOUT_SPACES: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
"""Letters and punctuation of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Han and Kana."""
_WORD: Final = r"\w\u0300-\u036f\u0900-\u109f\u1780-\u17ff"
"""Characters of words, and vowel signs, which are not letters."""
_PARTS: Final = re.compile(rf"(?:[{_WORD}]|(?<=[0-9])[.,:][0-9])+|[^\s{_WORD}]+")
"""Words with the separators inside their numbers, and punctuation."""


def word_spans(text: str, tokens: Iterable[Span]) -> list[Span]:
    """Return the characters [begin, end) of each word and of the punctuation between words.

    tokens: spans of the tokens of the text. Only text in scripts without spaces is split at their ends.
    """
    cuts = {place for span in tokens for place in span}
    found: list[Span] = []
    for part in _PARTS.finditer(text):
        inside = (place for place in range(part.start() + 1, part.end()) if place in cuts and _is_boundary(text, place))
        found += itertools.pairwise([part.start(), *inside, part.end()])
    return found


def _is_boundary(text: str, place: int) -> bool:
    """Return whether one word can end and another begin at a place between two letters."""
    around = text[place - 1 : place + 1]
    return bool(WITHOUT_SPACES.search(around)) and not unicodedata.category(text[place]).startswith("M")
