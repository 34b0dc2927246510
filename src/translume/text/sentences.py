"""Split texts into sentences: by sentencex if it is installed (with the server), else by rules for full stops."""

import re
from functools import cache
from typing import Any, Final

LONGEST = 20_000
"""Longest line, in characters, that sentencex splits; longer ones are split by our own rules."""
MAX_QUOTES = 6_000_000
"""Largest product of a line's opening quotes and characters for sentencex, whose time grows with it (5 ms here)."""
_OPENING = re.compile("[«‹“„‘「『]")
_LINE = re.compile(r"\s*[^\r\n]+[\r\n\s]*|\s+")
_OTHER_SPACE = re.compile(r"[^\S ]")
ALIASES: Final = {"in": "id", "iw": "he", "no": "nb", "pb": "pt-br", "zt": "zh-hant"}
"""Other codes of languages: of LibreTranslate, and withdrawn ones."""


def iso_code(code: str) -> str:
    """Return the ISO 639-1 code in a code such as zh-Hans."""
    short = code.lower().replace("_", "-").partition("-")[0]
    return ALIASES.get(short, short).partition("-")[0]


def sentences_of(line: str, language: str = "") -> list[str]:
    """Split a line into sentences, each with the white space after it; concatenated they are the line.

    language: a code; English for an empty or unknown one.  A blank line is one sentence.
    By sentencex, which knows the abbreviations of many languages; if it is not installed, by `split_sentences`.
    """
    if _sentencex() is None or len(line) > LONGEST or len(_OPENING.findall(line)) * len(line) > MAX_QUOTES:
        found = [sentence + spacing for sentence, spacing in split_sentences(line)]
    else:
        found = _by_sentencex(line, language)
    merged: list[str] = []
    for sentence in found:
        if merged and not (sentence.strip() and merged[-1].strip()):
            merged[-1] += sentence
        else:
            merged.append(sentence)
    return merged if "".join(merged) == line and merged else [line]


def split_text(text: str, language: str = "") -> list[tuple[str, str]]:
    """Split a text into lines and these into sentences, each with the white space after it; joined they are the text.

    White space at the beginning of the text belongs to the first sentence.
    """
    found = []
    for line in _LINE.findall(text):
        for sentence in sentences_of(line, language):
            words = sentence.rstrip()
            found.append((words, sentence[len(words) :]))
    return found


@cache
def _sentencex() -> Any:
    try:
        import sentencex
    except ImportError:
        return None
    return sentencex


def _by_sentencex(line: str, language: str) -> list[str]:
    try:
        # White space other than a plain space can make sentencex panic, such as "\u2028X. " in version 1.0.32.
        found = _sentencex().segment(iso_code(language) or "en", _OTHER_SPACE.sub(" ", line))
    except BaseException as error:
        # A panic of the native library is not an Exception, and must not end the server.
        if type(error).__name__ != "PanicException":
            raise
        return [line]
    sentences, begin = [], 0
    for sentence in found:
        sentences.append(line[begin : begin + len(sentence)])
        begin += len(sentence)
    return sentences


_CLOSING = "\"'”’»›)\\]"
_FULL_WIDTH_CLOSING = "”’」』）】》"
_END = re.compile(
    # The look-behind begins each run of marks once, so that a megabyte of full stops takes linear time.
    rf"(?<![.!?…])(?P<mark>[.!?…]++)[{_CLOSING}]*+(?=\s)|[。！？｡]+[{_FULL_WIDTH_CLOSING}]*|(?<!\s)(?=\s*\n)"
)
_SPACE = re.compile(r"\s*")
_ABBREVIATION = re.compile(r"(?<!\w)(?:\w|\d+)\.\Z")
"""A single letter or a number before a full stop: "z. B.", "J. Smith", "3. Mai"."""


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Split a text into sentences, each with the white space after it; all of them joined are the text.

    A sentence ends after . ! ? … before white space, unless a lower-case letter follows, in a text that has others, or
    a full stop comes after a single letter or a number; after 。！？｡ anywhere; and at the end of a line.
    Closing quotes and brackets belong to it.
    """
    sentences = []
    start = 0
    cased = text != text.lower()
    for found in _END.finditer(text):
        end = found.end()
        spacing = _SPACE.match(text, end)
        after = spacing.end() if spacing else end
        if end <= start or after <= start or (found["mark"] and _goes_on(text, start, found, after, cased=cased)):
            continue
        sentences.append((text[start:end], text[end:after]))
        start = after
    if start < len(text):
        sentences.append((text[start:], ""))
    return sentences


def _goes_on(text: str, start: int, found: re.Match[str], after: int, *, cased: bool) -> bool:
    if "\n" in text[found.end() : after]:
        return False
    if cased and text[after : after + 1].islower():
        return True
    before = text[max(start, found.end("mark") - 12) : found.end("mark")]
    return found["mark"] == "." and _ABBREVIATION.search(before) is not None
