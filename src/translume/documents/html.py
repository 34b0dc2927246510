"""HTML as segments: the text between block elements is one segment, with the tags of inline elements as its markup.

HTML is split into tokens by the rules of the HTML standard (html.spec.whatwg.org, section 13.2.5), in time linear in
its length. No tree is built: writing one would change quotes, case and elements. Everything but text stays as it is.
"""

import html as entities
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from translume.documents.segments import NOT_XML, Mark, Segment, check_markup, check_segments, is_note, is_right_to_left

_NAME = r"[A-Za-z][^\s/>]*+"
_ATTRIBUTE = r"""=?[^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?)?"""
_TAG: Final = re.compile(rf"<(?P<slash>/?)(?P<name>{_NAME})(?P<attributes>(?:[\s/]++|(?=[^\s/>]){_ATTRIBUTE})*+)>")
_OPENING: Final = re.compile(r"<(?:/?[A-Za-z]|!|\?|/(?=.))", re.DOTALL)
_CUT: Final = re.compile(r"</?[A-Za-z]")
_COMMENT_END: Final = re.compile(r"--!?>")
_FIELD: Final = re.compile(
    r"""(?P<name>=?[^\s/>=]++)(?:\s*+=\s*+(?:"(?P<double>[^"]*+)"|'(?P<single>[^']*+)'|(?P<bare>[^\s>"'][^\s>]*+)))?"""
)
RAW: Final = frozenset({"script", "style", "xmp", "iframe", "noembed", "noframes", "title", "textarea"})
"""Elements whose content is text up to their end tag."""


def _elements(names: str) -> frozenset[str]:
    return frozenset(names.split())


INLINE: Final = _elements(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark nobr q rp rt ruby s small span strike "
    "strong sub sup time tt u"
)
"""Elements within a sentence."""
OBJECTS: Final = _elements("img input audio video canvas embed")
"""Elements within a sentence that take the place of a word."""
UNTRANSLATED: Final = _elements(
    "script style code pre kbd samp var textarea svg math template xmp iframe noembed noframes object plaintext"
)
"""Elements whose content is not translated."""
FOREIGN: Final = _elements("math svg")
"""Elements that `/>` closes in HTML too."""
VOID: Final = _elements("area base br col embed hr img input link meta param source track wbr")
WITHOUT_END: Final = _elements("p li dt dd option optgroup tr td th rt rp")
"""Elements whose end tag may be omitted before the next such element and before the end of their container."""
CONTAINERS: Final = _elements("ul ol dl table thead tbody tfoot tr select div section article main body html ruby")
"""Containers of those elements."""
READINGS: Final = _elements("rt rp rtc")
"""Readings of ruby text: they stay in their place and are not part of the sentence."""
ATTRIBUTES: Final = _elements(
    "alt title placeholder label summary aria-label aria-description aria-placeholder "
    "aria-roledescription aria-valuetext"
)
"""Attributes that are shown to readers or read to them."""
_NAMES_OF_CONTENT: Final = re.compile(r"(?:description|(?:og|twitter):(?:title|description|image:alt))", re.IGNORECASE)
"""Names of <meta> whose content is shown."""
_CDATA: Final = re.compile(r"<!\[CDATA\[(.*?)(?:\]\]>|\Z)", re.DOTALL)
_NOT_TRANSLATED: Final = re.compile(r"(?:^|\s)notranslate(?:\s|$)")


Piece = str | tuple[int, int]
"""Unchanged source text, or a run: the indices of a segment and of a run of it."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of HTML source.  name: of a tag's element, in lower case; empty for other tokens."""

    kind: Literal["text", "opens", "closes", "other"]
    text: str
    name: str = ""

    def attribute(self, name: str) -> str | None:
        """Return an attribute's value as it is written; empty if it has no value, None if it is missing."""
        inside = _TAG.match(self.text)
        for match in _FIELD.finditer(inside["attributes"] if inside else ""):
            if match["name"].lower() == name:
                return match["double"] or match["single"] or match["bare"] or ""
        return None


def tokens(html: str, *, xml: bool = False) -> Iterator[Token]:
    """Yield the tokens of HTML, whose texts concatenate to it. An unfinished tag or comment is an "other" token.

    xml: whether it is XHTML, where <script/> is a complete element.
    """
    place = 0
    while place < len(html):
        opening = _OPENING.search(html, place)
        begin = opening.start() if opening else len(html)
        if begin > place:
            yield Token("text", html[place:begin])
        if opening is None:
            return
        tag = _TAG.match(html, begin)
        if tag is None:
            text = xml and html.startswith("<![CDATA[", begin)
            place = _other_end(html, begin, xml=xml)
            yield Token("text" if text else "other", html[begin:place])
            continue
        place, name = tag.end(), tag["name"].lower()
        yield Token("closes" if tag["slash"] else "opens", tag.group(), name)
        if (xml or name in FOREIGN) and tag["attributes"].endswith("/"):
            if name not in VOID:
                yield Token("closes", "", name)
            continue
        if tag["slash"] or not (name in RAW or name == "plaintext"):
            continue
        end = len(html) if name == "plaintext" else _raw_end(html, place, name)
        if end > place:
            yield Token("text", html[place:end])
        place = end


_OF_XML: Final = (("<![CDATA[", "]]>"), ("<?", "?>"), ("<!--", "-->"))
_DOCTYPE: Final = re.compile(r"""<!DOCTYPE(?:[^\[\]<>"']++|"[^"]*+"|'[^']*+')*+(?:\[[^\]]*+\]\s*+)?>""")


def _other_end(html: str, begin: int, *, xml: bool) -> int:
    """Return the end of what begins with `<` but is not a tag: a comment, a doctype, or a tag cut off by the end."""
    for opening, closing in _OF_XML if xml else ():
        if html.startswith(opening, begin):
            end = html.find(closing, begin)
            return end + len(closing) if end >= 0 else len(html)
    if xml and html.startswith("<!DOCTYPE", begin):
        # Declarations within [ ] have their own >.
        match = _DOCTYPE.match(html, begin)
        return match.end() if match else len(html)
    if html.startswith("<!--", begin):
        # <!--> and <!---> are complete comments.
        for short in ("<!-->", "<!--->"):
            if html.startswith(short, begin):
                return begin + len(short)
        match = _COMMENT_END.search(html, begin + 4)
        return match.end() if match else len(html)
    # Browsers drop a tag that is cut off by the end of the text; <!doctype>, <?x> and </3> end at the next >.
    end = -1 if _CUT.match(html, begin) else html.find(">", begin)
    return end + 1 if end >= 0 else len(html)


def _raw_end(html: str, begin: int, name: str) -> int:
    """Return the end of the text of an element such as <script>, before its end tag."""
    end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
    if name != "script":
        match = end.search(html, begin)
        return match.start() if match else len(html)
    # Within <!-- in a script, <script> … </script> is text ("script data double escaped").
    steps = re.compile(r"(?P<end></script(?=[\s/>]))|(?P<begin><script(?=[\s/>]))|<!--|-->", re.IGNORECASE)
    escaped = inner = False
    for match in steps.finditer(html, begin):
        if match["end"]:
            if not inner:
                return match.start()
            inner = False
        elif match["begin"]:
            inner = escaped
        elif match.group() == "<!--":
            escaped = True
        else:
            escaped = inner = False
    return len(html)


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlText:
    """HTML text as segments.

    pieces: unchanged source text, or (segment, run) in its place.  raw: each run as it is written, with entities.
    quotes: of segments that are values of attributes: " or ', or a space if there are none; empty for text.
    xml: whether it is XHTML.
    """

    pieces: tuple[Piece, ...]
    segments: tuple[Segment, ...]
    raw: tuple[tuple[str, ...], ...]
    quotes: tuple[str, ...]
    xml: bool = False

    @classmethod
    def from_string(cls, html: str, *, xml: bool = False, attributes: bool = False) -> "HtmlText":
        """Split a document, or a part of one, into segments; DocumentError if it has too many tags or segments.

        attributes: whether those that are shown, such as alt, are segments too.
        """
        check_markup(html.count("<") + html.count("="))
        reader = _Reader(xml=xml, attributes=attributes)
        for token in tokens(html, xml=xml):
            reader.read(token)
        reader.end_segment()
        return cls(
            pieces=tuple(reader.pieces),
            segments=tuple(reader.segments),
            raw=tuple(reader.raw),
            quotes=tuple(reader.quotes),
            xml=xml,
        )

    def with_runs(self, runs: Sequence[Sequence[str]], language: str = "") -> str:
        """Return the HTML with other runs for each segment. An unchanged run is written as it was.

        language: of the texts, a code for <html lang>, with the direction of its script; empty to leave them.
        """
        written = [
            piece if isinstance(piece, str) else self._written(piece, runs[piece[0]][piece[1]]) for piece in self.pieces
        ]
        if language:
            place = next(
                (n for n, piece in enumerate(self.pieces) if isinstance(piece, str) and _ROOT.match(piece)), -1
            )
            if place >= 0:
                written[place] = _in_language(written[place], language)
        return "".join(written)

    def _written(self, piece: tuple[int, int], run: str) -> str:
        segment, number = piece
        if run == self.segments[segment].runs[number]:
            return self.raw[segment][number]
        if self.xml:
            run = NOT_XML.sub("", run)
        quote = self.quotes[segment]
        text = entities.escape(run, quote=False)
        text = text.replace("'", "&#39;") if quote == "'" else text.replace('"', "&quot;") if quote else text
        # XML has no entity nbsp.
        text = text.replace("\xa0", "&#160;" if self.xml else "&nbsp;")
        return f'"{text}"' if quote == " " else text


_ROOT: Final = re.compile(r"<html(?=[\s>/])", re.IGNORECASE)


def _in_language(root: str, language: str) -> str:
    """Return text that begins with <html>, with another language and direction; dir only if one is needed."""
    tag = _TAG.match(root)
    if tag is None:
        return root
    values = {"lang": language, "xml:lang": language}
    right = is_right_to_left(language)
    present: set[str] = set()

    def changed(field: "re.Match[str]") -> str:
        name = field["name"].lower()
        present.add(name)
        if name == "dir":
            return f'{field["name"]}="{"rtl" if right else "ltr"}"'
        return f'{field["name"]}="{values[name]}"' if name in values else field.group()

    attributes = _FIELD.sub(changed, tag["attributes"])
    if "lang" not in present and "xml:lang" not in present:
        attributes = f' lang="{language}"{attributes}'
    if right and "dir" not in present:
        attributes = f' dir="rtl"{attributes}'
    return f"<{tag['name']}{attributes}>{root[tag.end() :]}"


@dataclass(slots=True)
class _Reader:
    """Reads tokens into pieces and segments.

    runs, between: the runs of the open segment, and the markup between them: its kind and its pieces.
    skipped: name of the open element that is not translated; empty if there is none.  depth: number of open elements of
    that name.  containers: number of `CONTAINERS` open in it.  inside: the mark it has within a sentence.
    """

    xml: bool = False
    attributes: bool = False
    pieces: list[Piece] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    raw: list[tuple[str, ...]] = field(default_factory=list)
    quotes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    between: list[tuple[Mark, list[Piece]]] = field(default_factory=list)
    skipped: str = ""
    depth: int = 0
    containers: int = 0
    inside: Mark | None = None

    def read(self, token: Token) -> None:
        """Read one token."""
        if self.skipped:
            self._skip(token)
        elif token.kind == "text":
            self._run(token.text)
        elif token.kind == "opens" and _untranslated(token) and token.name not in VOID:
            self.skipped, self.depth, self.containers = token.name, 1, 0
            self.inside = Mark.ATTACHED if token.name in READINGS else Mark.OBJECT if _is_inline(token) else None
            self._mark(token.text)
        elif token.kind == "other" or token.name == "wbr":
            # Comments and the like, which are invisible, also within a word.
            self._inside(Mark.ATTACHED, [token.text])
        elif token.name in OBJECTS:
            self.inside = Mark.OBJECT
            self._mark(*self._with_attributes(token))
        elif token.name in INLINE:
            opening = Mark.SCRIPT if token.name in ("sub", "sup") else Mark.OPENING
            self._inside(opening if token.kind == "opens" else Mark.CLOSING, self._with_attributes(token))
        else:
            self.inside = None
            self._mark(*self._with_attributes(token))

    def _with_attributes(self, token: Token) -> list[Piece]:
        """Return a tag as unchanged text and the segments of its attributes that are shown."""
        tag = _TAG.match(token.text) if self.attributes and token.kind == "opens" else None
        if tag is None or "=" not in tag["attributes"]:
            return [token.text]
        names = ATTRIBUTES
        if token.name == "meta":
            named = token.attribute("name") or token.attribute("property") or ""
            names = frozenset({"content"}) if _NAMES_OF_CONTENT.fullmatch(named) else frozenset()
        elif token.name == "input" and (token.attribute("type") or "").lower() in ("submit", "button", "reset"):
            names = ATTRIBUTES | {"value"}
        pieces: list[Piece] = []
        end, start = 0, tag.start("attributes")
        for match in _FIELD.finditer(tag["attributes"]):
            value = next((name for name in ("double", "single", "bare") if match[name]), "")
            if match["name"].lower() not in names or not value:
                continue
            segment = Segment(runs=(entities.unescape(match[value]),))
            if segment.has_letters:
                pieces += [token.text[end : start + match.start(value)], (len(self.segments), 0)]
                end = start + match.end(value)
                quote = {"double": '"', "single": "'", "bare": " "}[value]
                self._add(segment, (match[value],), quote)
        return [*pieces, token.text[end:]]

    def _add(self, segment: Segment, raw: tuple[str, ...], quote: str = "") -> None:
        self.segments.append(segment)
        self.raw.append(raw)
        self.quotes.append(quote)
        check_segments(len(self.segments))

    def _skip(self, token: Token) -> None:
        """Read a token of an element that is not translated."""
        step = {"opens": 1, "closes": -1}.get(token.kind, 0)
        if self.skipped in WITHOUT_END:
            next_one = step > 0 and (token.name == self.skipped or (self.skipped == "p" and not _is_inline(token)))
            next_one = next_one or (step > 0 and self.skipped in READINGS and token.name in (*READINGS, "rb"))
            if self.containers == 0 and (next_one or (step < 0 and token.name in CONTAINERS)):
                self.skipped = ""
                self.read(token)
                return
            self.containers += (token.name in CONTAINERS) * step
        self.depth += (token.name == self.skipped) * step
        if self.depth == 0:
            self.skipped = ""
        self._mark(token.text)

    def _run(self, text: str) -> None:
        if len(self.runs) == len(self.between):
            self.runs.append(text)
        else:
            self.runs[-1] += text

    def _inside(self, mark: Mark, pieces: list[Piece]) -> None:
        """Add markup to the open segment."""
        if len(self.runs) == len(self.between):
            self.runs.append("")
        self.between.append((mark, pieces))

    def _mark(self, *pieces: Piece) -> None:
        """Add an object within a sentence, or else end it. Adjacent objects become one."""
        if self.inside is None:
            self.end_segment()
            self.pieces += pieces
        elif self.between and len(self.runs) == len(self.between) and self.between[-1][0] is self.inside:
            self.between[-1][1].extend(pieces)
        else:
            self._inside(self.inside, [*pieces])

    def end_segment(self) -> None:
        """Close the open segment. Without letters it stays unchanged text."""
        if len(self.runs) == len(self.between):
            self.runs.append("")
        self._attach_notes()
        runs = tuple(_plain(run) if self.xml else entities.unescape(run) for run in self.runs)
        segment = Segment(runs=runs, marks=tuple(mark for mark, _ in self.between))
        translated = segment.has_letters
        for number, run in enumerate(self.runs):
            self.pieces.append((len(self.segments), number) if translated else run)
            if number < len(self.between):
                self.pieces += self.between[number][1]
        if translated:
            self._add(segment, tuple(self.runs))
        self.runs, self.between = [], []

    def _attach_notes(self) -> None:
        """Make the marks of notes, such as <sup>[1]</sup>, objects behind their words."""
        if not any(mark is Mark.SCRIPT or _is_note(pieces) for mark, pieces in self.between):
            return
        runs, between = [self.runs[0]], list[tuple[Mark, list[Piece]]]()
        place = 0
        while place < len(self.between):
            end = self._end_of_note(place, runs[-1] or (runs[-2] if len(runs) > 1 else ""))
            pieces = [*self.between[place][1]]
            for number in range(place + 1, end + 1):
                pieces += [self.runs[number], *self.between[number][1]]
            between.append((Mark.ATTACHED if end > place else self.between[place][0], pieces))
            runs.append(self.runs[end + 1])
            place = end + 1
        self.runs, self.between = runs, between

    def _end_of_note(self, place: int, before: str) -> int:
        """Return the index of the markup that ends the mark of a note that begins at `place`; `place` if none does.

        before: the text before it.
        """
        mark, pieces = self.between[place]
        if mark is not Mark.SCRIPT and not _is_note(pieces):
            return place
        depth, end, linked = 0, place, _is_note(pieces)
        for end in range(place, min(len(self.between), place + MAX_NOTE)):
            kind, inner = self.between[end]
            depth += {Mark.CLOSING: -1, Mark.OPENING: 1, Mark.SCRIPT: 1}.get(kind, 0)
            linked = linked or _LINK.match(str(inner[0])) is not None
            if depth == 0:
                break
        text = entities.unescape("".join(self.runs[place + 1 : end + 1]))
        return end if depth == 0 and is_note(text, before, linked=linked) else place


MAX_NOTE: Final = 8
"""Tags in the mark of a note."""
_LINK: Final = re.compile(r"<a[\s>]", re.IGNORECASE)


def _is_note(pieces: Sequence[Piece]) -> bool:
    """Return whether markup begins a link to a note."""
    first = pieces[0]
    return isinstance(first, str) and "noteref" in first and _LINK.match(first) is not None


def _plain(raw: str) -> str:
    """Return the text of XML with its entities and CDATA sections."""
    if "<![CDATA[" not in raw:
        return entities.unescape(raw)
    parts = _CDATA.split(raw)
    return "".join(part if place % 2 else entities.unescape(part) for place, part in enumerate(parts))


def _untranslated(token: Token) -> bool:
    return (
        token.name in UNTRANSLATED
        or token.name in READINGS
        or (token.attribute("translate") or "").lower() == "no"
        or _NOT_TRANSLATED.search(token.attribute("class") or "") is not None
    )


def _is_inline(token: Token) -> bool:
    """Return whether an element is within a sentence."""
    return token.name != "pre" and (token.name in INLINE or token.name in OBJECTS or token.name in UNTRANSLATED)
