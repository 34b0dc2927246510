"""JSON as segments: the strings of values. Keys, numbers, order, indentation and escapes stay as they are written."""

import json
import re
from typing import Final

from translume.documents.encoding import EncodedText
from translume.documents.marked_text import MarkedText, Syntax, TextBuilder
from translume.errors import DocumentError

ESCAPE: Final = r"\\(?:u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[^\r\n])"
"""Matches an escape of JSON or Java."""
_STRING: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"(\s*+:)?')
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")


def in_ascii(text: str) -> str:
    """Return text with escapes for other characters than those of ASCII."""
    return _NOT_ASCII.sub(lambda match: json.dumps(match.group())[1:-1], text)


def from_escape(match: re.Match[str]) -> str:
    """Return what an escape of JSON means."""
    return str(json.loads(f'"{match.group()}"'))


def read_json(data: bytes) -> MarkedText:
    """Read JSON, whose strings are translated, but not its keys; DocumentError if it is not JSON."""
    encoded = EncodedText.from_bytes(data)
    try:
        json.loads(encoded.text, parse_int=str, parse_float=str)
    except RecursionError:
        raise DocumentError("its lists or objects are nested too deeply") from None
    except json.JSONDecodeError as error:
        raise DocumentError(f"it is not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    narrow = encoded.text.isascii() and "\\u" in encoded.text
    syntax = Syntax(re.compile(ESCAPE), from_escape, lambda text: json.dumps(text, ensure_ascii=narrow)[1:-1])
    builder = TextBuilder(encoded, syntax)
    end = 0
    for match in _STRING.finditer(encoded.text):
        if not match[2]:
            builder.keep(encoded.text[end : match.start(1)])
            builder.text(match[1])
            end = match.end(1)
    builder.keep(encoded.text[end:])
    return builder.file()
