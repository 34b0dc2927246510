"""Java properties as segments: the values. Keys, comments and line breaks stay as they are written."""

import re
from typing import Final

from translume.documents.encoding import EncodedText
from translume.documents.json_text import ESCAPE, from_escape, in_ascii
from translume.documents.marked_text import OBJECT, MarkedText, Syntax, TextBuilder
from translume.errors import DocumentError

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_LINE: Final = re.compile(
    r"^[ \t\f]*+(?![#!\s])(?:[^\\\r\n:= \t\f]|\\(?:\r\n|.|\n))++(?:[ \t\f]*+[:=])?[ \t\f]*+"
    r"((?:\\\r?\n[ \t\f]*+|\\[ tf])*+)((?:[^\\\r\n]++|\\(?:\r\n|.|\n))*+)",
    re.MULTILINE,
)
_MESSAGE: Final = re.compile(r"\{\s*\d|''")


def read_properties(data: bytes) -> MarkedText:
    """Read Java properties, in UTF-8 or ISO-8859-1; a file in ASCII stays in ASCII."""
    try:
        encoded = EncodedText.from_bytes(data)
    except DocumentError:
        encoded = EncodedText(data.decode("iso8859-1"), "iso8859-1")
    narrow = encoded.text.isascii() and not encoded.mark

    def read(match: re.Match[str]) -> str:
        special = match.group()
        if special[0] == "'":
            return "'" if special == "''" else OBJECT
        if special[1] in "\r\n":
            return ""
        return from_escape(match) if special[1] == "u" and len(special) > 2 else _ESCAPES.get(special[1], special[1])

    def write(text: str) -> str:
        text = re.sub(r"\\", r"\\\\", text).replace("\n", "\\n").replace("\t", "\\t")
        if not narrow and encoded.encoding != "iso8859-1":
            return text
        return in_ascii(text) if narrow else "".join(each if each < "\u0100" else in_ascii(each) for each in text)

    escapes = rf"\\\r?\n[ \t\f]*|{ESCAPE}"
    plain = Syntax(re.compile(escapes), read, write)
    # In a pattern of MessageFormat, '' is an apostrophe, and '{' is not a placeholder.
    pattern = Syntax(re.compile(rf"''|'[^']*+(?:'|$)|{escapes}"), read, lambda text: write(text.replace("'", "''")))
    builder = TextBuilder(encoded, plain)
    end = 0
    for match in _LINE.finditer(encoded.text):
        builder.keep(encoded.text[end : match.start(2)])
        builder.text(match[2], pattern if _MESSAGE.search(match[2]) else plain)
        end = match.end(2)
    builder.keep(encoded.text[end:])
    return builder.file()
