"""Workbooks (xlsx): texts of cells, comments, charts and drawings are segments; all other parts stay as they are.

A text that a formula compares with, or that names a column of a table, stays too: workbooks break without it.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lxml import etree

from translume.documents.encoding import EncodedText
from translume.documents.marked_text import MarkedText, Syntax, TextBuilder
from translume.documents.office import PRESENTATION, Layout, Segments, ZippedXml, unpack
from translume.documents.segments import Mark, Segment, with_style_marks

_NAME: Final = "a workbook (xlsx)"
_TEXT: Final = (
    r"xl/(?:workbook|sharedStrings|comments\d*|comments/\w+|threadedComments/\w+|charts/chart\d+|drawings/drawing\d+)"
    r"\.xml"
)
_SHEET: Final = re.compile(r"xl/(?:workbook|worksheets/\w+|tables/\w+)\.xml")
_FORMULA: Final = re.compile(r"<(?:\w+:)?(?:f|formula[12]?|definedName)\b[^>]*>([^<]*)</")
_LITERAL: Final = re.compile(r'"((?:[^"]|"")*+)"')
_COLUMN: Final = re.compile(r'<(?:\w+:)?tableColumn\b[^>]*?\sname="([^"]*)"')
_INLINE: Final = b"inlineStr"
_PLAIN: Final = Syntax(re.compile(r"(?!)"), lambda match: "", str)
_RUN, _END = "\x00", "\x01"


@dataclass(frozen=True, slots=True)
class Workbook:
    """A workbook.  texts: those of the archive's segments, with lines and placeholders apart."""

    archive: ZippedXml
    texts: MarkedText
    warnings: tuple[str, ...] = ()

    @property
    def segments(self) -> Sequence[Segment]:
        """As `Document.segments`."""
        return self.texts.segments

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
        """As `Document.with_runs`. Call it only once, as for `ZippedXml`."""
        written = self.texts.text_with_runs(runs).split(_END)[:-1]
        return self.archive.with_runs([each.split(_RUN) for each in written], language)


def read_workbook(data: bytes) -> Workbook:
    """Read a workbook; DocumentError if it is invalid or too large when unpacked."""
    kept: set[str] = set()
    parts = [_TEXT]
    for name, content in unpack(data, _NAME, _SHEET.fullmatch):
        text = content.decode("utf-8", "replace")
        for formula in _FORMULA.findall(text):
            kept.update(each.replace('""', '"') for each in _LITERAL.findall(html.unescape(formula)))
        kept.update(html.unescape(each).replace("_x000a_", "\n") for each in _COLUMN.findall(text))
        if _INLINE in content:
            parts.append(re.escape(name))
    # A list of choices is one literal: "Yes,No".
    kept |= {each.strip() for literal in kept for each in literal.split(",")}

    def segments(tree: "etree._ElementTree") -> Segments:
        for places, segment in _segments(tree):
            if "".join(segment.runs).strip() not in kept:
                yield places, segment

    layout = Layout(
        name=_NAME,
        main="xl/workbook",
        root="workbook",
        names=re.compile("|".join(parts)),
        segments=segments,
        in_language=PRESENTATION.in_language,
        preserves=True,
    )
    archive = ZippedXml.from_bytes(data, layout)
    builder = TextBuilder(EncodedText("", "utf-8"), _PLAIN)
    for segment in archive.segments:
        for number, run in enumerate(segment.runs):
            if number:
                builder.mark(segment.marks[number - 1], _RUN)
            builder.text(run)
        builder.keep(_END)
    return Workbook(archive, builder.file())


def _segments(tree: "etree._ElementTree") -> Segments:
    """Yield the texts of cells and comments, then those of charts and drawings."""
    for text in tree.iter("{*}si", "{*}is", "{*}text"):
        elements = [each for each in text.iter("{*}t") if not each.getparent().tag.endswith("}rPh")] or [text]
        runs = tuple(each.text or "" for each in elements)
        looks = [each.getparent().find("{*}rPr") for each in elements]
        styles = [b"" if look is None else etree.tostring(look) for look in looks]
        marks = with_style_marks(runs, (Mark.STYLE_CHANGE,) * (len(runs) - 1), styles)
        segment = Segment(runs=runs, marks=marks)
        if segment.has_letters:
            yield tuple((each, "text") for each in elements), segment
    yield from PRESENTATION.segments(tree)
