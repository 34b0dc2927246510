"""File formats that can be translated, and the plain ones among them: text and HTML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from translume.documents import FORMATS
from translume.documents.encoding import EncodedText, in_utf_8
from translume.documents.html import HtmlText
from translume.documents.segments import Segment, check_segments
from translume.errors import DocumentError, needed_by

_BREAKS: Final = re.compile(r"([\r\n]+)")


class Document(Protocol):
    """A file as segments."""

    @property
    def segments(self) -> Sequence[Segment]:
        """The texts to translate, in order."""

    @property
    def warnings(self) -> Sequence[str]:
        """What a user should know about the file."""

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
        """Return the file with other texts: a tuple of runs for each segment.

        language: of the texts, a code, which the file then names where its format can; empty to leave that of the file.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """A text file; each line is a segment.  pieces: unchanged text, or None for each segment, in order."""

    encoded: EncodedText
    pieces: tuple[str | None, ...]
    segments: tuple[Segment, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> "PlainText":
        """Read the lines of a file; DocumentError if it is not Unicode text or has too many lines."""
        encoded = EncodedText.from_bytes(data)
        check_segments(sum(1 for _ in _BREAKS.finditer(encoded.text)))
        parts = [(part, Segment(runs=(part,))) for part in _BREAKS.split(encoded.text)]
        return cls(
            encoded=encoded,
            pieces=tuple(None if segment.has_letters else part for part, segment in parts),
            segments=tuple(segment for _, segment in parts if segment.has_letters),
        )

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
        """As `Document.with_runs`."""
        texts = iter(runs)
        return self.encoded.encode("".join("".join(next(texts)) if piece is None else piece for piece in self.pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlFile:
    """A page of HTML with its encoding."""

    encoded: EncodedText
    page: HtmlText
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> "HtmlFile":
        """Read the page in a file."""
        encoded = EncodedText.from_html(data)
        return cls(encoded=encoded, page=HtmlText.from_string(encoded.text, attributes=True))

    @property
    def segments(self) -> Sequence[Segment]:
        """As `Document.segments`."""
        return self.page.segments

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
        """As `Document.with_runs`; characters that the encoding lacks become character references."""
        return self.encoded.encode(self.page.with_runs(runs, language), "xmlcharrefreplace")


def read_document(suffix: str, data: bytes, language: str = "", encoding: str = "") -> tuple[Document, list[str]]:
    """Return a file and what a user should know about it; DocumentError if it does not have the format.

    language: of its texts, a code.  encoding: of plain text; empty to detect it.
    """
    form, warnings = FORMATS[suffix], []
    if encoding and not form.encoded:
        raise DocumentError(f"{suffix} files name their encoding; found another one, {encoding!r}")
    if form.encoded:
        try:
            data, detected = in_utf_8(data, language, encoding)
        except LookupError:
            raise DocumentError(f"unknown encoding {encoding!r}, expected one such as cp1252 or gb18030") from None
        if detected and not encoding:
            warnings.append(f"it is not UTF-8; read as {detected}, written in UTF-8")
    with needed_by(f"{suffix} files"):
        document: Document = form.read(data)
    warnings += document.warnings
    if not document.segments and data.strip():
        warnings.append("found no text to translate")
    return document, warnings


def translated_file(suffix: str, document: Document, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
    """Return a file in another language, as `Document.with_runs`, after it has been read again.

    DocumentError if it could not be read, or if letters of a translation are not where the text was.
    """
    written, form = document.with_runs(runs, language), FORMATS[suffix]
    if form.written:
        return written
    try:
        again = form.read(written).segments
    except DocumentError as error:
        raise DocumentError(f"the translated file could not be read: {error}") from None
    if form.compared:
        letters = "".join(_letters(segment, segment.runs) for segment in again)
        place = 0
        for segment, own in zip(document.segments, runs, strict=True):
            wanted = _letters(segment, own)
            if not letters.startswith(wanted, place):
                raise DocumentError(
                    f"the translated file would not have the whole translation of {segment.text[:80]!r}"
                )
            place += len(wanted)
    return written


def _letters(segment: Segment, runs: Sequence[str]) -> str:
    """Return the letters of runs, without those of fields and of what may be the mark of a note."""
    own = (run for place, run in enumerate(runs) if place not in segment.kept and place not in segment.scripts)
    return "".join(filter(str.isalpha, "".join(own)))
