"""Markdown as segments: each paragraph, heading and cell is one, with links and emphasis as its markup.

Blocks and inlines are found by the rules of CommonMark 0.31 and GitHub's tables, in time linear in the length. Code,
addresses, HTML, front matter and all else stay as they are written. The text of an image is a segment of its own. A
translated paragraph is one line.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from translume.documents.encoding import EncodedText
from translume.documents.marked_text import (
    OBJECT,
    PLACEHOLDERS,
    Choice,
    MarkedText,
    Piece,
    Syntax,
    TextBuilder,
    read_entity,
    spaced,
    together,
)
from translume.documents.segments import Mark, Segment, check_markup, check_segments

_FRONT_MATTER: Final = re.compile(
    r"(---|\+\+\+)[ \t]*\r?\n(?=\s*(?:[\w\"-]+\s*[:=]|#|\1))(?:(?!\1).*\n)*+(?:\1[ \t]*(?:\r?\n|$))"
)
_QUOTE: Final = re.compile(r"(?:[ \t]*> ?)*+")
_MARKER: Final = re.compile(r"(?:[-+*]|(\d{1,9})[.)])(?:[ \t]{1,4}(?![ \t])|[ \t]|(?=\r?\n?$))(?:\[[ xX]\][ \t]+)?")
_NOTE: Final = re.compile(r"\[\^[^\]]+\]:[ \t]*")
_FENCE: Final = re.compile(r"(`{3,})[^`]*$|(~{3,}|\$\$(?=\s*$))")
_RULE: Final = re.compile(r"([-*_])[ \t]*+(?:\1[ \t]*+){2,}\s*$|:::|\{%.*%\}\s*$")
_UNDERLINE: Final = re.compile(r"(?:-+|=+)\s*$")
_DELIMITERS: Final = re.compile(r"(?=.*\|)\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*+\|?\s*$")
_HEADING: Final = re.compile(r"#{1,6}(?:[ \t]+|(?=\r?\n?$))")
_KEPT: Final = re.compile(r"\[(?!\^)[^\]]+\]:|!!!|\?\?\?")
"""Lines outside of paragraphs that stay as they are: definitions of links, and containers of a dialect."""
_LABEL: Final = re.compile(r"^[ >]*\[(?!\^)([^\]\n]+)\]:", re.MULTILINE)
DEEPEST: Final = 20
"""Maximum number of markers of lists that are read in a line."""
_BLOCKS: Final = (
    "address article aside base blockquote body center col colgroup dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hr html iframe legend li link main "
    "menu menuitem nav noframes ol optgroup option p param search section summary table tbody td tfoot th thead title "
    "tr track ul"
)
_HTML: Final = tuple(
    (re.compile(begin, re.IGNORECASE), re.compile(end, re.IGNORECASE))
    for begin, end in (
        (r"<(?:script|pre|style|textarea)\b", "</(?:script|pre|style|textarea)>"),
        ("<!--", "-->"),
        (r"<\?", r"\?>"),
        ("<![a-z]", ">"),
        (rf"</?(?:{_BLOCKS.replace(' ', '|')})(?=[\s/>])", r"^\s*$"),
        (r"</?[a-z][^<>]*>\s*$", r"^\s*$"),
    )
)
"""What begins a block of HTML, and what ends it. The last kind is only outside of paragraphs."""
_ESCAPED: Final = r"\\[!-/:-@\[-`{-~]"
_INLINE: Final = re.compile(
    rf"(?P<code>`+)|(?P<hard>(?<! )(?: {{2,}}|\\)\r?\n[ \t>]*)"
    r"|(?P<object><[A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]*>|<[^\s<>@]+@[^\s<>]+>|\[\^[^\[\]\s]+\]"
    r"|<!--(?:[^-]|-(?!->)){0,500}+-->|\$\$[^$]+\$\$|\$[^\s$](?:[^$\n]*[^\s$])?\$(?!\d))"
    rf"|(?P<text>{_ESCAPED}|</?[A-Za-z][^<>]{{0,1000}}>|(?:{PLACEHOLDERS}))"
    r"|(?P<bracket>!?\[|\])|(?P<emphasis>\*+|_+|~~)"
)
_TARGET: Final = re.compile(
    r"\]\(\s*(?:<[^<>\n]*>|[^\s()]*+(?:\([^\s()]*\)[^\s()]*+)*+)"
    r"""(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)|\](?:\[(?P<label>[^\[\]]*)\])?"""
)
_SPECIAL: Final = re.compile(rf"{_ESCAPED}|&(?:[A-Za-z0-9]{{2,32}}|#[0-9A-Za-z]{{1,8}});|(?<![ \t])[ \t]*+\r?\n[ \t>]*")
_MARKUP: Final = re.compile(r"[\\`*\[\]<]|(?<!\w)_|_(?!\w)|~~|&(?=[A-Za-z#][A-Za-z0-9]*;)")
_BLOCK_START: Final = re.compile(r"(?:\d{1,9}(?=[.)]\s)|(?=[#>+-]+(?:\s|$)|>|={1,}$|~~~|:::|!!!))")


def _read(match: re.Match[str]) -> str:
    special = match.group()
    meaning = " " if "\n" in special else special[1:] if special[0] == "\\" else read_entity(match)
    return OBJECT if meaning in ("<", ">") else meaning  # what is escaped is no tag


def _write(text: str) -> str:
    return _MARKUP.sub(lambda match: "\\" + match.group(), text)


def _write_first(text: str) -> str:
    """Write the beginning of a paragraph, which must not look like another kind of block."""
    text = _write(text)
    match = _BLOCK_START.match(text)
    return f"{match.group()}\\{text[match.end() :]}" if match else text


_INSIDE: Final = Syntax(_SPECIAL, _read, _write)
_FIRST: Final = Syntax(_SPECIAL, _read, _write_first)
_CELL: Final = Syntax(_SPECIAL, _read, lambda text: _write_first(text).replace("|", "\\|"))


def read_markdown(data: bytes) -> MarkedText:
    """Read a Markdown file; DocumentError if it is not Unicode text or has too many lines."""
    encoded = EncodedText.from_bytes(data)
    text = encoded.text
    check_segments(text.count("\n"))
    check_markup(sum(map(text.count, "<[*_`|")))
    reader = _Reader(TextBuilder(encoded, _INSIDE), {_normal(each) for each in _LABEL.findall(text)})
    front = _FRONT_MATTER.match(text)
    begin = front.end() if front else 0
    reader.builder.keep(text[:begin])
    for line in re.findall(r"[^\n]*\n|[^\n]+", text[begin:]):
        reader.read(line)
    reader.end_paragraph()
    return reader.builder.file(adjust=_tidy)


def _normal(label: str) -> str:
    return " ".join(label.split()).casefold()


@dataclass(slots=True)
class _Reader:
    """Reads lines.  labels: of links that are defined somewhere.

    paragraph: its text, without the prefix of the first line.  depth: of the quotes around it.  offsets: columns where
    the texts of open items of lists begin.  fence: what ends the open code.  until: what ends the open block of HTML.
    table: whether the lines are rows.  empty: whether the line before has only the marker of an item.
    """

    builder: TextBuilder
    labels: set[str]
    paragraph: str = ""
    depth: int = 0
    offsets: list[int] = field(default_factory=list)
    fence: str = ""
    until: re.Pattern[str] | None = None
    table: bool = False
    empty: bool = False

    def read(self, line: str) -> None:
        """Read a line."""
        quote = _QUOTE.match(line)
        begin = quote.end() if quote else 0
        depth = line.count(">", 0, begin)
        body = line[begin:].lstrip(" \t")
        indent = len(line[begin : len(line) - len(body)].expandtabs(4))
        inside = depth >= self.depth and (not self.offsets or indent >= self.offsets[-1] or not body.strip())
        if (self.fence or self.until) and inside:
            ended = body.startswith(self.fence) and not body.strip().strip(self.fence[:1]) if self.fence else False
            if ended or (self.until and self.until.search(body)):
                self.fence, self.until = "", None
            self.builder.keep(line)
            return
        self.fence, self.until = "", None
        if depth > self.depth:
            self.end_paragraph()
        if not body.strip():
            self._keep(line)
            # An item cannot begin with a blank line.
            self.offsets = self.offsets[:-1] if self.empty else self.offsets
            self.empty = False
            return
        self.depth, self.empty = depth, False
        if not self.paragraph:
            self._pop(indent)
            code = line.startswith(("    ", "\t")) if not self.offsets else indent >= self.offsets[-1] + 4
            if code or (depth and indent >= 4 and not self.offsets):
                self._keep(line)
                return
        self._block(line, len(line) - len(body), indent)

    def _pop(self, indent: int) -> None:
        while self.offsets and indent < self.offsets[-1]:
            self.offsets.pop()

    def _keep(self, text: str) -> None:
        self.end_paragraph()
        self.table = False
        self.builder.keep(text)

    def _block(self, line: str, begin: int, indent: int) -> None:
        """Read a line that is neither blank nor code.  begin: of its text, behind quotes and markers of lists."""
        for _ in range(DEEPEST):
            body = line[begin:]
            if self.paragraph and (_UNDERLINE.match(body) or _DELIMITERS.match(body)):
                self._underlined(line, body)
                return
            item = None if _RULE.match(body) else _MARKER.match(body)
            if item and self.paragraph and not self.offsets and item[1] not in (None, "1"):
                item = None
            marker = item or _NOTE.match(body)
            if marker is None:
                break
            self._keep(line[:begin])
            self._pop(indent)
            task = marker.group().find("[") if item else 0
            width = 4 if item is None else task if task > 0 else len(marker.group())
            indent += width
            self.offsets.append(indent)
            line, begin = line[begin:], marker.end()
            while line[begin : begin + 1] == ">":
                begin, self.depth = begin + 1 + (line[begin + 1 : begin + 2] == " "), self.depth + 1
            if line[begin : begin + 1].isspace() or not line[begin:]:  # an empty item, or code
                self._keep(line)
                self.empty = not line[begin:].strip()
                return
        else:
            self._keep(line)
            return
        fence, heading = _FENCE.match(body), _HEADING.match(body)
        kinds = _HTML[:-1] if self.paragraph else _HTML
        until = next((ends for begins, ends in kinds if begins.match(body)), None)
        if fence or until or _RULE.match(body) or (not self.paragraph and _KEPT.match(body)):
            self._keep(line)
            self._pop(indent)
            self.fence = (fence[1] or fence[2]) if fence else ""
            self.until = None if until is None or until.search(body) else until
            if body.startswith(("!!!", "???")):
                self.offsets.append(indent + 4)
        elif heading:
            self._keep(line[: begin + heading.end()])
            text = body[heading.end() :]
            bare = text.rstrip().rstrip("#")
            self._content(text, bare if bare.endswith((" ", "\t")) else text)
        elif self.table:
            self._row(line)
        elif self.paragraph:
            self.paragraph += line
        else:
            self.builder.keep(line[:begin])
            self.paragraph = body

    def _underlined(self, line: str, body: str) -> None:
        """Read the line below a heading, or below the first row of a table."""
        table = not _UNDERLINE.match(body)
        if table:
            end = self.paragraph.rfind("\n", 0, -1) + 1
            self.paragraph, header = self.paragraph[:end], self.paragraph[end:]
            self.end_paragraph()
            self._row(header)
        self._keep(line)
        self.table = table

    def _row(self, line: str) -> None:
        self.builder.syntax = _CELL
        for cell in re.split(r"(?<!\\)(\|)", line):
            text = cell.lstrip()
            self.builder.keep(cell[: len(cell) - len(text)])
            self._content(text, text, _CELL)
        self.builder.syntax = _INSIDE

    def end_paragraph(self) -> None:
        """Close the open paragraph."""
        text, self.paragraph = self.paragraph, ""
        self._content(text, text)

    def _content(self, text: str, shown: str, first: Syntax = _FIRST) -> None:
        """Read the inlines of a paragraph.  shown: its text without the end of a heading."""
        shown = shown.rstrip()
        if shown:
            _Inlines(shown, self.builder, self.labels, first).read()
        self.builder.keep(text[len(shown) :])


@dataclass(slots=True)
class _Token:
    """Markup within a paragraph.  mark: None for what is text.  left: number of its signs that are not paired.

    text: the length of an image's text, behind its two signs.
    """

    begin: int
    end: int
    mark: Mark | None = None
    left: int = 0
    label: str = ""
    partner: "_Token | None" = None
    number: int = 0
    text: int = 0


@dataclass(slots=True)
class _Inlines:
    """Reads the inlines of a paragraph.  brackets, openers: indices of tokens that wait for their end."""

    raw: str
    builder: TextBuilder
    labels: set[str]
    first: Syntax
    tokens: list[_Token] = field(default_factory=list)
    brackets: list[int] = field(default_factory=list)
    openers: list[int] = field(default_factory=list)

    def read(self) -> None:
        """Read the paragraph into a segment."""
        codes: dict[int, list[int]] = {}
        for code in reversed([*re.finditer("`+", self.raw)]):
            codes.setdefault(len(code.group()), []).append(code.start())
        end = 0
        while match := _INLINE.search(self.raw, end):
            begin, end = match.span()
            if match["code"]:
                same = codes.get(end - begin, [])
                while same and same[-1] < end:
                    same.pop()
                if same:
                    end = same[-1] + end - begin
                    self.tokens.append(_Token(begin, end, Mark.OBJECT))
            elif match["hard"] or match["object"]:
                self.tokens.append(_Token(begin, end, Mark.LINE_BREAK if match["hard"] else Mark.OBJECT))
            elif match["emphasis"]:
                self._emphasis(_Token(begin, end, left=end - begin))
            elif match["bracket"] == "]":
                end = self._link(begin)
            elif match["bracket"]:
                self.brackets.append(len(self.tokens))
                self.tokens.append(_Token(begin, end))
        self._write()

    def _emphasis(self, token: _Token) -> None:
        """Pair a run of signs with earlier ones (CommonMark, section 6.2)."""
        sign = self.raw[token.begin]
        before, after = self.raw[token.begin - 1 : token.begin] or " ", self.raw[token.end : token.end + 1] or " "
        left = not after.isspace() and (after.isalnum() or not before.isalnum())
        right = not before.isspace() and (before.isalnum() or not after.isalnum())
        opens = left and (sign != "_" or not right or not before.isalnum())
        if right and (sign != "_" or not left or not after.isalnum()):
            same = [place for place in self.openers[-9:] if self.raw[self.tokens[place].begin] == sign]
            while same and token.left:
                place = same.pop()
                opener = self.tokens[place]
                paired = min(opener.left, token.left)
                opener.left, token.left = opener.left - paired, token.left - paired
                opener.mark, token.mark, token.partner = Mark.OPENING, Mark.CLOSING, opener
                while self.openers and self.openers[-1] >= place + (opener.left > 0):
                    self.openers.pop()
        if opens and token.mark is None:
            self.openers.append(len(self.tokens))
        self.tokens.append(token)

    def _link(self, begin: int) -> int:
        """Read a bracket that closes, and return the end of the link."""
        match = _TARGET.match(self.raw, begin)
        if not (match and self.brackets):
            return begin + 1
        place = self.brackets.pop()
        opener = self.tokens[place]
        label = match["label"] or self.raw[opener.end : begin]
        if not match.group().endswith(")") and _normal(label) not in self.labels:
            return begin + 1
        if self.raw[opener.begin] == "!":
            del self.tokens[place:]
            self.tokens.append(_Token(opener.begin, match.end(), Mark.OBJECT, text=begin - opener.end))
        else:
            opener.mark = Mark.OPENING
            shortcut = not match["label"] and not match.group().endswith(")")
            self.tokens.append(_Token(begin, match.end(), Mark.CLOSING, label=label if shortcut else ""))
        while self.openers and self.openers[-1] >= place:
            self.openers.pop()
        return match.end()

    def _write(self) -> None:
        builder, place, depth = self.builder, 0, 0
        shown = {token.begin: self._image(token) for token in self.tokens if token.text}
        for token in self.tokens:
            if token.mark is None:
                continue
            raw = self.raw[token.begin : token.end]
            builder.text(self.raw[place : token.begin], None if builder.runs else self.first)
            place, token.number = token.end, len(builder.between)
            depth += {Mark.OPENING: 1, Mark.CLOSING: -1}.get(token.mark, 0)
            if token.mark is Mark.LINE_BREAK and depth == 0:
                builder.keep(raw)
                continue
            if token.begin in shown:
                builder.mark(Mark.OBJECT, shown[token.begin])
                continue
            changed = builder.changed([len(builder.segments)])
            builder.mark(token.mark, raw, Choice(changed, (f"][{token.label}]",), raw) if token.label else raw)
            if token.partner and not token.left and not token.partner.left:
                self._pair(token.partner.number, token.number)
        builder.text(self.raw[place:], None if builder.runs else self.first)

    def _image(self, token: _Token) -> Piece:
        """Return an image whose text is a segment."""
        end = token.begin + 2 + token.text
        pieces = self.builder.inner(self.raw[token.begin + 2 : end], _INSIDE, self.raw[token.begin : token.begin + 2])
        return together(*pieces, self.raw[end : token.end])

    def _pair(self, first: int, last: int) -> None:
        """Leave out emphasis that lost its text, and write it with asterisks within a word, so that no sign shows."""
        between, segment = self.builder.between, len(self.builder.segments)
        if any(mark is Mark.OBJECT for mark, _, _ in between[first:last]):
            return
        changed = self.builder.changed([segment])

        def shown(runs: Sequence[Sequence[str]]) -> bool:
            return not changed(runs) or any(run.strip() for run in runs[segment][first + 1 : last + 1])

        def within_word(runs: Sequence[Sequence[str]]) -> bool:
            return runs[segment][first][-1:].isalnum() or runs[segment][last + 1][:1].isalnum()

        for place in (first, last):
            mark, raw = between[place][0], str(between[place][1])
            signs = Choice(within_word, ("*" * len(raw),), raw) if raw[0] == "_" else raw
            between[place] = mark, raw, Choice(shown, (signs,), "")


def _tidy(segment: Segment, runs: Sequence[str]) -> Sequence[str]:
    """Return runs whose white space, and punctuation next to a word, is outside of emphasis, which needs it."""
    tidied = spaced(segment, runs)
    for place, mark in enumerate(segment.marks):
        left, right = tidied[place], tidied[place + 1]
        if mark is Mark.OPENING:
            moved = re.match(r"\s+|[^\w\s]+" if left[-1:].isalnum() else r"\s+", right)
            if moved and moved.end() < len(right):
                tidied[place : place + 2] = left + moved.group(), right[moved.end() :]
        elif mark is Mark.CLOSING:
            moved = re.match(r"\s+|[^\w\s]+" if right[:1].isalnum() else r"\s+", left[::-1])
            if moved and moved.end() < len(left):
                tidied[place : place + 2] = left[: -moved.end()], moved.group()[::-1] + right
    # White space at the end may be a line break of the source whose words were moved; it would be a blank line.
    for place, mark in zip(range(len(tidied) - 1, 0, -1), reversed(segment.marks), strict=True):
        if tidied[place] or mark not in (Mark.OPENING, Mark.CLOSING):
            break
        tidied[place - 1] = tidied[place - 1].rstrip()
    return tidied
