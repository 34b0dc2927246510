"""Normalise a text and cut it into segments; no token crosses the end of a segment.

The space before a word belongs to the word and marks its beginning. No character is reserved for this; `▁` is only used
for display. The first word of a text is marked as well, so that a word has the same tokens at the start and in the
middle of a text. Scripts written without spaces (Han, Kana, Thai, Lao, Khmer, Burmese) are not marked. Segments are
runs of letters, runs of punctuation and symbols, or single digits. A special token such as `</s>` mixes two of these,
so it cannot be a piece learned from text.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Final, Literal

from translume.config import TokenizerSettings

MAX_SEGMENT = 48
"""Maximum characters in a segment, so that a megabyte without a space stays cheap."""

UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # CJK radicals
    (0x3005, 0x3007),  # iteration mark, zero
    (0x3021, 0x302F),
    (0x3031, 0x30FF),  # Kana
    (0x31C0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # half-width Kana
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),
)
UNSPACED_CHARACTER = re.compile(f"[{''.join(f'{chr(low)}-{chr(high)}' for low, high in UNSPACED)}]")
_SURROGATE = re.compile("[\ud800-\udfff]")

_CLASSIFIED = 0x20000
"""Characters above are Han, private or unassigned, but for a few marks."""
CharacterClass = Literal["letter", "unspaced", "digit", "mark", "space", "other"]
_BY_CATEGORY: dict[str, CharacterClass] = {"L": "letter", "N": "digit", "M": "mark"}

WITHOUT_SPACES: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
"""Letters and punctuation of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Han and Kana."""


def character_class(character: str) -> CharacterClass:
    """Return the class that decides where segments end. Marks and joiners belong to the character before them."""
    if character == " ":
        return "space"
    if "\U00020000" <= character <= "\U0003ffff":
        return "unspaced"
    category = unicodedata.category(character)
    kind = "mark" if category == "Cf" else _BY_CATEGORY.get(category[0], "other")
    if (kind == "letter" and UNSPACED_CHARACTER.match(character)) or character == "\u3007":  # 〇 is the zero of Han
        return "unspaced"
    return kind


def has_letters(text: str) -> bool:
    """Return whether a text has letters."""
    return any(character.isalpha() for character in text)


def normaliser(settings: TokenizerSettings) -> Callable[[str], str]:
    """Return the function that normalises texts before learning and encoding; `decode` returns normalised text."""
    form: Literal["NFC", "NFD", "NFKC"] | None = {"nfc": "NFC", "nfd": "NFD", "nfkc": "NFKC", "none": None}[
        settings.normalization
    ]
    lowercase, collapse = settings.lowercase, settings.whitespace == "collapse"

    def normalise(text: str) -> str:
        if not isinstance(text, str):
            raise TypeError(f"found {type(text).__name__}, expected a string")
        if not text.isascii():
            text = _SURROGATE.sub("\ufffd", text)  # half a surrogate pair cannot be encoded
            if form:
                text = unicodedata.normalize(form, text)
                if lowercase:
                    text = unicodedata.normalize(form, text.lower())
        if lowercase:
            text = text.lower()
        return " ".join(text.split()) if collapse else text

    return normalise


def with_mark(text: str, kind: str) -> str:
    """Return the text with its first word marked, unless kind marks the ends; `without_mark` is the inverse."""
    if not text or kind in ("character", "byte", "split"):
        return text
    if kind != "word" and UNSPACED_CHARACTER.match(text):
        return text
    return " " + text


def without_mark(text: str, kind: str) -> str:
    """Return the text without the mark of its first word."""
    return text if kind in ("character", "byte") else text.removeprefix(" ")


class _ClassLetters(dict[int, str]):
    """For `str.translate`: the first letter of each character's class, and the space itself; found when first used."""

    def __missing__(self, code: int) -> str:
        kind = character_class(chr(code))
        letter = " " if kind == "space" else kind[0]
        if code < _CLASSIFIED:
            self[code] = letter
        return letter


_CLASS_LETTERS = _ClassLetters()


def segmenter(kind: str) -> Callable[[str], list[str]]:
    """Return the function that cuts a marked text into segments; joined they are the text."""
    if kind in ("character", "byte"):
        return list
    if kind == "word":
        return re.compile(segment_pattern(kind)).findall
    return _cut


def _cut(text: str) -> list[str]:
    """Cut by the classes' letters: a pattern of all characters would take 0.1 s to compile."""
    return [text[slice(*match.span())] for match in _SEGMENT_OF_LETTERS.finditer(text.translate(_CLASS_LETTERS))]


@cache
def segment_pattern(kind: str) -> str:
    """Return the regular expression that matches segments of a marked text. Not for characters and bytes."""
    if kind == "word":
        return " ?[^ ]+| "
    sets: dict[CharacterClass, list[int]] = {"unspaced": [], "letter": [], "digit": [], "mark": []}
    for code in (*range(_CLASSIFIED), *range(0xE0000, 0xE0200)):
        if (group := character_class(chr(code))) in sets:
            sets[group].append(code)
    letter, digit, mark = (ranges(sets[name]) for name in ("letter", "digit", "mark"))
    return _pattern(letter, ranges(sets["unspaced"]) + "\\U00020000-\\U0003ffff", digit, mark)


def _pattern(letter: str, unspaced: str, digit: str, mark: str) -> str:
    """Return the pattern of segments by the insides of character sets."""
    other = f"^ {letter}{unspaced}{digit}"
    return (
        f" ?[{letter}{mark}]{{1,{MAX_SEGMENT}}}"
        f"|[{unspaced}][{unspaced}{mark}]{{0,{MAX_SEGMENT - 1}}}"
        f"| ?[{other}{mark}][{other}]{{0,{MAX_SEGMENT - 1}}}"
        f"| ?[{digit}]"
        "| "
    )


_SEGMENT_OF_LETTERS = re.compile(_pattern("l", "u", "d", "m"))


def ranges(codes: list[int]) -> str:
    """Return ascending code points as the inside of a character set in a regular expression."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
