"""XML as text: its elements, and the texts within them as segments.

lxml checks that a file is well-formed. Its elements are found in the text itself, so that everything but translations
stays as it is written.
"""

import html
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from lxml import etree

from translume.documents.encoding import EncodedText
from translume.documents.marked_text import MarkedText, Syntax, TextBuilder, read_entity
from translume.documents.segments import NOT_XML, Mark, check_markup
from translume.errors import DocumentError

_ATTRIBUTES: Final = r"""(?:[^"'>/]|/(?!>)|"[^"]*"|'[^']*')*+"""
_SUBSET: Final = re.compile(r"""(?:\s|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE(?:[^"'>\[]|"[^"]*"|'[^']*')*+\[""", re.DOTALL)
_MARKUP: Final = re.compile(
    r"<(?:!\[CDATA\[(?P<data>.*?)\]\]|!--.*?--|\?.*?\?|!DOCTYPE(?:[^\"'>]|\"[^\"]*\"|'[^']*')*+"
    rf"|(?P<slash>/?)(?P<name>[^\s/>!?]++)(?P<attributes>{_ATTRIBUTES})(?P<empty>/?))>",
    re.DOTALL,
)
_ATTRIBUTE: Final = re.compile(r"""([^\s=]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
ENTITY: Final = re.compile(r"&#?\w+;")


def in_xml(text: str) -> str:
    """Return a text as it is written in XML."""
    return html.escape(NOT_XML.sub("", text), quote=False)


XML: Final = Syntax(ENTITY, read_entity, in_xml)
CDATA: Final = Syntax(re.compile(r"(?!)"), read_entity, lambda text: NOT_XML.sub("", text).replace("]]>", "]] >"))


@dataclass(slots=True)
class Element:
    """An element.  tag: its name with a prefix; "![CDATA[" or empty for other markup.

    begin, inside, outside, end: places in the text: of its first tag, of its content, of its last tag.
    """

    tag: str
    attributes: str
    begin: int
    inside: int
    outside: int
    end: int
    children: "list[Element]" = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name without a prefix."""
        return self.tag.rpartition(":")[2]

    def get(self, name: str) -> str:
        """Return an attribute, by its name without a prefix; empty if it is missing."""
        attributes = _ATTRIBUTE.finditer(self.attributes)
        return next(
            (html.unescape(each[2] or each[3] or "") for each in attributes if each[1].rpartition(":")[2] == name), ""
        )

    def child(self, name: str) -> "Element | None":
        """Return the first child of a name."""
        return next((each for each in self.children if each.name == name), None)

    def all(self, name: str) -> "Iterator[Element]":
        """Yield the elements of a name within this one, in order."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.all(name)


def parsed(data: bytes) -> tuple[EncodedText, Element]:
    """Return the text of a file and its root; DocumentError if it is not XML or declares entities."""
    encoded = EncodedText.from_xml(data)
    text = encoded.text
    check_markup(text.count("<") + text.count("="))
    if _SUBSET.match(text):
        raise DocumentError("it declares a document type with entities or elements of its own, which is refused")
    parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
    try:
        etree.fromstring(text.encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError as error:
        raise DocumentError(f"it is not XML at line {error.lineno}, or it is damaged") from None
    stack = [Element("", "", 0, 0, 0, 0)]
    for match in _MARKUP.finditer(text):
        if match["slash"]:
            closed = stack.pop()
            closed.outside, closed.end = match.span()
            continue
        data_begin, data_end = match.span("data") if match["data"] is not None else (match.end(), match.end())
        tag = match["name"] or ("![CDATA[" if match["data"] is not None else "")
        element = Element(tag, match["attributes"] or "", match.start(), data_begin, data_end, match.end())
        stack[-1].children.append(element)
        if match["name"] and not match["empty"]:
            stack.append(element)
    return encoded, next(each for each in stack[0].children if each.name and not each.name.startswith("!"))


def read_content(builder: TextBuilder, element: Element, kinds: Mapping[str, Mark], data: Syntax = CDATA) -> None:
    """Read the content of an element into the open segment.  data: syntax of CDATA.

    kinds: of elements that are markup together with their content. The content of others is text.
    """
    text, place = builder.encoded.text, element.inside
    syntax = data if element.tag == "![CDATA[" else None
    for child in element.children:
        builder.text(text[place : child.begin], syntax)
        place = child.end
        fixed = child.inside == child.end or child.get("translate") == "no" or child.get("mtype") == "protected"
        kind = kinds.get(child.name, Mark.OBJECT if fixed else None)
        if kind:
            builder.mark(kind, text[child.begin : child.end])
        else:
            builder.mark(Mark.OPENING, text[child.begin : child.inside])
            read_content(builder, child, kinds, data)
            builder.mark(Mark.CLOSING, text[child.outside : child.end])
    builder.text(text[place : element.outside], syntax)


def finished(builder: TextBuilder, end: int, declare: Callable[[str, str], str] | None = None) -> MarkedText:
    """Return the file, whose text from `end` on stays. Characters that its encoding lacks become references."""
    builder.keep(builder.encoded.text[end:])
    return builder.file(partial(builder.encoded.encode, errors="xmlcharrefreplace"), declare=declare)
