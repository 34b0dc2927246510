"""A classifier's answer as a figure and in a notebook."""

import math
from collections.abc import Iterator
from html import escape

import numpy as np
from matplotlib.figure import Figure

from translume.drawing.heat_map import heat_map
from translume.errors import SettingsError, nearest
from translume.inspection import ClassTrace

FOR, AGAINST = "26,127,90", "179,53,43"
"""The page's colours."""
SHADED, SLIGHT = 0.75, 0.1
"""Of the strongest token's ground; and the nats that are not worth a strong one, whatever the others are."""


def plot_evidence(trace: ClassTrace, method: str | None = None) -> Figure:
    """What each token says for each of the first classes, by a method: blue for it, red against it."""
    known = {str(each.method): each for each in trace.evidence}
    if not known:
        raise SettingsError("evidence: the trace holds none; ask for it: trace_classification(…, show=('occlusion',))")
    chosen = trace.evidence[0].method if method is None else method
    if chosen not in known:
        raise SettingsError(f"method: found '{chosen}'{nearest(chosen, known)}")
    found = known[chosen]
    values = np.array([[math.nan if each is None else each for each in row] for row in found.values])
    most = float(np.nanmax(np.abs(values), initial=1e-9))
    rows = [f"{each.label} {each.p:.3f}" for each in trace.classes[: len(values)]]
    columns = [trace.shown(token) for token in trace.source_tokens]
    title = f"{found.method} (against {found.baseline})"
    return heat_map(values, (rows, columns), title, "RdBu", limits=(-most, most), unit="nats")


def class_notebook(trace: ClassTrace) -> str:
    """HTML to stand inside another page: the text, shaded by what speaks for its likeliest class, and the classes."""
    classes = ", ".join(f"{each.label} {each.p:.3f}" for each in trace.classes[:5])
    others = sum(each.p for each in trace.classes[5:])
    if trace.classes[5:] and not trace.facts.several:
        classes += f", others {others:.3f}"
    given = ", ".join(trace.labels) or "none"
    return (
        '<div style="font-family:system-ui,sans-serif;line-height:2">'
        f"<div>{''.join(_tokens(trace))}</div>"
        f'<div style="font-size:90%"><b>{escape(given)}</b> <span style="opacity:.75">{escape(classes)}</span>'
        "</div></div>"
    )


def _tokens(trace: ClassTrace) -> Iterator[str]:
    row = trace.evidence[0].values[0] if trace.evidence else (None,) * len(trace.source_tokens)
    most = max([SLIGHT, *(abs(each) for each in row if each is not None)])
    for token, value in zip(trace.source_tokens, row, strict=True):
        share = SHADED * abs(value or 0.0) / most
        colour = FOR if (value or 0.0) >= 0 else AGAINST
        told = "" if value is None else f"{trace.evidence[0].method} {value:+z.2f} for {trace.classes[0].label}"
        style = f"padding:1px 3px;margin:0 1px;border-radius:4px;background:rgba({colour},{share:.3f})"
        yield f'<span style="{style}" title="{escape(told)}">{escape(trace.shown(token))}</span>'
