"""The text of PDF files. Their layout cannot be kept: the translation is plain text, one paragraph a line."""

import io
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pypdf
from pypdf.errors import DependencyError, DeprecationError, PyPdfError

from translume.documents.segments import Segment, check_segments
from translume.errors import DocumentError

MAX_PAGES: Final = 5000
_FULL: Final = 0.7
"""Share of a page's longest line from which a line is full: the paragraph goes on in the next one."""
_ITEM: Final = re.compile(r"\s*(?:[•‣◦▪–—*-]|\d{1,3}[.)])\s")
_BROKEN: Final = (
    PyPdfError, DependencyError, DeprecationError, RuntimeError, ValueError, KeyError, TypeError, AttributeError,
    IndexError, ArithmeticError, OSError,
)  # fmt: skip
"""Errors that pypdf raises for invalid files."""

logging.getLogger("pypdf").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class PdfText:
    """The paragraphs of a PDF file.  pages: index of the page of each segment."""

    segments: tuple[Segment, ...]
    pages: tuple[int, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> "PdfText":
        """Read the text of a file; DocumentError if it is invalid, has a password, or has no text."""
        segments: list[tuple[int, Segment]] = []
        try:
            reader = pypdf.PdfReader(io.BytesIO(data))
            if reader.is_encrypted and not reader.decrypt(""):
                raise DocumentError("it has a password")
            if len(reader.pages) > MAX_PAGES:
                raise DocumentError(f"found {len(reader.pages):,} pages, expected at most {MAX_PAGES:,}")
            for number, page in enumerate(reader.pages):
                segments += ((number, Segment(runs=(text,))) for text in paragraphs(page.extract_text()))
                check_segments(len(segments))
        except _BROKEN:
            raise DocumentError("it is not a PDF file, or it is damaged") from None
        if not any(segment.has_letters for _, segment in segments):
            raise DocumentError("it has no text; a scanned page must be recognised (OCR) first")
        return cls(tuple(segment for _, segment in segments), tuple(number for number, _ in segments))

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
        """Return the paragraphs as UTF-8 text, one a line, with a blank line between pages."""
        written: list[str] = []
        for place, run in enumerate(runs):
            if place and self.pages[place] != self.pages[place - 1]:
                written.append("\n")
            written.append("".join(run) + "\n")
        return "".join(written).encode()


def paragraphs(page: str) -> Iterator[str]:
    """Yield the paragraphs of a page: lines are joined until a blank or short line, or the next item of a list."""
    lines = [line.strip() for line in page.splitlines()]
    full = _FULL * max(map(len, lines), default=0)
    text = ""
    for number, line in enumerate(lines):
        if not line:
            continue
        ended = not number or len(lines[number - 1]) < full or _ITEM.match(line)
        if text and ended:
            yield text
            text = ""
        hyphenated = text.endswith("-") and line[:1].islower()
        text = text[:-1] + line if hyphenated else f"{text} {line}".strip()
    if text:
        yield text
