"""Archives of XML, such as office documents: reading within limits, and writing with other texts.

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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from lxml import etree

from translume.documents.segments import Mark, Segment, check_markup, check_segments, with_style_marks
from translume.errors import DocumentError

MAX_PARTS, MAX_BYTES, MAX_RATIO = 5000, 100_000_000, 200
"""Limits of an archive: parts, unpacked bytes, and, from 1 MB on, unpacked bytes per byte of the archive."""
LARGEST_TEXT = 20_000_000
"""Maximum number of unpacked bytes of all parts with text."""
_SPACE: Final = "{http://www.w3.org/XML/1998/namespace}space"
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BROKEN: Final = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, NotImplementedError, RuntimeError, ValueError, OSError),
)
"""Errors that zipfile raises for invalid archives."""

Place = tuple["etree._Element", Literal["text", "tail"]]
"""Where a run is written: an element, and its text or the text behind it."""
Segments = Iterator[tuple[tuple[Place, ...], Segment]]
"""Segments with the places of their runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a format stores text.

    name: of the format in messages.  main: name of the part that every file has; a number may follow it.
    with_text: matches the names of parts with text.  segments: finds the segments of such a part.
    preserves: whether elements whose text begins or ends with a space need xml:space.
    """

    name: str
    main: str
    with_text: re.Pattern[str]
    segments: Callable[["etree._ElementTree"], Segments]
    preserves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ZippedXml:
    """An archive of XML.

    archive: the file.  trees: parts with text, by name.  places: of each segment's runs.
    parts: name of the part of each segment.
    """

    layout: Layout
    archive: bytes
    trees: dict[str, "etree._ElementTree"]
    places: tuple[tuple[Place, ...], ...]
    parts: tuple[str, ...]
    segments: tuple[Segment, ...]

    @classmethod
    def from_bytes(cls, data: bytes, layout: Layout) -> "ZippedXml":
        """Read the paragraphs of a file; DocumentError if it is invalid or too large when unpacked."""
        trees: dict[str, etree._ElementTree] = {}
        markup = 0
        for name, content in unpack(data, layout.name, layout.with_text):
            content = _as_utf8(name, content)
            # Counted in the bytes: the tree of a million elements takes a second and 100 MB.
            markup += content.count(b"<") + content.count(b"=")
            check_markup(markup)
            trees[name] = _tree(name, content)
        main = re.compile(re.escape(layout.main) + r"\d*\.xml")
        if not any(map(main.fullmatch, trees)):
            raise DocumentError(f"it has no part {layout.main}.xml, expected {layout.name}")
        found = []
        for name, tree in trees.items():
            for each in layout.segments(tree):
                found.append((name, *each))
                check_segments(len(found))
        return cls(
            layout=layout,
            archive=data,
            trees=trees,
            places=tuple(places for _, places, _ in found),
            parts=tuple(name for name, _, _ in found),
            segments=tuple(segment for _, _, segment in found),
        )

    def with_runs(self, runs: Sequence[Sequence[str]]) -> bytes:
        """Return the file with other texts. Call it only once: it changes the trees."""
        changed: set[str] = set()
        for name, places, segment, written in zip(self.parts, self.places, self.segments, runs, strict=True):
            for (element, where), before, after in zip(places, segment.runs, written, strict=True):
                if after == before:
                    continue
                changed.add(name)
                setattr(element, where, _NOT_XML.sub("", after))
                if self.layout.preserves and after != after.strip():
                    element.set(_SPACE, "preserve")
        return pack(self.archive, {name: _written(self.trees[name]) for name in changed})


def pack(archive: bytes, changed: Mapping[str, bytes]) -> bytes:
    """Return an archive with its parts in order and the changed ones replaced."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as before, zipfile.ZipFile(written, "w") as after:
        for entry in before.infolist():
            content = changed[entry.filename] if entry.filename in changed else before.read(entry)
            plain = entry.compress_type if entry.compress_type == zipfile.ZIP_STORED else zipfile.ZIP_DEFLATED
            after.writestr(entry, content, compress_type=plain)
    return written.getvalue()


def unpack(data: bytes, name: str, with_text: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the parts whose names match, with their names; DocumentError for an invalid archive.

    name: of the format in messages.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from _unpacked(archive, len(data), with_text)
    except _BROKEN:
        raise DocumentError(f"it is not {name}, or it is damaged") from None


def _written(tree: "etree._ElementTree") -> bytes:
    written: bytes = etree.tostring(tree, xml_declaration=True, encoding="UTF-8", standalone=tree.docinfo.standalone)
    return written


def _unpacked(archive: zipfile.ZipFile, size: int, with_text: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the parts with text and their names. All others are read too, to detect damage.

    Raises DocumentError for a zip bomb, a password, or two parts of one name.
    """
    entries = archive.infolist()
    whole = sum(entry.file_size for entry in entries)
    most = min(MAX_BYTES, max(1_000_000, size * MAX_RATIO))
    if len(entries) > MAX_PARTS or whole > most:
        raise DocumentError(
            f"it has {len(entries):,} parts and {whole:,} bytes when unpacked, "
            f"expected at most {MAX_PARTS:,} and {most:,}"
        )
    if any(entry.flag_bits & 1 for entry in entries):
        raise DocumentError("it has a password")
    if len({entry.filename for entry in entries}) < len(entries):
        raise DocumentError("it is damaged: two of its parts have the same name")
    left = LARGEST_TEXT
    for entry in entries:
        # zipfile unpacks at most the size in the header, and verifies the checksum.
        with archive.open(entry) as part:
            if not with_text.fullmatch(entry.filename):
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
        raise DocumentError(f"{name} declares a document type, which office documents never do")
    return tree


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
    return ZippedXml.from_bytes(data, WORD)


def read_presentation(data: bytes) -> ZippedXml:
    """Read a presentation; DocumentError as for `read_word`."""
    return ZippedXml.from_bytes(data, PRESENTATION)
