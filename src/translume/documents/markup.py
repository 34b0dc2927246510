"""HTML in pieces of its own text: nothing is parsed away, repaired or fetched, so all that is no text stays as it is.

The rules are those of the HTML standard's tokenizer (html.spec.whatwg.org, section 13.2.5), in time linear in the text:
a parser that builds a tree would write the document anew, with other quotes, other cases, other elements.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

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
"""Elements in which nothing but their own end is markup."""


@dataclass(frozen=True, slots=True)
class Token:
    """A stretch of HTML as it is written.  name: of a tag's element, in small letters; empty for others."""

    kind: Literal["text", "opens", "closes", "other"]
    text: str
    name: str = ""

    def attribute(self, wanted: str) -> str | None:
        """The value of an attribute of a tag, as it is written; empty without one; None where it is not there."""
        inside = _TAG.match(self.text)
        for found in _FIELD.finditer(inside["attributes"] if inside else ""):
            if found["name"].lower() == wanted:
                return found["double"] or found["single"] or found["bare"] or ""
        return None


def tokens(html: str) -> Iterator[Token]:
    """The tokens of HTML; joined they are the HTML. What begins a tag or a comment and never ends is "other"."""
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
        if tag["slash"] or not (name in RAW or name == "plaintext"):
            continue
        end = len(html) if name == "plaintext" else _raw_end(html, place, name)
        if end > place:
            yield Token("text", html[place:end])
        place = end


def _other_end(html: str, begin: int) -> int:
    """Where what begins with `<` and is no whole tag ends: a comment, a doctype, a tag that the end of all cuts."""
    if html.startswith("<!--", begin):
        # <!--> and <!---> are whole comments.
        for short in ("<!-->", "<!--->"):
            if html.startswith(short, begin):
                return begin + len(short)
        found = _COMMENT_END.search(html, begin + 4)
        return found.end() if found else len(html)
    # A tag that is cut by the end of all is dropped by browsers; <!doctype>, <?x> and </3> end with the next >.
    end = -1 if _CUT.match(html, begin) else html.find(">", begin)
    return end + 1 if end >= 0 else len(html)


def _raw_end(html: str, begin: int, name: str) -> int:
    """Where the text of an element such as <script> ends, before its end tag."""
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
