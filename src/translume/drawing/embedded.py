"""A trace for a notebook: tokens coloured by probability, and a table that opens; no script, no style of its own."""

from collections.abc import Iterator
from html import escape

from translume.inspection import Trace
from translume.inspection.values import Step, Token, Top

DOUBT, CHOSEN = "214,93,14", "37,99,168"
"""The page's colours, seen on light and dark grounds."""
UNSURE = 4.0
"""Nats at which a token is coloured most."""
BAR = 120
"""Pixels of probability one."""
CELL = "padding:1px 8px;text-align:left;white-space:nowrap;border:0"


def notebook(trace: Trace) -> str:
    """HTML to stand inside another page: the texts, then a table of the steps, closed at first.

    A token's ground is the stronger the less the model believed in it; what stands behind it shows under the mouse.
    """
    source = "".join(_plain(token) for token in trace.source_tokens)
    target = "".join(_coloured(token, step) for token, step in zip(trace.target_tokens, trace.steps, strict=True))
    rows = "".join(_row(token, step) for token, step in zip(trace.target_tokens, trace.steps, strict=True))
    names = ("token", "p", "", "rank", "entropy", "gain", "likeliest, and all others")
    head = "".join(f'<th style="{CELL};font-weight:600">{name}</th>' for name in names)
    said = f"{trace.log_p:.3f} nats, finished by {trace.finished_by}, head {trace.facts.head}"
    return (
        '<div style="font-family:system-ui,sans-serif;line-height:2">'
        f'<div style="opacity:.75">{source}</div><div>{target}</div>'
        f'<details style="line-height:1.5"><summary>{escape(said)}</summary>'
        f'<table style="border-collapse:collapse;font-size:90%"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>'
        "</table></details></div>"
    )


def _plain(token: Token) -> str:
    return f'<span style="padding:1px 3px">{escape(token.text)}</span>'


def _coloured(token: Token, step: Step) -> str:
    share = 0.85 * max(0.0, min(1.0, -step.log_p_model / UNSURE))
    told = f"p {step.p_model:.3f}, rank {step.rank}\n{_told(step.top_model, parting=chr(10))}"
    style = f"padding:1px 3px;margin:0 1px;border-radius:4px;background:rgba({DOUBT},{share:.3f})"
    return f'<span style="{style}" title="{_attribute(told)}">{escape(token.text)}</span>'


def _attribute(text: str) -> str:
    return escape(text).replace("\n", "&#10;")


def _row(token: Token, step: Step) -> str:
    bar = f'<div style="width:{BAR * step.p_model:.0f}px;height:9px;background:rgba({CHOSEN},.9)"></div>'
    gain = "" if step.prior is None or step.prior.gain is None else f"{step.prior.gain:+.1f}"
    cells = (
        escape(token.text), f"{step.p_model:.3f}", bar, str(step.rank), f"{step.entropy:.2f}", gain,
        escape(_told(step.top_model, parting=", ")),
    )  # fmt: skip
    return "<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _told(top: Top, *, parting: str) -> str:
    return parting.join(_parts(top))


def _parts(top: Top) -> Iterator[str]:
    yield from (f"{each.text} {each.p_model:.3f}" for each in top.candidates)
    yield f"others {top.tail:.3f}"
