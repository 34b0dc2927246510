"""XLIFF 1.2 and 2 as segments: missing targets are translated from the sources; all else stays as it is written."""

import re
from collections.abc import Iterator
from typing import Final

from translume.documents.marked_text import MarkedText, TextBuilder
from translume.documents.segments import Mark
from translume.documents.xml_text import XML, Element, finished, parsed, read_content
from translume.errors import DocumentError
from translume.text.segmentation import has_letters
from translume.text.sentences import iso_code

_INLINE: Final = {
    **dict.fromkeys(("x", "ph", "it", "ut", "cp", "sm", "em"), Mark.OBJECT),
    **dict.fromkeys(("bx", "bpt", "sc"), Mark.OPENING),
    **dict.fromkeys(("ex", "ept", "ec"), Mark.CLOSING),
}
"""Inline elements of XLIFF and TMX that are markup together with their content. The content of others is text."""


def copy_content(
    builder: TextBuilder, end: int, source: Element, target: Element | None, after: Element, tags: str
) -> int:
    """Write a translated copy of an element's content. Return where the text goes on; `end` says where it stopped.

    target: the element that is replaced.  after, tags: if there is none, what is in front of a new one, and its tags.
    """
    text = builder.encoded.text
    begin, stop = (target.begin, target.end) if target else (after.end, after.end)
    builder.keep(text[end:begin])
    first, start = len(builder.segments), len(builder.pieces)
    if target:
        opening = text[target.begin : target.inside].removesuffix("/>").rstrip()
        opening, closing = opening if opening.endswith(">") else f"{opening}>", f"</{target.tag}>"
    else:
        line = text.rfind("\n", max(0, after.begin - 200), after.begin)
        line -= text[line - 1 : line] == "\r"
        indent = text[line : after.begin]
        opening, _, closing = tags.partition("|")
        opening = f"{indent if indent.isspace() else ''}{opening}"
    builder.keep(opening)
    read_content(builder, source, _INLINE)
    builder.keep(closing)
    builder.copied(text[begin:stop], first, start)
    return stop


def read_xliff(data: bytes) -> MarkedText:
    """Read XLIFF, whose targets are translated from the sources unless they have a text; DocumentError for others."""
    encoded, root = parsed(data)
    if root.name != "xliff" or not root.get("version").startswith(("1.", "2.")):
        raise DocumentError(f"found the root <{root.tag[:40]}>, expected <xliff> of version 1 or 2")
    builder, end = TextBuilder(encoded, XML), 0
    for unit in _units(root, True):
        source, target = unit.child("source"), unit.child("target")
        if source and not (target and _is_done(encoded.text, unit, source, target)):
            divided = unit.child("seg-source") or source
            tag = f"{source.tag.removesuffix('source')}target"
            end = copy_content(builder, end, divided, target, divided, f"<{tag}>|</{tag}>")
    return finished(builder, end, _in_language)


_DECLARED: Final = re.compile(r"<(?:\w+:)?(?:file|xliff)\b[^<>]*?(?P<source>source-language|srcLang)\s*=[^<>]*>")
_TARGETS: Final = {"source-language": "target-language", "srcLang": "trgLang"}


def _in_language(text: str, language: str) -> str:
    """Return a file that names the language of its targets; a variety of the language stays."""

    def named(tag: re.Match[str]) -> str:
        name = _TARGETS[tag["source"]]
        value = re.search(rf"""{name}\s*=\s*["']([^"']*)""", tag.group())
        if value is None:
            return tag.group().replace(tag["source"], f'{name}="{language}" {tag["source"]}', 1)
        same = iso_code(value[1]) == iso_code(language)
        return tag.group() if same else f"{tag.group()[: value.start(1)]}{language}{tag.group()[value.end(1) :]}"

    return _DECLARED.sub(named, text)


def _units(element: Element, translated: bool) -> Iterator[Element]:
    for child in element.children:
        own = {"yes": True, "no": False}.get(child.get("translate"), translated)
        if child.name not in ("trans-unit", "segment"):
            yield from _units(child, own)
        elif own and child.get("approved") != "yes":
            yield child


def _is_done(text: str, unit: Element, source: Element, target: Element) -> bool:
    """Return whether a target has a translation."""
    raw, state = text[target.inside : target.outside], target.get("state") or unit.get("state")
    copied = raw.strip() == text[source.inside : source.outside].strip() and state in ("", "initial")
    return has_letters(re.sub("<[^>]*>", "", raw)) and state not in ("new", "needs-translation") and not copied
