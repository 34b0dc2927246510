"""Texts of Android apps (strings.xml) as segments; all else stays as it is written."""

import re
from collections.abc import Iterator
from typing import Final

from translume.documents.marked_text import OBJECT, MarkedText, Syntax, TextBuilder, read_entity
from translume.documents.segments import NOT_XML, Mark
from translume.documents.xml_text import ENTITY, Element, finished, in_xml, parsed, read_content
from translume.errors import DocumentError

_ESCAPES: Final = {"n": "\n", "t": "\t"}
_REFERENCE: Final = re.compile(r"\s*[@?][\w.+:]*/[\w.]+\s*")


def _read(match: re.Match[str]) -> str:
    special = match.group()
    if special == '"':
        return OBJECT
    if special[0] == "\\":
        return chr(int(special[2:], 16)) if len(special) == 6 else _ESCAPES.get(special[1], special[1])
    return " " if special.isspace() else read_entity(match)


def _write(text: str) -> str:
    text = re.sub(r"""[\\'"]|^[@?]""", r"\\\g<0>", NOT_XML.sub("", text))
    return text.replace("\n", "\\n").replace("\t", "\\t")


_SPECIAL: Final = r'\\u[0-9A-Fa-f]{4}|\\\S|"|(?<![ \t])[ \t]*\r?\n\s*'
_TEXT: Final = Syntax(re.compile(rf"{_SPECIAL}|{ENTITY.pattern}"), _read, lambda text: in_xml(_write(text)))
_DATA: Final = Syntax(re.compile(_SPECIAL), _read, lambda text: _write(text).replace("]]>", "]] >"))


def read_android(data: bytes) -> MarkedText:
    """Read the texts of an Android app; DocumentError for other XML."""
    encoded, root = parsed(data)
    if root.name != "resources":
        raise DocumentError(
            f"found the root <{root.tag[:40]}>, expected <resources>: of XML, only Android's texts are read"
        )
    builder, end = TextBuilder(encoded, _TEXT), 0
    for string in _strings(root):
        text = encoded.text[string.inside : string.outside]
        if _REFERENCE.fullmatch(text):
            continue
        string.inside += len(text) - len(text.lstrip())
        string.outside = max(string.inside, string.outside - len(text) + len(text.rstrip()))
        builder.keep(encoded.text[end : string.inside])
        read_content(builder, string, {"g": Mark.OBJECT}, _DATA)
        end = string.outside
    return finished(builder, end)


def _strings(root: Element) -> Iterator[Element]:
    for element in root.children:
        if element.get("translatable") == "false":
            continue
        if element.name == "string":
            yield element
        elif element.name in ("string-array", "plurals"):
            yield from element.all("item")
