"""OpenDocument texts and presentations (odt, odp): each paragraph is a segment, split at tabs and line breaks.

Text is in mixed content (OpenDocument 1.3 part 3, section 6): a run is the text of an element, or that behind it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lxml import etree

from translume.documents.office import Layout, Place, Segments, Style, ZippedXml, numbered
from translume.documents.segments import Mark, Segment, is_right_to_left, with_style_marks

_TEXT: Final = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_STYLED_NAMES: Final = ("span", "a", "meta", "meta-field", "ruby", "ruby-base", "bookmark-ref", "reference-ref")
_STYLED: Final = frozenset({f"{_TEXT}{name}" for name in _STYLED_NAMES})
"""Elements whose text is part of the paragraph."""
_BREAKS: Final = frozenset({f"{_TEXT}tab", f"{_TEXT}line-break"})
_ATTACHED: Final = frozenset({"note", "ruby-text", "annotation", "annotation-end"})
"""Elements that stand behind a word."""
_INVISIBLE: Final = re.compile(r"(?:bookmark|reference-mark|change|soft-page-break|.*-mark).*")
_DELETED: Final = f"{_TEXT}tracked-changes"


def read_open_document(data: bytes) -> ZippedXml:
    """Read a text; DocumentError if it is invalid or too large when unpacked."""
    return ZippedXml.from_bytes(data, _LAYOUT)


def read_open_presentation(data: bytes) -> ZippedXml:
    """Read a presentation; DocumentError as for `read_open_document`."""
    return ZippedXml.from_bytes(data, replace(_LAYOUT, name="an OpenDocument presentation (odp)"))


def _segments(tree: "etree._ElementTree") -> Segments:
    style: Style = numbered(
        lambda around: (
            (around.tag, *sorted(around.attrib.items()), style(around.getparent()))
            if around is not None and around.tag in _STYLED
            else ()
        )
    )
    for paragraph in tree.iter(f"{_TEXT}p", f"{_TEXT}h"):
        if next(paragraph.iterancestors(_DELETED), None) is None:
            yield from _of_paragraph(paragraph, style)


def _of_paragraph(paragraph: "etree._Element", style: Style) -> Segments:
    """Yield the segments of a paragraph, without those of nested paragraphs, such as footnotes.

    style: of the elements around a text.
    """
    places: list[Place] = [(paragraph, "text")]
    marks: list[Mark] = []
    # Elements to enter, and elements that were left, whose tail comes next.
    waiting: list[tuple[etree._Element, bool]] = [(child, False) for child in reversed(paragraph)]
    while waiting:
        element, left = waiting.pop()
        if not left and element.tag in _STYLED:
            waiting.append((element, True))
            waiting.extend((child, False) for child in reversed(element))
            marks.append(Mark.STYLE_CHANGE)
            places.append((element, "text"))
            continue
        if element.tag in _BREAKS:
            yield from _segment(places, marks, style)
            places, marks = [(element, "tail")], []
            continue
        name = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else "change"
        if not left and _is_field(element) and len(element) == 0 and (element.text or "").strip():
            marks.append(Mark.STYLE_CHANGE)
            places.append((element, "text"))
            left = True
        unseen = left or _INVISIBLE.fullmatch(name)
        marks.append(Mark.STYLE_CHANGE if unseen else Mark.ATTACHED if name in _ATTACHED else Mark.OBJECT)
        places.append((element, "tail"))
    yield from _segment(places, marks, style)


def _segment(places: list[Place], marks: list[Mark], style: Style) -> Segments:
    styles = [style(element if where == "text" else element.getparent()) for element, where in places]
    runs = tuple(getattr(element, where) or "" for element, where in places)
    segment = Segment(
        runs=runs,
        marks=with_style_marks(runs, marks, styles),
        kept=frozenset(n for n, (each, where) in enumerate(places) if where == "text" and _is_field(each)),
    )
    if segment.has_letters:
        yield tuple(places), segment


def _is_field(element: "etree._Element") -> bool:
    """Return whether an element is a field, such as a date or a number: the model reads its text, which stays."""
    name = element.tag.removeprefix(_TEXT) if isinstance(element.tag, str) else ""
    others = (*_ATTACHED, "p", "h", "s", "note-citation")
    return element.tag == f"{_TEXT}{name}" and element.tag not in _STYLED and name not in others


def _in_language(tree: "etree._ElementTree", language: str, changed: Sequence["etree._Element"]) -> None:
    """Set the language and direction of the default styles and of all others that have one."""
    short, _, country = language.partition("-")
    style = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
    form = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}"
    kind = {"zh": "-asian", "ja": "-asian", "ko": "-asian"}.get(short, "-complex" if is_right_to_left(language) else "")
    names = [f"{style if kind else form}{name}{kind}" for name in ("language", "country")]
    for element in tree.iter(f"{style}text-properties"):
        if names[0] in element.attrib:
            element.set(names[0], short)
            element.set(names[1], country.upper() if len(country) == 2 else "none")
    if is_right_to_left(language):
        for element in tree.iter(f"{style}default-style"):
            properties = element.find(f"{style}paragraph-properties")
            if properties is not None and element.get(f"{style}family") == "paragraph":
                properties.set(f"{style}writing-mode", "rl-tb")


_LAYOUT: Final = Layout(
    name="an OpenDocument text (odt)",
    main="content",
    root="document-content",
    names=re.compile(r"(?:Object [^/]+/)?(?:content|styles)\.xml"),
    segments=_segments,
    in_language=_in_language,
)
