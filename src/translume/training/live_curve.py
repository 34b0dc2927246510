"""The curve of a training in a notebook: one output, which changes as updates are done."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import chain

from translume.notebook import LiveOutput
from translume.training.events import Event, Finished, Interrupted, Preparing, Progress, Validated, Warned

WIDTH, HEIGHT, POINTS = 600, 200, 200
"""Of the curve: its size in pixels, and how many points of a line it shows at most, evenly spread."""
COLORS = {"training": "#3b6fd4", "validation": "#c2570c"}
LEGEND = '<text x="608" y="90" fill="#3b6fd4">training</text><text x="608" y="110" fill="#c2570c">validation</text>'


class LiveCurve:
    """Shows the losses of a run in the notebook that it runs in; elsewhere it does nothing.

    Losses are in nats per target token: −log p, or the objective for a head without it.
    """

    def __init__(self) -> None:
        self._output, self._kept = LiveOutput(), 0
        self._lines: dict[str, list[tuple[int, float]]] = {name: [] for name in COLORS}
        self._text = self._measured = self._warnings = ""

    def shown(self, event: Event) -> Event:
        """Show an event and return it. The output changes twice a second at most, but at once for the last event."""
        match event:
            case Preparing():
                self._text = f"preparing: {event.what}"
            case Progress():
                loss = event.loss if event.nll is None else event.nll
                # The mean changes with each update until it is logged.
                self._lines["training"][self._kept :] = [(event.update, loss)]
                self._kept += event.logged or event.update == 1
                speed = f"{event.tokens_per_second:,.0f} tokens/s, {event.seconds_left:,.0f} s left"
                self._text = f"update {event.update:,} of {event.updates:,}: {speed}; training {loss:.3f}"
            case Validated() | Finished():
                if isinstance(event, Finished):
                    self._text = f"finished after {event.update:,} updates; kept {event.kept}"
                elif math.isfinite(event.nll):
                    self._lines["validation"].append((event.update, event.nll))
                metrics = "".join(f", {name} {value:.2f}" for name, value in event.metrics.items())
                self._measured = "" if event.nll is None else f", validation {event.nll:.3f}{metrics}"
            case Warned():
                self._warnings += f"<div>warning: {escape(event.message)}</div>"
            case Interrupted():
                self._text = f"interrupted after {event.update:,} updates, all saved; the same call goes on"
        if self._output.is_due(last=isinstance(event, Finished | Interrupted)):
            text = self._text + self._measured
            self._output.show(f"{curve_of(self._lines)}<div>{escape(text)}</div>{self._warnings}", text)
        return event


def curve_of(lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return an SVG of points (update, loss) by the names in COLORS."""
    updates, losses = zip(*chain.from_iterable(lines.values()), strict=True) if any(lines.values()) else ([1], [0.0])
    last, low, high = max(updates), min(losses), max(losses)
    drawn = LEGEND
    for name, points in lines.items():
        spread = points[:: len(points) // POINTS + 1]
        places = " ".join(f"{WIDTH * x / last:.1f},{HEIGHT * (high - y) / (high - low or 1):.1f}" for x, y in spread)
        drawn += f'<polyline points="{places}" fill="none" stroke="{COLORS[name]}" stroke-width="2"/>'
    return (
        f'<svg viewBox="-4 -16 {WIDTH + 110} {HEIGHT + 40}" style="max-width:{WIDTH + 110}px;font:13px sans-serif" '
        f'fill="currentColor" role="img" aria-label="losses from {high:.3f} to {low:.3f} nats per token">{drawn}'
        f'<path d="M0 0V{HEIGHT}H{WIDTH}" fill="none" stroke="currentColor"/><text x="608" y="4">{high:.3f}</text>'
        f'<text x="608" y="{HEIGHT}">{low:.3f}</text><text x="540" y="{HEIGHT + 18}">update {last:,}</text></svg>'
    )
