"""Reliability diagrams: how often a model is right where it says how sure it is."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from translume.drawing.figure_files import new_figure, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from translume.evaluation import Bin, Calibration, Reliability
    from translume.evaluation.classification import ClassScores

COLOURS = ("#0072b2", "#d55e00")
"""Told apart by everyone (Okabe and Ito 2008)."""
FEW = 10
"""Steps or texts in a bin below which it says little."""


def draw_reliability(found: Sequence["Calibration"], path: Path, *, title: str) -> None:
    """Draw one or two measurements of a model, tokens and end marks apart; the ending of `path` chooses the format.

    Raises DataError if that cannot be.
    """
    figure = new_figure(path, width=10, height=5.6)
    figure.suptitle(title)
    upper, lower = figure.subplots(2, 2, sharex=True, height_ratios=(4, 1))
    for place, (name, confidence, right) in enumerate(
        (
            ("tokens", "largest probability of a step", "share that is the reference's token"),
            ("end marks", "probability of the end mark at a step", "share where the reference ends"),
        )
    ):
        sides = [each.end if place else each.tokens for each in found]
        upper[place].set_title(f"{name} ({sides[0].count:,} steps)", fontsize="medium")
        upper[place].set_ylabel(right)
        lower[place].set_xlabel(confidence)
        labels = [f"T = {each.temperature:.3g}" for each in found]
        _reliability(upper[place], sides, labels, "steps")
        _counts(lower[place], sides, "steps")
    write_figure(figure, path)


def draw_class_reliability(found: "ClassScores", path: Path, *, title: str) -> None:
    """Draw how far a classifier's answers may be believed: labels, or single decisions where texts have several.

    Raises DataError if that cannot be.
    """
    several = found.confusion is None
    unit = "decisions" if several else "labels"
    figure = new_figure(path, width=5.6, height=5.6)
    figure.suptitle(title)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    upper.set_title(f"{unit} ({found.reliability.count:,} of {found.texts:,} texts)", fontsize="medium")
    upper.set_ylabel(f"share of {unit} that are right")
    lower.set_xlabel(f"probability of the {'decision' if several else 'label that is given'}")
    _reliability(upper, [found.reliability], ["classifier"], unit)
    _counts(lower, [found.reliability], unit)
    write_figure(figure, path)


def _reliability(axes: "Axes", sides: Sequence["Reliability"], labels: Sequence[str], unit: str) -> None:
    axes.plot([0, 1], [0, 1], color="0.5", linestyle="--", linewidth=1, label="as sure as right")
    for side, label, colour in zip(sides, labels, COLOURS, strict=False):
        label = f"{label}: ECE {side.ece:.4f}, sure {side.confidence:.3f}, right {side.accuracy:.3f}"
        many = [_point(each) if each.count >= FEW else (math.nan, math.nan) for each in side.bins]
        # A NaN parts the line, so that it leads only from a bin to the next one.
        axes.plot(*zip(*many, strict=True), color=colour, marker="o", markersize=5, linewidth=1.5, label=label)
        few = [_point(each) for each in side.bins if 0 < each.count < FEW]
        if few:
            axes.plot(*zip(*few, strict=True), color=colour, marker="o", markersize=5, fillstyle="none", linestyle="")
        for each in side.bins:
            if each.count:
                axes.vlines(_point(each)[0], *_interval(each), color=colour, linewidth=0.8, alpha=0.7)
    if any(0 < each.count < FEW for side in sides for each in side.bins):
        axes.plot([], [], color="0.5", marker="o", fillstyle="none", linestyle="", label=f"fewer than {FEW} {unit}")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")


def _point(each: "Bin") -> tuple[float, float]:
    assert each.confidence is not None
    assert each.accuracy is not None
    return each.confidence, each.accuracy


def _interval(each: "Bin") -> tuple[float, float]:
    """Where 95 % of shares would lie (Wilson 1927)."""
    share, n, z = _point(each)[1], each.count, 1.96
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def _counts(axes: "Axes", sides: Sequence["Reliability"], unit: str) -> None:
    for side, colour in zip(sides, COLOURS, strict=False):
        edges = [side.bins[0].low, *(each.high for each in side.bins)]
        axes.stairs([each.count for each in side.bins], edges, color=colour, fill=False, linewidth=1.2, baseline=0.5)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
