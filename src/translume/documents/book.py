"""Books (EPUB): each chapter is a page of XHTML; all else, the table of contents excepted, stays as it is."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from translume.documents.encoding import EncodedText
from translume.documents.html import HtmlText
from translume.documents.office import pack, unpack
from translume.documents.segments import Segment, check_markup, check_segments
from translume.errors import DocumentError

_NAME: Final = "a book (EPUB)"
_CONTAINER: Final = "META-INF/container.xml"
_PAGES: Final = re.compile(r"META-INF/container\.xml|(?!META-INF/).*\.(?:xhtml|html|htm|ncx)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """A book.  pages: its texts with their encodings, by the names of their parts."""

    archive: bytes
    pages: dict[str, tuple[EncodedText, HtmlText]]

    @classmethod
    def from_bytes(cls, data: bytes) -> "Book":
        """Read a book; DocumentError if it is invalid or too large when unpacked."""
        pages: dict[str, tuple[EncodedText, HtmlText]] = {}
        container = False
        markup = segments = 0
        for name, content in unpack(data, _NAME, _PAGES):
            if name == _CONTAINER:
                container = True
                continue
            try:
                encoded = EncodedText.from_bytes(content)
            except DocumentError as error:
                raise DocumentError(f"{name}: {error}; the book may be encrypted") from None
            markup += encoded.text.count("<") + encoded.text.count("=")
            check_markup(markup)
            pages[name] = encoded, HtmlText.from_string(encoded.text, xml=True)
            segments += len(pages[name][1].segments)
            check_segments(segments)
        if not container:
            raise DocumentError(f"it has no part {_CONTAINER}, expected {_NAME}")
        return cls(archive=data, pages=pages)

    @property
    def segments(self) -> Sequence[Segment]:
        """As `Document.segments`."""
        return [segment for _, page in self.pages.values() for segment in page.segments]

    def with_runs(self, runs: Sequence[Sequence[str]]) -> bytes:
        """As `Document.with_runs`."""
        given = iter(runs)
        written = {
            name: encoded.encode(page.with_runs([*itertools.islice(given, len(page.segments))]))
            for name, (encoded, page) in self.pages.items()
        }
        return pack(self.archive, written)
