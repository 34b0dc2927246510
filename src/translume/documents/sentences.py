"""Sentences of a line, for models that were trained on one sentence at a time."""

import re
from typing import Final

import sentencex

from translume.translator.sentences import split_sentences

LONGEST = 20_000
"""Characters of a line that the library is asked about."""
MOST_QUOTES = 6_000_000
"""Opening quotes of a line times its characters: the library's time grows with that, from here on beyond 5 ms."""
_QUOTES = re.compile("[«‹“„‘「『]")
_OTHER_SPACE = re.compile(r"[^\S ]")
OTHER_CODES: Final = {"pb": "pt", "zt": "zh", "no": "nb"}
"""Codes on the wire that ISO 639-1 has not, or that lingua calls otherwise."""


def iso_code(code: str) -> str:
    """The two letters of ISO 639-1 in a code such as zh-Hans."""
    short = code.lower().replace("_", "-").partition("-")[0]
    return OTHER_CODES.get(short, short)


def sentences_of(line: str, language: str = "") -> list[str]:
    """The sentences of a line, each with the white space that follows it; joined they are the line.

    language: a code; empty, or one that nothing is known about, is taken for English.  A line of white space, and an
    empty one, is one sentence.
    """
    if len(line) > LONGEST or len(_QUOTES.findall(line)) * len(line) > MOST_QUOTES:
        found = [sentence + spacing for sentence, spacing in split_sentences(line)]
    else:
        found = _asked(line, language)
    merged: list[str] = []
    for sentence in found:
        if merged and not (sentence.strip() and merged[-1].strip()):
            merged[-1] += sentence
        else:
            merged.append(sentence)
    return merged if "".join(merged) == line and merged else [line]


def _asked(line: str, language: str) -> list[str]:
    try:
        # White space other than a plain space makes the library panic: "\u2028X. " did in version 1.0.32.
        found = sentencex.segment(iso_code(language) or "en", _OTHER_SPACE.sub(" ", line))
    except BaseException as error:
        # A panic of a native library is no Exception, and no text may end the server.
        if type(error).__name__ != "PanicException":
            raise
        return [line]
    sentences, begin = [], 0
    for sentence in found:
        sentences.append(line[begin : begin + len(sentence)])
        begin += len(sentence)
    return sentences
