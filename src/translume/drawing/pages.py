"""Self-contained HTML pages of traces, class traces and corpus lenses: they open from disk, without network access."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from translume.inspection import BeamRecord, ClassTrace, CorpusLens, Forced, Trace
from translume.inspection.text import TextTrace


def html_document(
    title: str, body: str, *, scripts: Sequence[str], data: Mapping[str, Any], styles: Sequence[str] = ()
) -> str:
    """Fill the frame `page.html` with a body, styles, scripts (joined to one module, in order) and data.

    body, scripts, styles: names of files in this package; styles are added to those of all pages.
    """
    # Escape "<", so that no "</script>" or "<!--" in the data can end the script element.
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
    """Return the text of a file in this package."""
    return files("translume.drawing").joinpath(name).read_text(encoding="utf-8")


TRACE_SCRIPTS = ("steps.js", "beam.js", "frames.js", "page.js")
Alternatives = Mapping[int, Mapping[int, Forced]]
"""The results of forcing other tokens, by step and by token id."""


def trace_page(trace: Trace, *, beam: BeamRecord | None = None, alternatives: Alternatives | None = None) -> str:
    """Return the page of a trace, with the search record and the forced alternatives if given."""
    data = {
        "trace": trace.to_dict(),
        "beam": None if beam is None else beam.to_dict(),
        "alternatives": {
            step: {id_: {"text": each.after.text, "log_p": each.after.log_prob} for id_, each in tokens.items()}
            for step, tokens in (alternatives or {}).items()
        },
    }
    return html_document("Inside a translation", "trace.html", scripts=TRACE_SCRIPTS, data=data)


def text_page(trace: TextTrace) -> str:
    """Return the page of a text of a language model: the page of a translation without a source and without rules."""
    values = trace.to_dict()
    steps = [
        {**step, "p_model": step["p"], "log_p_model": step["log_p"], "p_used": step["p"], "rules": [], "prior": None}
        | {"top_model": step["top"], "top_used": {"candidates": []}}
        for step in values["steps"]
    ]
    for step in steps:
        for each in step["top"]["candidates"]:
            each["p_used"] = each["p_model"]
    adapted: dict[str, Any] = {"source_tokens": [], "source_words": [], "attributions": [], "steps": steps}
    adapted |= {"target_tokens": values["tokens"], "target_words": values["words"]}
    adapted["attention"] = values["attention"] and {"decoder": values["attention"]}
    data = {"trace": values | adapted, "beam": None, "alternatives": {}}
    return html_document("Inside a text", "trace.html", scripts=TRACE_SCRIPTS, data=data)


def class_page(trace: ClassTrace) -> str:
    """Return the page of a class trace: the classes, and the evidence of each token."""
    return html_document(
        "Inside a classification", "class.html", scripts=("steps.js", "class.js"), data={"trace": trace.to_dict()}
    )


def corpus_page(lens: CorpusLens, *, title: str = "") -> str:
    """Return the page of a corpus lens; title: such as the model and its files."""
    return html_document(
        "Corpus lens",
        "corpus.html",
        scripts=("steps.js", "corpus.js"),
        styles=("corpus.css",),
        data={"lens": lens.to_dict(), "title": title},
    )


def trace_page_hashes() -> tuple[str, str]:
    """Return the Content-Security-Policy hashes of the style and the script of every trace page."""
    html = html_document("", "trace.html", scripts=TRACE_SCRIPTS, data={})
    return _hash(html, "<style>(.*?)</style>"), _hash(html, '<script type="module">(.*?)</script>')


def _hash(html: str, pattern: str) -> str:
    (text,) = re.findall(pattern, html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
