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
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, Literal

from lxml import etree

from translume.documents.segments import (
    NOT_XML,
    Mark,
    Segment,
    check_markup,
    check_segments,
    is_note,
    is_right_to_left,
    with_style_marks,
)
from translume.errors import DocumentError

MAX_PARTS, MAX_BYTES, MAX_RATIO = 5000, 100_000_000, 200
"""Limits of an archive: parts, unpacked bytes, and, from 1 MB on, unpacked bytes per byte of the archive."""
LARGEST_TEXT = 20_000_000
"""Maximum number of unpacked bytes of all parts with text."""
_SPACE: Final = "{http://www.w3.org/XML/1998/namespace}space"
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

    name: of the format in messages.  main: the usual name of the part that every file has.  root: its root element.
    names: matches the names of parts with text, for archives without content types.  types: matches the content types.
    segments: finds the segments of such a part.  preserves: whether elements whose text begins or ends with a space
    need xml:space.  in_language: sets the language of a part, whose texts changed in the given elements.
    """

    name: str
    main: str
    root: str
    names: re.Pattern[str]
    segments: Callable[["etree._ElementTree"], Segments]
    in_language: Callable[["etree._ElementTree", str, Sequence["etree._Element"]], None]
    types: re.Pattern[str] | None = None
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
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes, layout: Layout) -> "ZippedXml":
        """Read the paragraphs of a file; DocumentError if it is invalid or too large when unpacked."""
        trees: dict[str, etree._ElementTree] = {}
        markup = 0
        for name, content in unpack(data, layout.name, _parts_with_text(data, layout)):
            content = _as_utf8(name, content)
            # Counted in the bytes: the tree of a million elements takes a second and 100 MB.
            markup += content.count(b"<") + content.count(b"=")
            check_markup(markup)
            trees[name] = _tree(name, content)
        if not any(
            name == f"{layout.main}.xml" or _name(tree.getroot()) == layout.root for name, tree in trees.items()
        ):
            raise DocumentError(f"it has no part {layout.main}.xml, expected {layout.name}")
        segments = []
        for name, tree in trees.items():
            for each in layout.segments(tree):
                segments.append((name, *each))
                check_segments(len(segments))
        return cls(
            layout=layout,
            archive=data,
            trees=trees,
            places=tuple(places for _, places, _ in segments),
            parts=tuple(name for name, _, _ in segments),
            segments=tuple(segment for _, _, segment in segments),
        )

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> bytes:
        """Return the file with other texts. Call it only once: it changes the trees.

        language: of the texts, a code; empty to leave that of the file.
        """
        changed: dict[str, list[etree._Element]] = {}
        for name, places, segment, written in zip(self.parts, self.places, self.segments, runs, strict=True):
            if tuple(written) == segment.runs:
                continue
            for run, (element, where) in enumerate(places):
                changed.setdefault(name, []).append(element)
                if written[run] == segment.runs[run] or run in segment.kept:
                    continue
                setattr(element, where, NOT_XML.sub("", written[run]))
                if self.layout.preserves and written[run] != written[run].strip():
                    element.set(_SPACE, "preserve")
            kept = sorted(segment.kept)
            _move([places[run][0] for run in kept], [segment.runs[run] for run in kept], [written[run] for run in kept])
        if changed and language:
            for name, tree in self.trees.items():
                self.layout.in_language(tree, language, changed.setdefault(name, []))
        return pack(self.archive, {name: _written(self.trees[name]) for name in changed})


def _move(elements: Sequence["etree._Element"], before: Sequence[str], after: Sequence[str]) -> None:
    """Exchange the fields around elements, whose texts are `before`, so that their texts are `after`."""
    if [text.strip() for text in before] == [text.strip() for text in after]:
        return
    fields = [_field_around(element) for element in elements]
    if any(len({id(part.getparent()) for part in field}) != 1 for field in fields):
        return
    left = {place: text.strip() for place, text in enumerate(before)}
    slots = []
    for field in fields:
        slot = etree.Element("slot")
        slot.tail, field[-1].tail = field[-1].tail, None
        field[0].addprevious(slot)
        slots.append(slot)
        for part in field:
            part.getparent().remove(part)
    for slot, text in zip(slots, after, strict=True):
        place = next((place for place, other in left.items() if other == text.strip()), min(left))
        del left[place]
        for part in fields[place]:
            slot.addprevious(part)
        fields[place][-1].tail = slot.tail
        slot.tail = None
        slot.getparent().remove(slot)


def _field_around(element: "etree._Element") -> list["etree._Element"]:
    """Return the elements of the field whose result a text is: an element around it, or the runs from begin to end."""
    for around in (element, *element.iterancestors()):
        if _name(around) in ("fldSimple", "fld") or around.tag.startswith(_OPEN_TEXT):
            return [around]
    run = element.getparent()
    runs, depth = [run], 0
    for step in (-1, 1):
        while (kind := _character(run)) != ("begin" if step < 0 else "end") or depth:
            depth += {"begin": step, "end": -step}.get(kind, 0)
            following = run.getprevious() if step < 0 else run.getnext()
            if following is None:
                return [element]
            run = following
            runs.insert(0, run) if step < 0 else runs.append(run)
        run, depth = runs[-1], 0
    return runs


def _character(run: "etree._Element") -> str:
    """Return the type of the field character in a run: begin, separate, end; empty without one."""
    character = run.find("{*}fldChar")
    kinds = () if character is None else character.attrib.items()
    return next((value for name, value in kinds if name.endswith("fldCharType")), "")


_TYPES: Final = "[Content_Types].xml"
_ANY_XML: Final = ("", "application/xml", "text/xml")


def _parts_with_text(data: bytes, layout: Layout) -> Callable[[str], object]:
    """Return a function that tells whether a part has text: by its content type (ECMA-376 part 2), or by its name."""
    pattern = layout.types
    types = dict(unpack(data, layout.name, lambda name: name == _TYPES)).get(_TYPES) if pattern else None
    if types is None or pattern is None:
        return layout.names.fullmatch
    by_part: dict[str, str] = {}
    by_suffix: dict[str, str] = {}
    for element in _tree(_TYPES, _as_utf8(_TYPES, types)).getroot():
        kind = element.get("ContentType") or ""
        if _name(element) == "Override":
            by_part[(element.get("PartName") or "").lstrip("/").lower()] = kind
        elif _name(element) == "Default":
            by_suffix[(element.get("Extension") or "").lower()] = kind

    def has_text(name: str) -> bool:
        kind = by_part.get(name.lower()) or by_suffix.get(name.rpartition(".")[2].lower(), "")
        return pattern.fullmatch(kind) is not None or (kind in _ANY_XML and layout.names.fullmatch(name) is not None)

    return has_text


def pack(archive: bytes, changed: Mapping[str, bytes]) -> bytes:
    """Return an archive with its parts in order and the changed ones replaced."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as before, zipfile.ZipFile(written, "w") as after:
        for entry in before.infolist():
            content = changed[entry.filename] if entry.filename in changed else before.read(entry)
            plain = entry.compress_type if entry.compress_type == zipfile.ZIP_STORED else zipfile.ZIP_DEFLATED
            after.writestr(entry, content, compress_type=plain)
    return written.getvalue()


def unpack(data: bytes, name: str, with_text: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Yield the parts whose names are `with_text`, with their names; DocumentError for an invalid archive.

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


def _unpacked(archive: zipfile.ZipFile, size: int, with_text: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Yield the parts with text and their names. All others are read too, to detect damage.

    Raises DocumentError for a zip bomb, a password, or two parts of one name.
    """
    entries = archive.infolist()
    whole = sum(entry.file_size for entry in entries)
    largest = min(MAX_BYTES, max(1_000_000, size * MAX_RATIO))
    if len(entries) > MAX_PARTS or whole > largest:
        raise DocumentError(
            f"it has {len(entries):,} parts and {whole:,} bytes when unpacked, "
            f"expected at most {MAX_PARTS:,} and {largest:,}"
        )
    if any(entry.flag_bits & 1 for entry in entries):
        raise DocumentError("it has a password")
    if len({entry.filename for entry in entries}) < len(entries):
        raise DocumentError("it is damaged: two of its parts have the same name")
    left = LARGEST_TEXT
    for entry in entries:
        # zipfile unpacks at most the size in the header, and verifies the checksum.
        with archive.open(entry) as part:
            if not with_text(entry.filename):
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
_OPEN_TEXT: Final = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_CHART: Final = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_BREAKS: Final = frozenset({"br", "cr", "tab", "ptab"})
_UNSEEN: Final = frozenset({"lang", "altLang", "noProof", "dirty", "err", "smtClean", "rPrChange"})
"""Properties of runs that do not change how the text looks."""
_LEFT_OUT: Final = frozenset(
    {"del", "moveFrom", "rPr", "pPr", "sdtPr", "sdtEndPr", "instrText", "delText", "endParaRPr"}
)
"""Elements whose texts are deleted, or are not shown."""
_NOTES: Final = frozenset(
    {"footnoteReference", "endnoteReference", "commentReference", "footnoteRef", "endnoteRef", "annotationRef", "rt"}
)
"""Elements that stand behind a word: marks of notes, and readings of ruby text."""
_OBJECTS: Final = frozenset(
    {"drawing", "pict", "object", "sym", "pgNum", "AlternateContent", "oMath", "oMathPara", "m"}
)
"""Elements that take the place of a word."""
_SHOWN_FIELDS: Final = frozenset({"HYPERLINK", "TOC", "INDEX", "TOA", "BIBLIOGRAPHY", "QUOTE", "FORMTEXT", "TC", "XE"})
"""Fields whose results are texts of the document. Others, such as REF and MERGEFIELD, stay whole."""

Event = tuple[Literal["text", "break", "object", "note", "begin", "end"], "etree._Element"]


def _segments(tree: "etree._ElementTree", spaces: Sequence[str]) -> Segments:
    """Yield the segments of a part with the places of their texts.  spaces: namespaces."""
    link = numbered(lambda around: tuple(sorted(around.attrib.items())) if _name(around) == "hyperlink" else ())
    style = numbered(lambda run: (link(run.getparent()), *_look(run.find("{*}rPr"))))
    for space in spaces:
        for paragraph in tree.iter(f"{space}p"):
            yield from _of_paragraph([*_events(paragraph, space)], style)
    for value in tree.iter(f"{_CHART}v"):
        # Names of series and categories; numbers have other parents.
        around = [_name(each) for each in value.iterancestors()]
        if around[:1] == ["tx"] or around[1:2] in (["strCache"], ["strLit"]):
            segment = Segment(runs=(value.text or "",))
            if segment.has_letters:
                yield ((value, "text"),), segment


Style = Callable[["etree._Element"], int]
"""Returns the number of an element's style: the same for equal styles."""


def numbered(read: Callable[["etree._Element"], Hashable]) -> Style:
    """Return a function that reads the style of each element once. Many texts may share a style of many properties."""
    numbers: dict[Hashable, int] = {}
    return cache(lambda element: numbers.setdefault(read(element), len(numbers)))


def _of_paragraph(events: Sequence[Event], style: Style) -> Segments:
    """Yield the segments of a paragraph, which breaks divide.  style: of a run and the link around it."""
    fields = _fields(events)
    texts: list[etree._Element] = []
    kept: set[int] = set()
    between: dict[int, Mark] = {}  # the objects before a text
    open_until = 0
    for place, (kind, element) in enumerate(events):
        if kind == "break" and place >= open_until:
            yield from _segment(texts, kept, between, style)
            texts, kept, between = [], set(), {}
        elif kind in ("object", "note"):
            mark = Mark.OBJECT if kind == "object" else Mark.ATTACHED
            between.setdefault(len(texts), mark)
        elif kind == "text" and place >= open_until:
            texts.append(element)
        elif place in fields and place >= open_until:
            open_until = fields[place]
            results = [each for kind, each in events[place:open_until] if kind == "text"]
            if results:
                # Word sets the look of a result when it updates the field, so one run is enough.
                results[0].text = "".join(each.text or "" for each in results)
                for each in results[1:]:
                    each.text = ""
                kept.add(len(texts))
                texts.append(results[0])
            else:
                between.setdefault(len(texts), Mark.OBJECT)
    yield from _segment(texts, kept, between, style)


def _fields(events: Sequence[Event]) -> dict[int, int]:
    """Return the begin and end of each field that stays whole and is not in another one.

    Fields across paragraphs, such as tables of contents, are none.
    """
    ends: dict[int, int] = {}
    waiting: list[tuple[int, bool]] = []
    for place, (kind, element) in enumerate(events):
        if kind == "begin":
            waiting.append((place, _instruction(element) not in _SHOWN_FIELDS))
        elif kind == "end" and waiting:
            begin, whole = waiting.pop()
            if whole and not any(outer for _, outer in waiting):
                ends[begin] = place
    return ends


def _instruction(element: "etree._Element") -> str:
    """Return the name of a field, such as REF, in upper case."""
    text = next((value for name, value in element.attrib.items() if name.rpartition("}")[2] in ("instr", "type")), "")
    run: etree._Element | None = element.getparent()
    for _ in range(MAX_INSTRUCTION if _name(element) == "fldChar" else 0):
        if run is None or (run is not element.getparent() and _character(run)):
            break
        text += "".join(each.text or "" for each in run.iterfind("{*}instrText"))
        run = run.getnext()
    return (text.split() or [""])[0].upper()


MAX_INSTRUCTION: Final = 8
"""Runs in which the name of a field is searched."""


def _events(paragraph: "etree._Element", space: str) -> Iterator[Event]:
    """Yield what a paragraph shows, without nested paragraphs, such as text boxes."""
    waiting: list[tuple[etree._Element, bool]] = [(each, False) for each in reversed(paragraph)]
    while waiting:
        element, left = waiting.pop()
        name = _name(element)
        if left:
            yield "end", element
        elif name in _LEFT_OUT or name == "p":
            continue
        elif element.tag == f"{space}noBreakHyphen":  # a character of the text
            element.tag, element.text = f"{space}t", "\u2011"
            yield "text", element
        elif element.tag == f"{space}t":
            yield "text", element
        elif name in _BREAKS and element.getparent().tag in (f"{space}r", f"{space}p"):
            yield "break", element
        elif name in _OBJECTS:
            # What floats beside the text, such as a text box, does not take the place of a word.
            floats = any(_name(each) in ("anchor", "txbxContent", "textbox") for each in element.iter())
            yield "note" if floats else "object", element
        elif name in _NOTES:
            yield "note", element
        elif name == "fldChar":
            kind = _character(element.getparent())
            if kind in ("begin", "end"):
                yield "begin" if kind == "begin" else "end", element
        else:
            if name in ("fldSimple", "fld"):
                yield "begin", element
                waiting.append((element, True))
            waiting.extend((each, False) for each in reversed(element))


def _segment(
    texts: Sequence["etree._Element"], kept: Collection[int], between: Mapping[int, Mark], style: Style
) -> Segments:
    styles = [style(element.getparent()) for element in texts]
    shown: list[int] = []
    marks: list[Mark] = []
    mark: Mark | None = None
    for place, element in enumerate(texts):
        mark = mark if mark is Mark.OBJECT else between.get(place, mark)
        # A superscript that is the mark of a note stays behind its word, as a footnote does.
        before = "".join(texts[each].text or "" for each in shown[-2:])
        linked = _name(element.getparent().getparent()) == "hyperlink"
        if place not in kept and _raised(element) and is_note(element.text or "", before, linked=linked):
            mark = mark or Mark.ATTACHED
            continue
        if shown:
            marks.append(mark or Mark.STYLE_CHANGE)
        shown.append(place)
        mark = None
    runs = tuple(texts[place].text or "" for place in shown)
    scripts = [number for number, place in enumerate(shown) if _raised(texts[place])]
    segment = Segment(
        runs=runs,
        marks=with_style_marks(runs, marks, [styles[place] for place in shown], scripts),
        kept=frozenset(number for number, place in enumerate(shown) if place in kept),
    )
    if segment.has_letters:
        yield tuple((texts[place], "text") for place in shown), segment


def _raised(text: "etree._Element") -> bool:
    """Return whether a text is a subscript or superscript."""
    properties = text.getparent().find("{*}rPr")
    if properties is None:
        return False
    if properties.get("baseline", "0") not in ("0", "0%"):
        return True
    values = [value for each in properties.iterfind("{*}vertAlign") for value in each.attrib.values()]
    return values in (["superscript"], ["subscript"])


def _look(properties: "etree._Element | None") -> Iterator[Hashable]:
    """Yield the properties of a run, without those that do not show, such as its language."""
    if properties is None:
        return
    yield from ((name, value) for name, value in properties.attrib.items() if name not in _UNSEEN)
    for element in properties:
        if _name(element) not in _UNSEEN:
            yield tuple((each.tag, *sorted(each.attrib.items())) for each in element.iter())


def _name(element: "etree._Element | None") -> str:
    tag = getattr(element, "tag", None)  # the parent of a root is None
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def _in_language(tree: "etree._ElementTree", language: str, changed: Sequence["etree._Element"]) -> None:
    """Set the language of a part, and the direction of its changed paragraphs."""
    right = is_right_to_left(language)
    short = language.partition("-")[0].lower()
    for element in tree.iter("*"):
        name, space = _name(element), element.tag.rpartition("}")[0] + "}"
        if name == "lang" and space in _WORD:
            element.set(f"{space}{'bidi' if right else 'eastAsia' if short in ('zh', 'ja', 'ko') else 'val'}", language)
        elif name in ("rPr", "endParaRPr", "defRPr") and space in _DRAWING and "lang" in element.attrib:
            element.set("lang", language)
    if not right:
        return
    for run in {element.getparent(): None for element in changed}:
        space = run.tag.rpartition("}")[0] + "}"
        paragraph = next(run.iterancestors(f"{space}p"), None)
        if space in _WORD and paragraph is not None:
            _property(run, f"{space}rPr", f"{space}rtl", _AFTER_RTL)
            _property(paragraph, f"{space}pPr", f"{space}bidi", _AFTER_BIDI)
        elif space in _DRAWING and paragraph is not None:
            properties = paragraph.find(f"{space}pPr")
            if properties is None:
                properties = etree.Element(f"{space}pPr")
                paragraph.insert(0, properties)
            properties.set("rtl", "1")


_AFTER_RTL: Final = frozenset({"cs", "em", "lang", "eastAsianLayout", "specVanish", "oMath", "rPrChange"})
_AFTER_BIDI: Final = frozenset(
    {
        *("adjustRightInd", "snapToGrid", "spacing", "ind", "contextualSpacing", "mirrorIndents", "suppressOverlap"),
        *("jc", "textDirection", "textAlignment", "textboxTightWrap", "outlineLvl", "divId", "cnfStyle", "rPr"),
        *("sectPr", "pPrChange"),
    }
)
"""The properties that follow those, in the order of the schema."""


def _property(element: "etree._Element", group: str, name: str, following: Collection[str]) -> None:
    """Add a property to a run or paragraph that has it not, before the `following` ones."""
    properties = element.find(group)
    if properties is None:
        properties = etree.Element(group)
        element.insert(0, properties)
    if properties.find(name) is None:
        place = next((place for place, each in enumerate(properties) if _name(each) in following), len(properties))
        properties.insert(place, etree.Element(name))


_GRAPHICS: Final = r"drawingml\.(?:chart|chartshapes|diagramData)|ms-office\.(?:chartex|drawingml\.diagramDrawing)"
WORD: Final = Layout(
    name="a Word document (docx)",
    main="word/document",
    root="document",
    names=re.compile(r"word/(?:document|header|footer|footnotes|endnotes|comments|styles)\d*\.xml"),
    types=re.compile(
        rf".*(?:(?:wordprocessingml\.(?:document|template|header|footer|footnotes|endnotes|comments|styles)|"
        rf"ms-word\.\w+\.macroEnabled\w*)(?:\.main)?|{_GRAPHICS})\+xml"
    ),
    segments=partial(_segments, spaces=_WORD + _DRAWING),
    in_language=_in_language,
    preserves=True,
)
PRESENTATION: Final = Layout(
    name="a presentation (pptx)",
    main="ppt/presentation",
    root="presentation",
    names=re.compile(r"ppt/(?:presentation|(?:slides/slide|notesSlides/notesSlide|diagrams/data)\d+)\.xml"),
    types=re.compile(
        rf".*(?:presentationml\.(?:presentation|template|slideshow|slide|notesSlide)(?:\.main)?|"
        rf"ms-powerpoint\.\w+\.macroEnabled\.main|{_GRAPHICS})\+xml"
    ),
    segments=partial(_segments, spaces=_DRAWING),
    in_language=_in_language,
)


def read_word(data: bytes) -> ZippedXml:
    """Read a Word document; DocumentError if it is invalid or too large when unpacked."""
    return ZippedXml.from_bytes(data, WORD)


def read_presentation(data: bytes) -> ZippedXml:
    """Read a presentation; DocumentError as for `read_word`."""
    return ZippedXml.from_bytes(data, PRESENTATION)
