"""Charts that commands write to files: training curves, reliability diagrams and the comparison of output heads."""

import math
from collections import defaultdict
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from translume.atomic import write_file
from translume.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from translume.comparison.table import Comparison
    from translume.evaluation import Bin, Calibration, Reliability
    from translume.evaluation.classification import ClassScores

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
"""A palette that is safe for colour-blind readers (Okabe and Ito 2008)."""
STYLES = ("-", "--", ":")
"""Line styles of heads 1 to 7, 8 to 14, …"""
FEW = 10
"""Bins with fewer entries than this are drawn hollow."""
Curves = dict[str, dict[str, list[tuple[int, float]]]]
"""For each panel, its curves by name: points of (update, value)."""


def new_figure(path: Path, *, width: float, height: float) -> "Figure":
    """Create a figure, sizes in inches; raise DataError if the extension of `path` names no image format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if path.suffix.removeprefix(".") not in FigureCanvasAgg(figure).get_supported_filetypes():
        raise DataError(f"{path}: found '{path.suffix}', expected an image extension such as .png, .svg or .pdf")
    return figure


def write_figure(figure: "Figure", path: Path) -> None:
    """Write the figure in the format of the extension of `path`, atomically."""
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix("."), dpi=120)
    write_file(path, picture.getvalue())


def curves_of(history: Sequence[dict[str, Any]]) -> Curves:
    """Return the curves of a training history: loss and nll per token, validation metrics, learning rate."""
    pictures: Curves = defaultdict(lambda: defaultdict(list))
    for record in history:
        update = record.get("update")
        if not isinstance(update, int):
            continue
        if record.get("event") == "progress":
            _add(pictures["nats per token"]["training loss"], update, record.get("loss"))
            _add(pictures["nats per token"]["training nll"], update, record.get("nll"))
            _add(pictures["learning rate"]["learning rate"], update, record.get("learning_rate"))
        elif record.get("event") == "validated":
            name = f"validation {record.get('measure', 'nll')}"
            _add(pictures["nats per token"][name], update, record.get("nll"))
            for name, value in record.get("metrics", {}).items():
                _add(pictures[name][f"validation {name}"], update, value)
    kept = {title: {name: points for name, points in curves.items() if points} for title, curves in pictures.items()}
    return {title: curves for title, curves in kept.items() if curves}


def _add(points: list[tuple[int, float]], update: int, value: object) -> None:
    if isinstance(value, int | float):
        points.append((update, float(value)))


def draw_curves(history: Sequence[dict[str, Any]], path: Path, *, title: str) -> None:
    """Draw the training curves side by side; raise DataError for an empty history or an unknown image format."""
    pictures = curves_of(history)
    if not pictures:
        raise DataError(f"{title}: history.jsonl has no numbers to draw")
    figure = new_figure(path, width=5 * len(pictures), height=3.6)
    figure.suptitle(title)
    for axes, (label, curves) in zip(
        figure.subplots(1, len(pictures), squeeze=False)[0], pictures.items(), strict=True
    ):
        for name, points in curves.items():
            axes.plot(*zip(*points, strict=True), label=name, marker="." if len(points) < 30 else "")
        axes.set_xlabel("update")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.legend()
    write_figure(figure, path)


def draw_reliability(found: Sequence["Calibration"], path: Path, *, title: str) -> None:
    """Draw reliability diagrams of one or two measurements of a model, for tokens and for end marks.

    Raises DataError if the extension of `path` names no image format.
    """
    figure = new_figure(path, width=10, height=5.6)
    figure.suptitle(title)
    upper, lower = figure.subplots(2, 2, sharex=True, height_ratios=(4, 1))
    for place, (name, confidence, right) in enumerate(
        (
            ("tokens", "largest probability of a step", "fraction equal to the reference's token"),
            ("end marks", "probability of the end mark at a step", "fraction where the reference ends"),
        )
    ):
        sides = [each.end if place else each.tokens for each in found]
        upper[place].set_title(f"{name} ({sides[0].count:,} steps)", fontsize="medium")
        upper[place].set_ylabel(right)
        lower[place].set_xlabel(confidence)
        labels = [f"T = {each.temperature:.3g}" for each in found]
        _draw_bins(upper[place], sides, labels, "steps")
        _draw_counts(lower[place], sides, "steps")
    write_figure(figure, path)


def draw_class_reliability(found: "ClassScores", path: Path, *, title: str) -> None:
    """Draw the reliability diagram of a classifier: of its labels, or of all decisions of a multi-label classifier.

    Raises DataError if the extension of `path` names no image format.
    """
    several = found.confusion is None
    unit = "decisions" if several else "labels"
    figure = new_figure(path, width=5.6, height=5.6)
    figure.suptitle(title)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    upper.set_title(f"{unit} ({found.reliability.count:,} of {found.texts:,} texts)", fontsize="medium")
    upper.set_ylabel(f"fraction of {unit} that are right")
    lower.set_xlabel(f"probability of the {'decision' if several else 'assigned label'}")
    _draw_bins(upper, [found.reliability], ["classifier"], unit)
    _draw_counts(lower, [found.reliability], unit)
    write_figure(figure, path)


def _draw_bins(axes: "Axes", sides: Sequence["Reliability"], labels: Sequence[str], unit: str) -> None:
    axes.plot([0, 1], [0, 1], color="0.5", linestyle="--", linewidth=1, label="perfectly calibrated")
    for side, label, colour in zip(sides, labels, COLOURS, strict=False):
        label = f"{label}: ECE {side.ece:.4f}, confidence {side.confidence:.3f}, accuracy {side.accuracy:.3f}"
        many = [_point(each) if each.count >= FEW else (math.nan, math.nan) for each in side.bins]
        # A NaN interrupts the line, so that it connects only adjacent bins.
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
    """Return the 95 % confidence interval of the accuracy (Wilson 1927)."""
    share, n, z = _point(each)[1], each.count, 1.96
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def _draw_counts(axes: "Axes", sides: Sequence["Reliability"], unit: str) -> None:
    for side, colour in zip(sides, COLOURS, strict=False):
        edges = [side.bins[0].low, *(each.high for each in side.bins)]
        axes.stairs([each.count for each in side.bins], edges, color=colour, fill=False, linewidth=1.2, baseline=0.5)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)


def draw_heads(comparison: "Comparison", folder: Path, path: Path) -> None:
    """Draw validation nll against updates, and bars of quality and speed; `folder` holds the models.

    Heads without a full distribution get no curve, because their nll is not comparable.
    """
    from translume.comparison.table import marks  # here: other charts need neither torch nor the comparison

    measured = comparison.measured
    names = [row.kind + marks(found) for row, found in measured]
    figure = new_figure(path, width=13, height=4.2 + 0.24 * len(measured))
    figure.suptitle(f"Output heads on {comparison.name}, {comparison.config.training.updates:,} updates")
    curves, quality, speed, step = figure.subplots(1, 4, width_ratios=(2.2, 1, 1, 1.2))
    _draw_nll(curves, comparison, folder)
    metric = comparison.metrics[0]
    scores = [next((value for name, value, _ in found.scores if name == metric), 0.0) for _, found in measured]
    _bars(quality, names, scores, metric, "{:.2f}")
    _bars(speed, names, [found.tokens_per_second or 0.0 for _, found in measured], "target tokens/s", "{:,.0f}")
    heads = [found.head_milliseconds for _, found in measured]
    _bars(step, names, [found.step_milliseconds for _, found in measured], "ms per decoding step", "{:.2f}")
    step.barh(range(len(names)), heads, color="black", alpha=0.45, height=0.35)
    step.set_title("dark: the head's part", fontsize="small")
    for axes in (speed, step):
        axes.set_yticklabels([])
    write_figure(figure, path)


def _draw_nll(axes: "Axes", comparison: "Comparison", folder: Path) -> None:
    from translume.checkpoint import read_history

    left_out = []
    for place, (row, found) in enumerate(comparison.measured):
        if not (found.normalised and found.full_support):
            left_out.append(row.kind)
            continue
        points = curves_of(read_history(folder / row.kind)).get("nats per token", {}).get("validation nll", [])
        axes.plot(
            *zip(*points, strict=True),
            label=row.kind,
            color=_colour(place),
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
    """Draw one bar per head, the first on top, each with its number."""
    places = range(len(names))
    bars = axes.barh(places, values, color=[_colour(place) for place in places], height=0.7)
    axes.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize="small")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=3)
    axes.set_xlabel(label)
    axes.margins(x=0.35)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(place: int) -> str:
    """Return the colour of the head at a position in the table."""
    return COLOURS[place % len(COLOURS)]
