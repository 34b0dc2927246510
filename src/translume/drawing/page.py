"""One self-contained page of a trace: it opens from the disk, asks no network, and works by mouse and keyboard."""

import json
import re
from collections.abc import Mapping
from importlib.resources import files

from translume.inspection import BeamRecord, Forced, Trace

Alternatives = Mapping[int, Mapping[int, Forced]]
"""What forcing another token comes to, by step and by the token's id."""


def page(trace: Trace, *, beam: BeamRecord | None = None, alternatives: Alternatives | None = None) -> str:
    """The HTML of a trace, with the search's record and what other tokens would have come to, where they are given."""
    data = {
        "trace": trace.to_dict(),
        "beam": None if beam is None else beam.to_dict(),
        "alternatives": {
            step: {id_: {"text": each.after.text, "log_p": each.after.log_prob} for id_, each in tokens.items()}
            for step, tokens in (alternatives or {}).items()
        },
    }
    # Within a script element only "</" and "<!--" could end or begin something: no "<" is left.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"/*CSS*/": _asset("page.css"), "/*JS*/": _asset("beam.js") + _asset("page.js"), "/*DATA*/": text}
    pieces = re.split("(" + "|".join(map(re.escape, parts)) + ")", _asset("page.html"))
    return "".join(parts.get(piece, piece) for piece in pieces)


def _asset(name: str) -> str:
    return files("translume.drawing").joinpath(name).read_text(encoding="utf-8")
