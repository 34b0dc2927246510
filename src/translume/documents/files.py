"""Files that can be translated: by their suffix, what reads and writes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from translume.documents.encoded import Encoded
from translume.documents.hypertext import Hypertext
from translume.documents.plain import PlainText
from translume.documents.segment import Segment
from translume.documents.subtitles import Subtitles
from translume.documents.word import WordFile


class Document(Protocol):
    """A file in segments."""

    @property
    def segments(self) -> Sequence[Segment]:
        """What is translated, in order."""

    def with_runs(self, runs: Sequence[Sequence[str]]) -> bytes:
        """The file with other runs, one for each of each segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlFile:
    """A page of HTML in the encoding that it came in."""

    encoded: Encoded
    page: Hypertext

    @classmethod
    def of(cls, data: bytes) -> "HtmlFile":
        """The page in a file."""
        encoded = Encoded.of_html(data)
        return cls(encoded=encoded, page=Hypertext.of(encoded.text))

    @property
    def segments(self) -> Sequence[Segment]:
        """As `Document` says."""
        return self.page.segments

    def with_runs(self, runs: Sequence[Sequence[str]]) -> bytes:
        """As `Document` says; letters that the encoding has not are written as references."""
        return self.encoded.encode(self.page.with_runs(runs), "xmlcharrefreplace")


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file.  read: DocumentError for what is none."""

    read: Callable[[bytes], Document]
    media_type: str


FORMATS: Final = {
    ".txt": Format(PlainText.of, "text/plain"),
    ".html": Format(HtmlFile.of, "text/html"),
    ".htm": Format(HtmlFile.of, "text/html"),
    ".srt": Format(Subtitles.of, "application/x-subrip"),
    ".vtt": Format(Subtitles.of, "text/vtt"),
    ".docx": Format(WordFile.of, "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
}
"""By suffix, in small letters."""
