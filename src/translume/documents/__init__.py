"""Documents (office documents, books, HTML, subtitles, text, messages) as translatable segments, and back."""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    reader: module and function, imported when it is used, or the function itself, from the content to a `Document`.
    media_type: of translated files.
    written: suffix of translated files, if it is another one.  encoded: whether it is plain text in any encoding.
    compared: whether the letters of a translated file are compared with the translations. In other formats, some are
    read as markup, or not at all.
    """

    reader: str | Callable[[bytes], Any]
    media_type: str
    written: str = ""
    encoded: bool = False
    compared: bool = False

    def read(self, data: bytes) -> Any:
        """Return the `Document` in a file; DocumentError if it does not have the format."""
        reader = self.reader
        return (resolve_name(f"translume.documents.{reader}") if isinstance(reader, str) else reader)(data)


FORMATS: dict[str, Format] = {
    ".txt": Format("files:PlainText.from_bytes", "text/plain", encoded=True),
    ".html": Format("files:HtmlFile.from_bytes", "text/html", compared=True),
    ".htm": Format("files:HtmlFile.from_bytes", "text/html", compared=True),
    ".srt": Format("subtitles:Subtitles.from_bytes", "application/x-subrip", encoded=True),
    ".vtt": Format("subtitles:Subtitles.from_bytes", "text/vtt", encoded=True),
    ".docx": Format(
        "office:read_word", "application/vnd.openxmlformats-officedocument.wordprocessingml.document", compared=True
    ),
    ".pptx": Format(
        "office:read_presentation",
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        compared=True,
    ),
    ".odt": Format("open_document:read_open_document", "application/vnd.oasis.opendocument.text", compared=True),
    ".epub": Format("book:Book.from_bytes", "application/epub+zip", compared=True),
    ".pdf": Format("pdf:PdfText.from_bytes", "text/plain", written=".txt"),
    ".odp": Format(
        "open_document:read_open_presentation", "application/vnd.oasis.opendocument.presentation", compared=True
    ),
    ".xlsx": Format("workbook:read_workbook", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ".md": Format("markdown:read_markdown", "text/markdown", encoded=True),
    ".po": Format("gettext:read_po", "text/x-gettext-translation"),
    ".json": Format("json_text:read_json", "application/json"),
    ".xliff": Format("xliff:read_xliff", "application/xliff+xml"),
    ".xlf": Format("xliff:read_xliff", "application/xliff+xml"),
    ".properties": Format("properties:read_properties", "text/x-java-properties"),
    ".xml": Format("android:read_android", "application/xml"),
    ".tmx": Format("translation_memory:read_tmx", "application/x-tmx+xml"),
}
"""File formats by suffix, in lower case. Reading them needs other packages, which are imported then."""
ZIPPED = frozenset({".docx", ".pptx", ".odt", ".epub", ".odp", ".xlsx"})
"""The suffixes of formats that are archives."""
