"""The page of a trace; it works by mouse and keyboard."""

from collections.abc import Mapping

from translume.drawing.document import asset as asset
from translume.drawing.document import document
from translume.inspection import BeamRecord, Forced, Trace

SCRIPTS = ("steps.js", "beam.js", "page.js")
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
    return document("What the decoder believed", "trace.html", scripts=SCRIPTS, data=data)
