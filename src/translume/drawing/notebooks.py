"""HTML of traces for notebooks: coloured tokens and a table that unfolds, without scripts or style sheets."""

import base64
from collections.abc import Iterator
from html import escape
from io import BytesIO

from matplotlib.image import imsave

from translume.drawing.frames import pixels_of, size_of
from translume.drawing.terminal import candidate_list
from translume.inspection import ClassTrace, Trace
from translume.inspection.values import Frames, Step, Token

DOUBT, CHOSEN = "214,93,14", "37,99,168"
"""The colours of the HTML pages; they work on light and dark backgrounds."""
FOR, AGAINST = "26,127,90", "179,53,43"
"""Colours of evidence for and against a class."""
SHADED, MIN_EVIDENCE = 0.75, 0.1
"""Opacity of the strongest token, and the nats below which evidence is never drawn strongly."""
UNSURE = 4.0
"""−log p, in nats, from which a token has the strongest colour."""
PICTURE = 96
"""Pixels of the height of a source that is no text."""
BAR = 120
"""Pixels of a bar of probability 1."""
CELL = "padding:1px 8px;text-align:left;white-space:nowrap;border:0"


def notebook(trace: Trace) -> str:
    """Return HTML to embed in a notebook: the texts, then a folded table of the steps.

    The less likely a token, the stronger its background. Hovering shows the candidates.
    """
    source = "".join(_plain(token) for token in trace.source_tokens) if trace.frames is None else _picture(trace.frames)
    target = "".join(_coloured(token, step) for token, step in zip(trace.target_tokens, trace.steps, strict=True))
    rows = "".join(_row(token, step) for token, step in zip(trace.target_tokens, trace.steps, strict=True))
    names = ("token", "p", "", "rank", "entropy", "gain", "likeliest tokens, and all others")
    head = "".join(f'<th style="{CELL};font-weight:600">{name}</th>' for name in names)
    summary = f"{trace.log_p:.3f} nats, finished by {trace.finished_by}, head {trace.facts.head}"
    return (
        '<div style="font-family:system-ui,sans-serif;line-height:2">'
        f'<div style="opacity:.75">{source}</div><div>{target}</div>'
        f'<details style="line-height:1.5"><summary>{escape(summary)}</summary>'
        f'<table style="border-collapse:collapse;font-size:90%"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>'
        "</table></details></div>"
    )


def _picture(frames: Frames) -> str:
    """Return a spectrogram or an image as a PNG in HTML, with the size of the source as its text."""
    written = BytesIO()
    imsave(written, pixels_of(frames), format="png", cmap="gray" if frames.kind == "image" else "magma")
    content = base64.b64encode(written.getvalue()).decode()
    style = f"height:{PICTURE}px;max-width:100%;image-rendering:pixelated"
    return f'<img style="{style}" alt="{escape(size_of(frames))}" src="data:image/png;base64,{content}">'


def _plain(token: Token) -> str:
    return f'<span style="padding:1px 3px">{escape(token.text)}</span>'


def _coloured(token: Token, step: Step) -> str:
    share = 0.85 * max(0.0, min(1.0, -step.log_p_model / UNSURE))
    title = f"p {step.p_model:.3f}, rank {step.rank}\n{candidate_list(step.top_model, chr(10))}"
    style = f"padding:1px 3px;margin:0 1px;border-radius:4px;background:rgba({DOUBT},{share:.3f})"
    return f'<span style="{style}" title="{_attribute(title)}">{escape(token.text)}</span>'


def _attribute(text: str) -> str:
    return escape(text).replace("\n", "&#10;")


def _row(token: Token, step: Step) -> str:
    bar = f'<div style="width:{BAR * step.p_model:.0f}px;height:9px;background:rgba({CHOSEN},.9)"></div>'
    gain = "" if step.prior is None or step.prior.gain is None else f"{step.prior.gain:+.1f}"
    cells = (
        escape(token.text), f"{step.p_model:.3f}", bar, str(step.rank), f"{step.entropy:.2f}", gain,
        escape(candidate_list(step.top_model)),
    )  # fmt: skip
    return "<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells) + "</tr>"


def class_notebook(trace: ClassTrace) -> str:
    """Return HTML to embed in a notebook: the text, shaded by evidence for its likeliest class, and the classes."""
    classes = ", ".join(f"{each.label} {each.p:.3f}" for each in trace.classes[:5])
    others = sum(each.p for each in trace.classes[5:])
    if trace.classes[5:] and not trace.facts.several:
        classes += f", others {others:.3f}"
    given = ", ".join(trace.labels) or "none"
    return (
        '<div style="font-family:system-ui,sans-serif;line-height:2">'
        f"<div>{''.join(_evidence_tokens(trace))}</div>"
        f'<div style="font-size:90%"><b>{escape(given)}</b> <span style="opacity:.75">{escape(classes)}</span>'
        "</div></div>"
    )


def _evidence_tokens(trace: ClassTrace) -> Iterator[str]:
    row = trace.evidence[0].values[0] if trace.evidence else (None,) * len(trace.source_tokens)
    most = max([MIN_EVIDENCE, *(abs(each) for each in row if each is not None)])
    for token, value in zip(trace.source_tokens, row, strict=True):
        share = SHADED * abs(value or 0.0) / most
        colour = FOR if (value or 0.0) >= 0 else AGAINST
        title = "" if value is None else f"{trace.evidence[0].method} {value:+z.2f} for {trace.classes[0].label}"
        style = f"padding:1px 3px;margin:0 1px;border-radius:4px;background:rgba({colour},{share:.3f})"
        yield f'<span style="{style}" title="{escape(title)}">{escape(trace.shown(token))}</span>'
