"""One HTML file with everything in it: styles, scripts and data, so that it opens from the disk and asks no network."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any


def document(
    title: str, body: str, *, scripts: Sequence[str], data: Mapping[str, Any], styles: Sequence[str] = ()
) -> str:
    """The frame, `page.html`, around a body in a file of this room; its scripts are one module, in order.

    styles: files that come after the ones that all pages have.
    """
    # Within a script element only "</" and "<!--" could end or begin something: no "<" is left.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "/*TITLE*/": title,
        "/*BODY*/": asset(body),
        "/*CSS*/": "".join(asset(name) for name in ("steps.css", "page.css", *styles)),
        "/*JS*/": "".join(asset(name) for name in scripts),
        "/*DATA*/": text,
    }
    pieces = re.split("(" + "|".join(map(re.escape, parts)) + ")", asset("page.html"))
    return "".join(parts.get(piece, piece) for piece in pieces)


def asset(name: str) -> str:
    """The text of a file of this room."""
    return files("translume.drawing").joinpath(name).read_text(encoding="utf-8")
