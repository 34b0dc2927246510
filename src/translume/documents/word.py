"""Word documents (docx): each paragraph is a segment, split at tabs and line breaks.

Parts of the archive without translated text are copied unchanged. XML is parsed without entities and external
documents, and within limits that are checked before anything is unpacked or parsed.
"""

import codecs
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lxml import etree

from translume.documents.segments import Mark, Segment, check_markup, check_segments
from translume.errors import DocumentError

MOST_PARTS, MOST_BYTES, MOST_RATIO = 5000, 100_000_000, 200
"""Limits of an archive: parts, unpacked bytes, and, from 1 MB on, unpacked bytes per byte of the archive."""
LARGEST_TEXT = 20_000_000
"""Most unpacked bytes of all parts with text."""
_WITH_TEXT: Final = re.compile(r"word/(?:document|header|footer|footnotes|endnotes|comments)\d*\.xml")
_MAIN: Final = re.compile(r"word/document\d*\.xml")
_W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_STRICT: Final = "{http://purl.oclc.org/ooxml/wordprocessingml/main}"
_SPACE: Final = "{http://www.w3.org/XML/1998/namespace}space"
_BREAKS: Final = frozenset({"br", "cr", "tab", "ptab"})
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BROKEN: Final = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, NotImplementedError, RuntimeError, ValueError, OSError),
)
"""Errors that zipfile raises for invalid archives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordFile:
    """A Word document.

    archive: the file.  trees: parts with text, by name.  places: XML elements of each segment's runs.
    parts: name of the part of each segment.
    """

    archive: bytes
    trees: dict[str, "etree._ElementTree"]
    places: tuple[tuple["etree._Element", ...], ...]
    parts: tuple[str, ...]
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, data: bytes) -> "WordFile":
        """Read the paragraphs of a document; DocumentError if it is invalid or too large when unpacked."""
        trees: dict[str, etree._ElementTree] = {}
        markup = 0
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name, content in _unpacked(archive, len(data)):
                    content = _as_utf8(name, content)
                    # Counted in the bytes: the tree of a million elements takes a second and 100 MB.
                    markup += content.count(b"<") + content.count(b"=")
                    check_markup(markup)
                    trees[name] = _tree(name, content)
        except _BROKEN:
            raise DocumentError("it is not a Word document (docx), or it is damaged") from None
        if not any(map(_MAIN.fullmatch, trees)):
            raise DocumentError("it has no part word/document.xml, expected a Word document (docx)")
        found = []
        for name, tree in trees.items():
            for each in _segments(tree):
                found.append((name, *each))
                check_segments(len(found))
        return cls(
            archive=data,
            trees=trees,
            places=tuple(places for _, places, _ in found),
            parts=tuple(name for name, _, _ in found),
            segments=tuple(segment for _, _, segment in found),
        )

    def with_runs(self, runs: Sequence[Sequence[str]]) -> bytes:
        """Return the document with other texts. Call it only once: it changes the trees."""
        changed: set[str] = set()
        for name, places, segment, written in zip(self.parts, self.places, self.segments, runs, strict=True):
            for place, before, after in zip(places, segment.runs, written, strict=True):
                if after == before:
                    continue
                changed.add(name)
                place.text = _NOT_XML.sub("", after)
                if after != after.strip():
                    place.set(_SPACE, "preserve")
        return self._packed(changed)

    def _packed(self, changed: set[str]) -> bytes:
        """Return the archive with its parts in order and the changed ones replaced."""
        written = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(self.archive)) as before, zipfile.ZipFile(written, "w") as after:
            for entry in before.infolist():
                if entry.filename in changed:
                    tree = self.trees[entry.filename]
                    content = etree.tostring(
                        tree, xml_declaration=True, encoding="UTF-8", standalone=tree.docinfo.standalone
                    )
                else:
                    content = before.read(entry)
                plain = entry.compress_type if entry.compress_type == zipfile.ZIP_STORED else zipfile.ZIP_DEFLATED
                after.writestr(entry, content, compress_type=plain)
        return written.getvalue()


def _unpacked(archive: zipfile.ZipFile, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield the parts with text and their names. All others are read too, to detect damage.

    Raises DocumentError for a zip bomb, a password, or two parts of one name.
    """
    entries = archive.infolist()
    whole = sum(entry.file_size for entry in entries)
    most = min(MOST_BYTES, max(1_000_000, size * MOST_RATIO))
    if len(entries) > MOST_PARTS or whole > most:
        raise DocumentError(
            f"it has {len(entries):,} parts and {whole:,} bytes when unpacked, "
            f"expected at most {MOST_PARTS:,} and {most:,}"
        )
    if any(entry.flag_bits & 1 for entry in entries):
        raise DocumentError("it has a password")
    if len({entry.filename for entry in entries}) < len(entries):
        raise DocumentError("it is damaged: two of its parts have the same name")
    left = LARGEST_TEXT
    for entry in entries:
        # zipfile unpacks at most the size in the header, and verifies the checksum.
        with archive.open(entry) as part:
            if not _WITH_TEXT.fullmatch(entry.filename):
                while part.read(1_000_000):
                    pass
                continue
            content = part.read(left + 1)
        left -= len(content)
        if left < 0:
            raise DocumentError(f"its text has more than {LARGEST_TEXT:,} bytes when unpacked")
        yield entry.filename, content


def _as_utf8(name: str, content: bytes) -> bytes:
    """Return XML in UTF-8. Parts are in UTF-8 or UTF-16 (ECMA-376 part 2); others could hide their markup."""
    if not content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content
    try:
        return content.decode("utf-16").encode()
    except UnicodeDecodeError:
        raise DocumentError(f"{name} is damaged: it is not XML") from None


def _tree(name: str, content: bytes) -> "etree._ElementTree":
    # The encoding replaces the declared one.
    parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)
    try:
        tree = etree.ElementTree(etree.fromstring(content, parser))
    except etree.XMLSyntaxError:
        raise DocumentError(f"{name} is damaged: it is not XML") from None
    if tree.docinfo.doctype:
        raise DocumentError(f"{name} declares a document type, which Word documents never do")
    return tree


def _segments(tree: "etree._ElementTree") -> Iterator[tuple[tuple["etree._Element", ...], Segment]]:
    """Yield the segments of a part with their text elements."""
    for space in (_W, _STRICT):
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
        if name == "t" or (name in _BREAKS and element.getparent().tag == f"{space}r"):
            yield element
        elif name != "p":
            waiting.extend(reversed(element))


def _segment(texts: Sequence["etree._Element"]) -> Iterator[tuple[tuple["etree._Element", ...], Segment]]:
    runs = tuple(element.text or "" for element in texts)
    segment = Segment(runs=runs, marks=(Mark.STYLE_CHANGE,) * (len(runs) - 1))
    if segment.has_letters:
        yield tuple(texts), segment
