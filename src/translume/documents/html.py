"""HTML as segments: the text between block elements is one segment, with the tags of inline elements as its markup.

HTML is split into tokens by the rules of the HTML standard (html.spec.whatwg.org, section 13.2.5), in time linear in
its length. No tree is built: writing one would change quotes, case and elements. Everything but text stays as it is.
"""

import html as entities
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from translume.documents.segments import Mark, Segment, check_markup, check_segments

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
OBJECTS: Final = _elements("img wbr input audio video canvas embed")
"""Elements within a sentence that take the place of a word."""
UNTRANSLATED: Final = _elements(
    "script style code kbd samp var textarea svg math template xmp iframe noembed noframes object plaintext"
)
"""Elements whose content is not translated."""
FOREIGN: Final = _elements("math svg")
"""Elements that `/>` closes in HTML too."""
VOID: Final = _elements("area base br col embed hr img input link meta param source track wbr")
WITHOUT_END: Final = _elements("p li dt dd option optgroup tr td th rt rp")
"""Elements whose end tag may be omitted before the next such element and before the end of their container."""
CONTAINERS: Final = _elements("ul ol dl table thead tbody tfoot tr select div section article main body html")
"""Containers of those elements."""
_NOT_TRANSLATED: Final = re.compile(r"(?:^|\s)notranslate(?:\s|$)")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of HTML source.  name: of a tag's element, in lower case; empty for other tokens."""

    kind: Literal["text", "opens", "closes", "other"]
    text: str
    name: str = ""

    def attribute(self, name: str) -> str | None:
        """Return an attribute's value as it is written; empty if it has no value, None if it is missing."""
        inside = _TAG.match(self.text)
        for found in _FIELD.finditer(inside["attributes"] if inside else ""):
            if found["name"].lower() == name:
                return found["double"] or found["single"] or found["bare"] or ""
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
            place = _other_end(html, begin)
            yield Token("other", html[begin:place])
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


def _other_end(html: str, begin: int) -> int:
    """Return the end of what begins with `<` but is not a tag: a comment, a doctype, or a tag cut off by the end."""
    if html.startswith("<!--", begin):
        # <!--> and <!---> are complete comments.
        for short in ("<!-->", "<!--->"):
            if html.startswith(short, begin):
                return begin + len(short)
        found = _COMMENT_END.search(html, begin + 4)
        return found.end() if found else len(html)
    # Browsers drop a tag that is cut off by the end of the text; <!doctype>, <?x> and </3> end at the next >.
    end = -1 if _CUT.match(html, begin) else html.find(">", begin)
    return end + 1 if end >= 0 else len(html)


def _raw_end(html: str, begin: int, name: str) -> int:
    """Return the end of the text of an element such as <script>, before its end tag."""
    end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)
    if name != "script":
        found = end.search(html, begin)
        return found.start() if found else len(html)
    # Within <!-- in a script, <script> … </script> is text ("script data double escaped").
    steps = re.compile(r"(?P<end></script(?=[\s/>]))|(?P<begin><script(?=[\s/>]))|<!--|-->", re.IGNORECASE)
    escaped = inner = False
    for found in steps.finditer(html, begin):
        if found["end"]:
            if not inner:
                return found.start()
            inner = False
        elif found["begin"]:
            inner = escaped
        elif found.group() == "<!--":
            escaped = True
        else:
            escaped = inner = False
    return len(html)


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlText:
    """HTML text as segments.

    pieces: unchanged source text, or (segment, run) in its place.  raw: each run as it is written, with entities.
    xml: whether it is XHTML.
    """

    pieces: tuple[str | tuple[int, int], ...]
    segments: tuple[Segment, ...]
    raw: tuple[tuple[str, ...], ...]
    xml: bool = False

    @classmethod
    def from_string(cls, html: str, *, xml: bool = False) -> "HtmlText":
        """Split a document, or a part of one, into segments; DocumentError if it has too many tags or segments."""
        check_markup(html.count("<") + html.count("="))
        reader = _Reader()
        for token in tokens(html, xml=xml):
            reader.read(token)
        reader.end_segment()
        return cls(pieces=tuple(reader.pieces), segments=tuple(reader.segments), raw=tuple(reader.raw), xml=xml)

    def with_runs(self, runs: Sequence[Sequence[str]]) -> str:
        """Return the HTML with other runs for each segment. An unchanged run is written as it was."""
        return "".join(
            piece if isinstance(piece, str) else self._written(piece, runs[piece[0]][piece[1]]) for piece in self.pieces
        )

    def _written(self, piece: tuple[int, int], run: str) -> str:
        segment, number = piece
        if run == self.segments[segment].runs[number]:
            return self.raw[segment][number]
        # XML has no entity nbsp.
        return entities.escape(run, quote=False).replace("\xa0", "&#160;" if self.xml else "&nbsp;")


@dataclass(slots=True)
class _Reader:
    """Reads tokens into pieces and segments.

    runs, between: the runs of the open segment, and the markup between them.
    skipped: name of the open element that is not translated; empty if there is none.  depth: number of open elements of
    that name.  containers: number of `CONTAINERS` open in it.  inside: whether it is within a sentence.
    """

    pieces: list[str | tuple[int, int]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    raw: list[tuple[str, ...]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    between: list[tuple[Mark, str]] = field(default_factory=list)
    skipped: str = ""
    depth: int = 0
    containers: int = 0
    inside: bool = False
    preformatted: int = 0

    def read(self, token: Token) -> None:
        """Read one token."""
        if self.skipped:
            self._skip(token)
        elif token.kind == "text":
            self._text(token.text)
        elif token.kind == "opens" and _untranslated(token) and token.name not in VOID:
            self.skipped, self.depth, self.containers, self.inside = token.name, 1, 0, _is_inline(token)
            self._mark(token.text) if self.inside else self._block(token.text)
        elif token.kind == "other":
            # Comments and the like, which are invisible.
            self._inside(Mark.CLOSING, token.text)
        elif token.name in OBJECTS:
            self._mark(token.text)
        elif token.name in INLINE:
            self._inside(Mark.OPENING if token.kind == "opens" else Mark.CLOSING, token.text)
        else:
            if token.name == "pre":
                self.preformatted = max(0, self.preformatted + (1 if token.kind == "opens" else -1))
            self._block(token.text)

    def _skip(self, token: Token) -> None:
        """Read a token of an element that is not translated."""
        step = {"opens": 1, "closes": -1}.get(token.kind, 0)
        if self.skipped in WITHOUT_END:
            next_one = step > 0 and (token.name == self.skipped or (self.skipped == "p" and not _is_inline(token)))
            if self.containers == 0 and (next_one or (step < 0 and token.name in CONTAINERS)):
                self.skipped = ""
                self.read(token)
                return
            self.containers += (token.name in CONTAINERS) * step
        self.depth += (token.name == self.skipped) * step
        inside = self.inside
        if self.depth == 0:
            self.skipped = ""
        self._mark(token.text) if inside else self._block(token.text)

    def _text(self, text: str) -> None:
        if not self.preformatted:
            self._run(text)
            return
        for number, line in enumerate(text.splitlines(keepends=True)):
            if number:
                self.end_segment()
            self._run(line)

    def _run(self, text: str) -> None:
        if len(self.runs) == len(self.between):
            self.runs.append(text)
        else:
            self.runs[-1] += text

    def _inside(self, mark: Mark, text: str) -> None:
        """Add markup to the open segment."""
        if len(self.runs) == len(self.between):
            self.runs.append("")
        self.between.append((mark, text))

    def _mark(self, text: str) -> None:
        """Add an object within a sentence. Adjacent objects become one."""
        if self.between and len(self.runs) == len(self.between) and self.between[-1][0] is Mark.OBJECT:
            self.between[-1] = (Mark.OBJECT, self.between[-1][1] + text)
        else:
            self._inside(Mark.OBJECT, text)

    def _block(self, text: str) -> None:
        self.end_segment()
        self.pieces.append(text)

    def end_segment(self) -> None:
        """Close the open segment. Without letters it stays unchanged text."""
        if len(self.runs) == len(self.between):
            self.runs.append("")
        runs = tuple(map(entities.unescape, self.runs))
        segment = Segment(runs=runs, marks=tuple(mark for mark, _ in self.between))
        translated = segment.has_letters
        for number, run in enumerate(self.runs):
            self.pieces.append((len(self.segments), number) if translated else run)
            if number < len(self.between):
                self.pieces.append(self.between[number][1])
        if translated:
            self.segments.append(segment)
            self.raw.append(tuple(self.runs))
            check_segments(len(self.segments))
        self.runs, self.between = [], []


def _untranslated(token: Token) -> bool:
    return (
        token.name in UNTRANSLATED
        or (token.attribute("translate") or "").lower() == "no"
        or _NOT_TRANSLATED.search(token.attribute("class") or "") is not None
    )


def _is_inline(token: Token) -> bool:
    """Return whether an element is within a sentence."""
    return token.name in INLINE or token.name in OBJECTS or token.name in UNTRANSLATED
