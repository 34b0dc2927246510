"""Word documents (docx) and presentations (pptx): each paragraph is a segment, split at tabs and line breaks."""

import re
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Final

from lxml import etree

from translume.documents.segments import Mark, Segment, with_style_marks
from translume.documents.zipped_xml import Layout, Place, Segments, ZippedXml

_WORD: Final = (
    "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}",
    "{http://purl.oclc.org/ooxml/wordprocessingml/main}",
)
_DRAWING: Final = (
    "{http://schemas.openxmlformats.org/drawingml/2006/main}",
    "{http://purl.oclc.org/ooxml/drawingml/main}",
)
_BREAKS: Final = frozenset({"br", "cr", "tab", "ptab"})
_UNSEEN: Final = frozenset({"lang", "altLang", "noProof", "dirty", "err", "smtClean", "rPrChange"})
"""Properties of runs that do not change how the text looks."""


def _segments(tree: "etree._ElementTree", spaces: Sequence[str]) -> Segments:
    """Yield the segments of a part with the places of their texts.  spaces: namespaces."""
    for space in spaces:
        for paragraph in tree.iter(f"{space}p"):
            texts: list[etree._Element] = []
            for element in _inside(paragraph, space):
                if element.tag == f"{space}t":
                    texts.append(element)
                elif texts:
                    yield from _segment(texts)
                    texts = []
            if texts:
                yield from _segment(texts)


def _inside(paragraph: "etree._Element", space: str) -> Iterator["etree._Element"]:
    """Yield the texts and breaks of a paragraph, without those of nested paragraphs, such as text boxes."""
    waiting = list(reversed(paragraph))
    while waiting:
        element = waiting.pop()
        name = element.tag.removeprefix(space) if isinstance(element.tag, str) else ""
        if name == "noBreakHyphen":  # a character of the text
            element.tag, element.text, name = f"{space}t", "\u2011", "t"
        if name == "t" or (name in _BREAKS and element.getparent().tag in (f"{space}r", f"{space}p")):
            yield element
        elif name not in ("p", "fld"):
            waiting.extend(reversed(element))


def _segment(texts: Sequence["etree._Element"]) -> Segments:
    runs = tuple(element.text or "" for element in texts)
    changes = (Mark.STYLE_CHANGE,) * (len(runs) - 1)
    segment = Segment(runs=runs, marks=with_style_marks(runs, changes, [_style(each) for each in texts]))
    if segment.has_letters:
        yield tuple(_place(element) for element in texts), segment


def _style(text: "etree._Element") -> Hashable:
    """Return the style of a text and the link around its run; equal for equal styles."""
    run = text.getparent()
    properties = next((each for each in run if _name(each) == "rPr"), None)
    around = run.getparent()
    return (
        tuple(sorted(around.attrib.items())) if _name(around) == "hyperlink" else (),
        *(() if properties is None else _look(properties)),
    )


def _look(properties: "etree._Element") -> Iterator[Hashable]:
    """Yield the properties of a run, without those that do not show, such as its language."""
    yield from ((name, value) for name, value in properties.attrib.items() if name not in _UNSEEN)
    for element in properties:
        if _name(element) not in _UNSEEN:
            yield tuple((each.tag, *sorted(each.attrib.items())) for each in element.iter())


def _name(element: "etree._Element") -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _place(element: "etree._Element") -> Place:
    return element, "text"


WORD: Final = Layout(
    name="a Word document (docx)",
    main="word/document",
    with_text=re.compile(r"word/(?:document|header|footer|footnotes|endnotes|comments)\d*\.xml"),
    segments=partial(_segments, spaces=_WORD),
    preserves=True,
)
PRESENTATION: Final = Layout(
    name="a presentation (pptx)",
    main="ppt/presentation",
    with_text=re.compile(r"ppt/(?:presentation|(?:slides/slide|notesSlides/notesSlide|diagrams/data)\d+)\.xml"),
    segments=partial(_segments, spaces=_DRAWING),
)


def read_word(data: bytes) -> ZippedXml:
    """Read a Word document; DocumentError if it is invalid or too large when unpacked."""
    return ZippedXml.of(data, WORD)


def read_presentation(data: bytes) -> ZippedXml:
    """Read a presentation; DocumentError as for `read_word`."""
    return ZippedXml.of(data, PRESENTATION)
