"""The picture that `translume heads` draws: how each head learned, and what it gives and costs in the end."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from translume.checkpoint import read_history
from translume.comparison.table import Comparison, marks
from translume.drawing.curves import curves_of
from translume.drawing.figure_files import new_figure, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
"""Told apart by everyone (Okabe and Ito 2008)."""
STYLES = ("-", "--", ":")
"""Of the first seven heads, the next seven, …"""


def draw_heads(comparison: Comparison, folder: Path, path: Path) -> None:
    """Draw nll against updates and bars of quality and speed; `folder` holds the models.

    Heads that are no full distribution have no curve, since their nll is not comparable.
    """
    measured = comparison.measured
    names = [row.kind + marks(found) for row, found in measured]
    figure = new_figure(path, width=13, height=4.2 + 0.24 * len(measured))
    figure.suptitle(f"Output heads on {comparison.name}, {comparison.config.training.updates:,} updates")
    curves, quality, speed, step = figure.subplots(1, 4, width_ratios=(2.2, 1, 1, 1.2))
    _curves(curves, comparison, folder)
    metric = comparison.metrics[0]
    scores = [next((value for name, value, _ in found.scores if name == metric), 0.0) for _, found in measured]
    _bars(quality, names, scores, metric, "{:.2f}")
    _bars(speed, names, [found.tokens_per_second or 0.0 for _, found in measured], "target tokens/s", "{:,.0f}")
    heads = [found.head_milliseconds for _, found in measured]
    _bars(step, names, [found.step_milliseconds for _, found in measured], "ms per decoding step", "{:.2f}")
    step.barh(range(len(names)), heads, color="black", alpha=0.45, height=0.35)
    step.set_title("thin and dark: the head's share", fontsize="small")
    for axes in (speed, step):
        axes.set_yticklabels([])
    write_figure(figure, path)


def _curves(axes: "Axes", comparison: Comparison, folder: Path) -> None:
    left_out = []
    for place, (row, found) in enumerate(comparison.measured):
        if not (found.normalised and found.full_support):
            left_out.append(row.kind)
            continue
        points = curves_of(read_history(folder / row.kind)).get("nats per token", {}).get("validation nll", [])
        axes.plot(
            *zip(*points, strict=True),
            label=row.kind,
            color=colour(place),
            linestyle=STYLES[place // len(COLOURS) % len(STYLES)],
            marker="." if len(points) < 30 else "",
        )
    if left_out:
        axes.set_title(f"without {', '.join(left_out)}: not comparable", fontsize="small")
    axes.set_xlabel("update")
    axes.set_ylabel("validation nll, nats per token")
    axes.grid(alpha=0.3)
    if len(left_out) < len(comparison.measured):
        axes.legend(fontsize="small")


def _bars(axes: "Axes", names: Sequence[str], values: Sequence[float], label: str, form: str) -> None:
    """A bar a head, the first on top, each with its number."""
    places = range(len(names))
    bars = axes.barh(places, values, color=[colour(place) for place in places], height=0.7)
    axes.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize="small")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=3)
    axes.set_xlabel(label)
    axes.margins(x=0.35)
    axes.spines[["top", "right"]].set_visible(False)


def colour(place: int) -> str:
    """Of the head in this place of the table."""
    return COLOURS[place % len(COLOURS)]
