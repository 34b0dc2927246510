"""Catalogues of gettext (PO) as segments: empty translations are filled; all else stays as it is written."""

import re
from typing import Final

from translume.documents.encoding import EncodedText
from translume.documents.marked_text import MarkedText, Syntax, TextBuilder
from translume.errors import DocumentError
from translume.text.sentences import iso_code

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_STRING: Final = r'"(?:[^"\\\n]++|\\.)*+"'
_FIELD: Final = re.compile(
    rf"^[ \t]*(msgctxt|msgid|msgid_plural|msgstr|msgstr\[(\d+)\])[ \t]*({_STRING}(?:\s*\n[ \t]*{_STRING})*+)",
    re.MULTILINE,
)
_KEPT: Final = re.compile(r"[ \t]*(?:#.*)?\r?")
_LANGUAGE: Final = re.compile(r'^"Language:[ \t]*([^"\\]*)\\n"', re.MULTILINE)
_CHARSET: Final = re.compile(rb"charset=([A-Za-z0-9._-]+)")


def _read(match: re.Match[str]) -> str:
    """Return what an escape means; nothing for the border of two strings."""
    return "" if match.group()[0] == '"' else _ESCAPES.get(match.group()[1], match.group()[1])


def _write(text: str) -> str:
    return re.sub(r'[\\"]', r"\\\g<0>", text).replace("\n", "\\n").replace("\t", "\\t")


_SYNTAX: Final = Syntax(re.compile(r'\\.|"\s*\n[ \t]*"'), _read, _write)


def read_po(data: bytes) -> MarkedText:
    """Read a gettext catalogue, whose empty msgstr are translated; DocumentError if it is not one."""
    encoded = EncodedText.declared(data, _CHARSET)
    text, builder = encoded.text, TextBuilder(encoded, _SYNTAX)
    ids: dict[str, str] = {}
    end = 0
    for match in [*_FIELD.finditer(text), None]:
        begin = match.start() if match else len(text)
        for number, line in enumerate(text[end:begin].split("\n")):
            if not _KEPT.fullmatch(line):
                place = text.count("\n", 0, end) + number + 1
                raise DocumentError(f"line {place} is not gettext (PO): expected a comment, msgid or msgstr")
        if match is None:
            break
        field, raw = match[1], match[3][1:-1]
        if field.startswith("msgid"):
            ids = {**(ids if field == "msgid_plural" else {}), field: raw}
        # Languages without plural forms have msgstr[0] only.
        singular = match[2] == "0" and re.match(r"\s*msgstr\[1\]", text[match.end() : match.end() + 100])
        source = ids.get("msgid" if singular else "msgid_plural", ids.get("msgid", ""))
        if field.startswith("msgstr") and not _SYNTAX.decoded(raw)[0] and ids.get("msgid", '"') not in ("", '"'):
            builder.keep(text[end : match.start(3) + 1])
            first, start = len(builder.segments), len(builder.pieces)
            builder.text(source)
            builder.copied(raw, first, start)
            builder.keep(text[match.end(3) - 1 : match.end()])
        else:
            builder.keep(text[end : match.end()])
        end = match.end()
    builder.keep(text[end:])
    return builder.file(lambda text: _encoded(encoded, text), declare=_in_language)


def _in_language(text: str, language: str) -> str:
    """Return a catalogue whose header names its language if it names another one or none; a variety of it stays."""
    match = _LANGUAGE.search(text)
    if match is None or iso_code(match[1]) == iso_code(language):
        return text
    return f"{text[: match.start(1)]}{language.replace('-', '_')}{text[match.end(1) :]}"


def _encoded(encoded: EncodedText, text: str) -> bytes:
    """Encode a catalogue, in UTF-8 if its own encoding lacks a character."""
    try:
        return encoded.encode(text)
    except UnicodeEncodeError:
        return re.sub(_CHARSET.pattern.decode(), "charset=UTF-8", text, count=1).encode()
