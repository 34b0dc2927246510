"""Books (EPUB): each chapter is a page of XHTML; all else, the table of contents excepted, stays as it is."""

import itertools
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from typing import Final
from urllib.parse import unquote

from lxml import etree

from translume.documents.encoding import EncodedText
from translume.documents.html import HtmlText, tokens
from translume.documents.office import pack, unpack
from translume.documents.segments import Segment, check_markup, check_segments, is_right_to_left
from translume.errors import DocumentError

_NAME: Final = "a book (EPUB)"
_CONTAINER: Final = "META-INF/container.xml"
_PAGES: Final = frozenset({"application/xhtml+xml", "application/x-dtbncx+xml", "text/html", "text/x-oeb1-document"})
"""Media types of chapters and tables of contents."""
_NAMES: Final = re.compile(r"(?!META-INF/).*\.(?:xhtml|html|htm|ncx)", re.IGNORECASE)
"""Names of pages in a book without a manifest."""
_LANGUAGE: Final = re.compile(r"(<dc:language[^<>]{0,200}>)[^<>]{0,100}(</dc:language>)")
_SPINE: Final = re.compile(r"<spine(?![^<>]*page-progression-direction)(?=[\s>])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """A book.  packages: its manifests.  pages: its texts; both with their encodings, by the names of their parts."""

    archive: bytes
    packages: dict[str, EncodedText]
    pages: dict[str, tuple[EncodedText, HtmlText]]
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Book":
        """Read a book; DocumentError if it is invalid or too large when unpacked. Pages are found by its manifest."""
        container = dict(unpack(data, _NAME, lambda name: name == _CONTAINER)).get(_CONTAINER)
        if container is None:
            raise DocumentError(f"it has no part {_CONTAINER}, expected {_NAME}")
        roots = set(_values(_decoded(_CONTAINER, container).text, "rootfile", "full-path"))
        packages = {name: _decoded(name, content) for name, content in unpack(data, _NAME, roots.__contains__)}
        listed = {
            posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(path)))
            for name, package in packages.items()
            for path in _values(package.text, "item", "href", {"media-type": _PAGES})
        }
        pages: dict[str, tuple[EncodedText, HtmlText]] = {}
        markup = segments = 0
        unlisted = not listed and not packages
        for name, content in unpack(data, _NAME, _NAMES.fullmatch if unlisted else listed.__contains__):
            encoded = _decoded(name, content)
            markup += encoded.text.count("<") + encoded.text.count("=")
            check_markup(markup)
            pages[name] = encoded, HtmlText.from_string(encoded.text, xml=True, attributes=True)
            segments += len(pages[name][1].segments)
            check_segments(segments)
        lost = sorted(listed.difference(pages))
        warnings = [f"the book lists {name}, which it does not have" for name in lost]
        if unlisted:
            warnings.append(f"{_CONTAINER} names no manifest that the book has; its pages were found by their names")
        return cls(archive=data, packages=packages, pages=pages, warnings=tuple(warnings))

    @property
    def segments(self) -> Sequence[Segment]:
        """As `Document.segments`."""
        return [segment for _, page in self.pages.values() for segment in page.segments]

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
        """As `Document.with_runs`. Raises DocumentError if a page would not be well-formed any more."""
        remaining = iter(runs)
        written: dict[str, bytes] = {}
        for name, (encoded, page) in self.pages.items():
            text = page.with_runs([*itertools.islice(remaining, len(page.segments))], language)
            written[name] = encoded.encode(text, "xmlcharrefreplace")
            reason = "" if text == encoded.text else _error(written[name])
            if reason and not _error(encoded.encode(encoded.text)):
                raise DocumentError(f"{name}: its translation is not well-formed: {reason}")
        for name, package in self.packages.items() if language else ():
            text = _LANGUAGE.sub(rf"\g<1>{language}\g<2>", package.text)
            if is_right_to_left(language):
                text = _SPINE.sub('<spine page-progression-direction="rtl"', text)
            written[name] = package.encode(text)
        return pack(self.archive, written)


def _decoded(name: str, content: bytes) -> EncodedText:
    try:
        return EncodedText.from_xml(content)
    except DocumentError as error:
        raise DocumentError(f"{name}: {error}; the book may be encrypted") from None


def _values(xml: str, element: str, attribute: str, wanted: dict[str, frozenset[str]] | None = None) -> list[str]:
    """Return an attribute of all elements of a name, those with other attributes that are `wanted`."""
    values = []
    for token in tokens(xml, xml=True):
        if token.kind == "opens" and token.name.rpartition(":")[2] == element:
            fits = all((token.attribute(name) or "").lower() in allowed for name, allowed in (wanted or {}).items())
            value = token.attribute(attribute)
            values += [unescape(value)] if fits and value else []
    return values


def _error(page: bytes) -> str:
    """Return why a page is not well-formed; empty if it is."""
    parser = etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, huge_tree=True)
    try:
        etree.fromstring(page, parser)
    except etree.XMLSyntaxError as error:
        return error.msg or "it cannot be parsed"
    return ""
