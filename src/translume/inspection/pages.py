"""Self-contained HTML pages of inspected values: they open from disk, without network access, and in notebooks."""

import base64
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from translume.json_values import to_json


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of page.  scripts: joined to one module, in this order, after those of all pages."""

    title: str
    scripts: tuple[str, ...]
    styles: tuple[str, ...] = ()


KINDS = {
    "trace": _Kind("Inside a translation", ("beam.js", "frames.js", "page.js")),
    "class": _Kind("Inside a classification", ("class.js",)),
    "corpus": _Kind("Corpus lens", ("chart.js", "corpus.js"), ("corpus.css",)),
    "sweep": _Kind("Sweep", ("chart.js", "table.js", "sweep.js"), ("corpus.css",)),
    "tune": _Kind("Search", ("chart.js", "table.js", "tune.js"), ("corpus.css",)),
}


class HtmlPage(ABC):
    """Base of values that have an HTML page."""

    __slots__ = ()

    @abstractmethod
    def to_page(self) -> str:
        """Return the HTML page."""

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return f'<iframe srcdoc="{escape(self.to_page())}" style="width:100%;height:40em;border:0"></iframe>'


def html_page(kind: str, data: Mapping[str, object], *, title: str = "") -> str:
    """Return a page of one of KINDS that shows `data`; title: instead of the kind's own."""
    chosen = KINDS[kind]
    parts = {
        "/*TITLE*/": title or chosen.title,
        "/*BODY*/": asset(f"{kind}.html"),
        "/*CSS*/": "".join(map(asset, ("steps.css", "page.css", *chosen.styles))),
        "/*JS*/": "".join(map(asset, ("steps.js", *chosen.scripts))),
        # Escape "<", so that no "</script>" or "<!--" in the data can end the script element.
        "/*DATA*/": to_json(data).replace("<", "\\u003c"),
    }
    pieces = re.split("(" + "|".join(map(re.escape, parts)) + ")", asset("page.html"))
    return "".join(parts.get(piece, piece) for piece in pieces)


def asset(name: str) -> str:
    """Return the text of a file in this package."""
    return files("translume.inspection").joinpath(name).read_text(encoding="utf-8")


def trace_page_hashes() -> tuple[str, str]:
    """Return the Content-Security-Policy hashes of the style and the script of every trace page."""
    html = html_page("trace", {})
    return _hash(html, "<style>(.*?)</style>"), _hash(html, '<script type="module">(.*?)</script>')


def _hash(html: str, pattern: str) -> str:
    (text,) = re.findall(pattern, html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
