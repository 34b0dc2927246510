"""Matplotlib figures: of traces for notebooks and files; training curves and reliability diagrams that commands write.

The functions for traces raise SettingsError if the trace lacks the part that they plot.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps, font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from translume.atomic import write_file
from translume.errors import DataError, SettingsError, check_known
from translume.evaluation import Bin, Calibration, Reliability
from translume.evaluation.classification import ClassScores
from translume.inspection.values import AttentionKind, Attribution, ClassTrace, Frames, Heads, Step, Token, Trace

CHOSEN, USED, DOUBT, AGAINST, OTHERS = "#0b6b5d", "#92600c", "#e2961e", "#b3352b", "#ced8d4"
"""The colours of the HTML pages."""
ROW_INCHES = 0.27
"""Inches of a text row."""
LETTER_INCHES = 0.085
"""Approximate width of a letter in inches."""
MAX_LABEL_LETTERS = 18
"""Maximum letters of a token's label."""
FONT_FAMILIES = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "PingFang SC",
    "Hiragino Sans", "Microsoft YaHei", "Noto Sans Thai", "Noto Sans Arabic", "Noto Sans Devanagari",
)  # fmt: skip
"""Fonts to try for each letter, in order; fonts that are not installed are skipped."""
CELL_INCHES = 0.27
"""Inches of a heat map's cell."""
BAR_INCHES = 5.5
"""Inches of a bar of probability 1."""
MIN_SHOWN_EFFECT = 0.005
"""p_used is drawn if it differs from p_model by more than this."""
SPECTROGRAM_INCHES, INCHES_PER_FRAME, MIN_INCHES, MAX_INCHES = 1.6, 0.03, 4.0, 12.0
"""Height of a spectrogram, and the width of a frame and limits of the width of a source."""
GRID_COLUMNS = 4
"""Columns in a grid of small maps."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
"""A palette that is safe for colour-blind readers (Okabe and Ito 2008)."""
FEW = 10
"""Bins with fewer entries than this are drawn hollow."""
HeadChoice = int | Literal["mean", "all"]
Curves = dict[str, dict[str, list[tuple[int, float]]]]
"""For each panel, its curves by name: points of (update, value)."""


class NotebookFigure(Figure):
    """A figure that notebooks display even if pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        written = BytesIO()
        self.savefig(written, format="png", dpi=110)
        return written.getvalue()


def new_figure(*, width: float, height: float) -> NotebookFigure:
    """Create a figure, sizes in inches."""
    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check_image_format(path: Path) -> None:
    """Raise DataError if the extension of `path` names no image format."""
    if path.suffix.removeprefix(".") not in FigureCanvasAgg.get_supported_filetypes():
        raise DataError(f"{path}: found '{path.suffix}', expected an image extension such as .png, .svg or .pdf")


def write_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the extension of `path`, atomically."""
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix("."), dpi=120)
    write_file(path, picture.getvalue())


@contextmanager
def text_style() -> Iterator[None]:
    """Within this context, draw small text in the installed fonts of FONT_FAMILIES."""
    known = set(font_manager.get_font_names())
    families = [name for name in FONT_FAMILIES if name in known]
    with rc_context({"font.family": families, "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False,
                     "axes.spines.right": False}):  # fmt: skip
        yield


def label_of(text: str) -> str:
    """Return the label of a token, cut if it is long."""
    return text if len(text) <= MAX_LABEL_LETTERS else text[: MAX_LABEL_LETTERS - 1] + "…"


def signed(number: float, *, digits: int = 2) -> str:
    """Format a number with its sign, a typographic minus and no "−0.0"."""
    return f"{number:+z.{digits}f}".replace("-", "−")


def label_width(texts: Sequence[str]) -> float:
    """Return the width of the longest label in inches."""
    return LETTER_INCHES * max((len(label_of(text)) for text in texts), default=0)


def label_rows(axes: Axes, texts: Sequence[str]) -> None:
    """Label the rows with tokens, first on top."""
    axes.set_yticks(range(len(texts)), [label_of(text) for text in texts])
    axes.set_ylim(len(texts) - 0.5, -0.5)
    _disable_math(axes.get_yticklabels())


def label_columns(axes: Axes, texts: Sequence[str]) -> None:
    """Label the columns with tokens."""
    axes.set_xticks(range(len(texts)), [label_of(text) for text in texts], rotation=90)
    axes.xaxis.tick_top()
    _disable_math(axes.get_xticklabels())


def _disable_math(labels: Sequence[object]) -> None:
    for label in labels:
        label.set_parse_math(False)  # type: ignore[attr-defined]  # a Text; "$" in a token is a dollar


def heat_map(
    values: NDArray[np.float64],
    rows: list[str],
    columns: list[str],
    title: str,
    colours: str,
    *,
    limits: tuple[float, float],
    unit: str,
) -> Figure:
    """Draw values [rows, columns] as cells, NaN in grey, with the labels of rows and columns."""
    with text_style():
        width = CELL_INCHES * len(columns) + label_width(rows) + 1.3
        figure = new_figure(
            width=max(width, 0.075 * len(title) + 0.4), height=CELL_INCHES * len(rows) + label_width(columns) + 0.7
        )
        axes = figure.subplots()
        scale = colormaps[colours].with_extremes(bad="0.85")
        shown = axes.imshow(values, cmap=scale, vmin=limits[0], vmax=limits[1], aspect="equal")
        label_rows(axes, rows)
        label_columns(axes, columns)
        axes.tick_params(length=0)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.colorbar(shown, label=unit, shrink=0.8, aspect=25)
    return figure


def plot_attention(
    trace: Trace, *, kind: AttentionKind = "cross", layer: int | None = None, head: HeadChoice = "mean"
) -> Figure:
    """Plot attention weights as a heat map; rows attend to columns.

    layer: from 1; None for the last but one, whose cross-attention usually aligns best.
    head: a number from 1, "mean", or "all" for one small map per head.
    """
    heads, number, layers = _heads(trace, kind, layer)
    rows, columns = _texts(trace.source_tokens), _texts(trace.source_tokens)
    if kind != "encoder":
        rows = _texts(trace.target_tokens)
    if kind == "decoder":
        columns = ["start", *rows[:-1]]
    title = f"{kind} attention, layer {number} of {layers}"
    weights = np.array(heads)  # [H, rows, columns]
    if head == "all":
        return _small_maps(weights, title)
    if head == "mean":
        chosen, title = weights.mean(0), f"{title}, mean of {len(heads)} heads"
    elif 1 <= head <= len(heads):
        chosen, title = weights[head - 1], f"{title}, head {head} of {len(heads)}"
    else:
        raise SettingsError(f"head: found {head}, expected 1 to {len(heads)}, 'mean' or 'all'")
    limits = 0.0, float(chosen.max())
    if trace.frames is not None and kind != "decoder":
        return _over_source(trace, trace.frames, chosen, title, "Blues", limits=limits, unit="weight")
    return heat_map(chosen, rows, columns, title, "Blues", limits=limits, unit="weight")


def plot_distributions(trace: Trace) -> Figure:
    """Plot each step's likeliest tokens as a stacked bar: the chosen one dark, all others hatched at the end.

    If rules changed the distribution, a thin bar below shows p_used of the chosen token.
    """
    texts = _texts(trace.target_tokens)
    with text_style():
        figure = new_figure(width=label_width(texts) + BAR_INCHES + 2.2, height=ROW_INCHES * 1.25 * len(texts) + 1.0)
        axes = figure.subplots()
        for row, (token, step) in enumerate(zip(trace.target_tokens, trace.steps, strict=True)):
            _stack(axes, row, token, step)
        label_rows(axes, texts)
        axes.set_xlim(0, 1)
        axes.set_xlabel("probability: chosen token dark, other candidates light, all remaining tokens hatched")
        axes.set_title(f"predicted distribution at each step ({signed(trace.log_p)} nats in total)", loc="left")
        axes.tick_params(axis="y", length=0)
    return figure


def plot_lens(trace: Trace) -> Figure:
    """Plot one row per step and one column per decoder layer: the likeliest token, shaded by p of the chosen one."""
    if not any(step.lens for step in trace.steps):
        raise _missing("lens")
    texts = _texts(trace.target_tokens)
    chances = np.array([[math.exp(layer.log_p) for layer in step.lens] for step in trace.steps])
    likeliest = [[layer.top.candidates[0] for layer in step.lens] for step in trace.steps]
    wide = max(0.9, *(LETTER_INCHES * len(label_of(each.text)) + 0.15 for row in likeliest for each in row))
    with text_style():
        layers = chances.shape[1]
        figure = new_figure(width=label_width(texts) + wide * layers + 1.6, height=ROW_INCHES * len(texts) + 1.2)
        axes = figure.subplots()
        shown = axes.imshow(chances, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for row, candidates in enumerate(likeliest):
            for column, each in enumerate(candidates):
                right = each.id == trace.target_tokens[row].id
                colour = "white" if chances[row, column] > 0.55 else "black"
                axes.text(column, row, label_of(each.text), ha="center", va="center", color=colour,
                          fontweight="bold" if right else "normal", parse_math=False)  # fmt: skip
        label_rows(axes, texts)
        axes.set_xticks(range(layers), [f"layer {number + 1}" for number in range(layers)])
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_title("likeliest token after each decoder layer (bold: the chosen token)", loc="left")
        figure.colorbar(shown, label="probability of the chosen token", aspect=30)
    return figure


def plot_gain(trace: Trace) -> Figure:
    """Plot the gain of each token in nats: to the right if the source supports it, to the left if not."""
    if not any(step.prior for step in trace.steps):
        raise _missing("prior")
    texts = _texts(trace.target_tokens)
    gains = [step.gain for step in trace.steps]
    with text_style():
        figure = new_figure(width=label_width(texts) + BAR_INCHES + 0.6, height=ROW_INCHES * len(texts) + 1.0)
        axes = figure.subplots()
        values = [gain or 0.0 for gain in gains]
        axes.barh(range(len(values)), values, height=0.7, color=[USED if each >= 0 else AGAINST for each in values])
        for row, (gain, value) in enumerate(zip(gains, values, strict=True)):
            label = "impossible" if gain is None else signed(gain, digits=1)
            axes.annotate(label, (value, row), xytext=(3 if value >= 0 else -3, 0), va="center",
                          ha="left" if value >= 0 else "right", textcoords="offset points")  # fmt: skip
        label_rows(axes, texts)
        axes.axvline(0, color="0.4", linewidth=0.8)
        axes.margins(x=0.12)
        axes.set_xlabel("log p(y | source, prefix) − log p(y | prefix), nats")
        axes.set_title("gain: how much the source supports each token", loc="left")
        axes.tick_params(axis="y", length=0)
    return figure


def plot_attribution(trace: Trace, method: str | None = None) -> Figure:
    """Plot the attribution of target tokens to source tokens: blue if a token helps, red if it hurts."""
    if not trace.attributions:
        raise _missing("occlusion")
    attribution = _by_method(trace.attributions, method)
    unit = "nats" if attribution.method.startswith("occlusion") else "share of log p, nats"
    rows, columns = _texts(trace.target_tokens), _texts(trace.source_tokens)
    return _contributions(attribution, rows, columns, unit, trace if trace.frames else None)


def plot_evidence(trace: ClassTrace, method: str | None = None) -> Figure:
    """Plot the evidence of each token for the first classes: blue for the class, red against it."""
    if not trace.evidence:
        raise SettingsError("evidence: not in the trace; request it with trace_classification(…, show=('occlusion',))")
    evidence = _by_method(trace.evidence, method)
    rows = [f"{each.label} {each.p:.3f}" for each in trace.classes[: len(evidence.values)]]
    return _contributions(evidence, rows, [trace.shown(token) for token in trace.source_tokens], "nats")


def _by_method(attributions: Sequence[Attribution], method: str | None) -> Attribution:
    known: dict[str, Attribution] = {each.method: each for each in attributions}
    chosen = attributions[0].method if method is None else method
    check_known("method", chosen, known)
    return known[chosen]


def _contributions(
    attribution: Attribution, rows: list[str], columns: list[str], unit: str, over: Trace | None = None
) -> Figure:
    """Draw contributions on a scale that is symmetric around zero; over: a trace whose source of frames is drawn."""
    values = np.array(attribution.values, float)  # NaN for None
    largest = float(np.nanmax(np.abs(values), initial=1e-9))
    title = f"{attribution.method} (against {attribution.baseline})"
    if over is not None and over.frames is not None:
        return _over_source(over, over.frames, values, title, "RdBu", limits=(-largest, largest), unit=unit)
    return heat_map(values, rows, columns, title, "RdBu", limits=(-largest, largest), unit=unit)


def _over_source(
    trace: Trace,
    frames: Frames,
    values: NDArray[np.float64],
    title: str,
    colours: str,
    *,
    limits: tuple[float, float],
    unit: str,
) -> Figure:
    """Draw a spectrogram or an image, and below it values [rows, S] over the same axis, with the parts of the tokens.

    Rows are target tokens, or positions of the source if there are as many.
    """
    pixels, length, there = frames.pixels(), frames.place_of(len(frames.levels)), trace.positions()
    tokens = _texts(trace.target_tokens) if len(values) == len(trace.target_tokens) else []
    values = values[: len(values) if tokens else there, :there]
    edge = frames.place_of(trace.source_tokens[0].end * there)  # the last position may be cut
    with text_style():
        width = min(MAX_INCHES, max(MIN_INCHES, len(frames.levels) * INCHES_PER_FRAME))
        image = frames.kind == "image"
        high = width * pixels.shape[0] / pixels.shape[1] if image else SPECTROGRAM_INCHES
        below = ROW_INCHES * len(tokens) if tokens else width / 3
        figure = new_figure(width=width + label_width(tokens) + 1.2, height=high + below + 1.1)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(high, below))
        upper.imshow(pixels, cmap="gray" if image else "magma", aspect="auto", extent=(0, length, 0, pixels.shape[0]))
        upper.set_yticks([])
        upper.set_ylabel({"image": "", "features": "values"}.get(frames.kind, "mel bands"))
        shown = lower.imshow(
            values, cmap=colormaps[colours].with_extremes(bad="0.85"), vmin=limits[0], vmax=limits[1], aspect="auto",
            interpolation="nearest", extent=(0, edge, len(values) - 0.5, -0.5),
        )  # fmt: skip
        lower.set_xlim(0, length)
        lower.set_xlabel(frames.unit)
        if tokens:
            label_rows(lower, tokens)
            _draw_spans(upper, lower, trace, frames)
        else:
            lower.set_yticks([])
        lower.tick_params(axis="y", length=0)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.colorbar(shown, ax=(upper, lower), label=unit, shrink=0.8, aspect=25)
    return figure


def _draw_spans(upper: Axes, lower: Axes, trace: Trace, frames: Frames) -> None:
    """Write each token over its part of the source, and mark the part in its row."""
    for row, (token, (begin, end)) in enumerate(zip(trace.target_tokens, frames.spans, strict=True)):
        if end <= begin:
            continue
        first, last = frames.place_of(begin), frames.place_of(end)
        for axes, alpha in ((upper, 0.25), (lower, 0.12)):
            axes.axvspan(first, last, color=DOUBT, alpha=alpha, linewidth=0)
        lower.plot([first, last], [row + 0.42, row + 0.42], color=DOUBT, linewidth=2)
        upper.annotate(label_of(token.text.strip("▁")), ((first + last) / 2, 1), xycoords=("data", "axes fraction"),
                       xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", fontweight="bold",
                       parse_math=False, annotation_clip=False)  # fmt: skip


def _texts(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens]


def _missing(part: str) -> SettingsError:
    return SettingsError(f"{part}: not in the trace; request it with trace(…, show=('{part}',))")


def _heads(trace: Trace, kind: AttentionKind, layer: int | None) -> tuple[Heads, int, int]:
    """Return the weights of a layer, its number, and the number of layers."""
    if trace.attention is None:
        raise _missing("attention")
    kinds = {"cross": trace.attention.cross, "decoder": trace.attention.decoder, "encoder": trace.attention.encoder}
    check_known("kind", kind, kinds)
    layers = kinds[kind]
    number = max(1, len(layers) - 1) if layer is None else layer
    if not 1 <= number <= len(layers):
        raise SettingsError(f"layer: found {number}, expected 1 to {len(layers)}")
    heads = layers[number - 1]
    if heads is None:
        raise SettingsError(f"layer: {number} has no {kind} attention")
    return heads, number, len(layers)


def _small_maps(weights: NDArray[np.float64], title: str) -> Figure:
    """Draw one small map per head, of weights [H, rows, columns], on one scale and without token labels."""
    count, rows, columns = weights.shape
    across = min(count, GRID_COLUMNS)
    down = -(-count // across)
    wide, high = max(1.3, 0.11 * columns), max(1.0, 0.11 * rows)
    with text_style():
        figure = new_figure(width=across * wide + 1.0, height=down * (high + 0.3) + 0.5)
        grid = figure.subplots(down, across, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number >= count:
                axes.set_axis_off()
                continue
            shown = axes.imshow(weights[number], cmap="Blues", vmin=0, vmax=float(weights.max()), aspect="auto")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"head {number + 1}", fontsize=8)
        figure.suptitle(f"{title}, every head (rows attend to columns)", x=0.01, ha="left", fontsize=10)
        figure.colorbar(shown, ax=grid, label="weight", shrink=0.8, aspect=25)
    return figure


def _stack(axes: Axes, row: int, token: Token, step: Step) -> None:
    """Draw the bar of a step: its candidates, the chosen token if not among them, and the mass of all others."""
    parts = [(each.text, each.p_model, each.id == token.id) for each in step.top_model.candidates]
    tail = step.top_model.tail
    if not any(chosen for _, _, chosen in parts):
        parts.append((token.text, step.p_model, True))
        tail = max(0.0, tail - step.p_model)
    begin = 0.0
    for text, chance, chosen in parts:
        axes.barh(
            row, chance, left=begin, height=0.72, color=CHOSEN if chosen else OTHERS, edgecolor="white", linewidth=0.6
        )
        if chance * BAR_INCHES > LETTER_INCHES * len(label_of(text)) + 0.1:
            axes.text(begin + chance / 2, row, label_of(text), ha="center", va="center", fontsize=8,
                      color="white" if chosen else "black", parse_math=False)  # fmt: skip
        begin += chance
    axes.barh(row, tail, left=begin, height=0.72, color="none", edgecolor="0.7", hatch="////", linewidth=0)
    if abs(step.p_used - step.p_model) > MIN_SHOWN_EFFECT:
        axes.barh(row + 0.42, step.p_used, height=0.12, color=USED)
    label = f"p {step.p_model:.3f}  rank {step.rank}  H {step.entropy:.2f}"
    axes.text(1.01, row, label, va="center", fontsize=8, color="0.3")


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
    check_image_format(path)
    figure = new_figure(width=5 * len(pictures), height=3.6)
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


@dataclass(frozen=True, slots=True)
class _Panel:
    """A reliability diagram: of the measurements `sides`, with a label for each; unit: what is counted."""

    title: str
    confidence: str
    accuracy: str
    sides: list[Reliability]
    labels: list[str]
    unit: str


def draw_reliability(measured: Sequence[Calibration], path: Path, *, title: str) -> None:
    """Draw reliability diagrams of one or two measurements of a model, for tokens and for EOS.

    Raises DataError if the extension of `path` names no image format.
    """
    labels = [f"T = {each.temperature:.3g}" for each in measured]
    steps = f"({measured[0].tokens.count:,} steps)"
    tokens = _Panel(
        f"tokens {steps}", "largest probability of a step", "fraction equal to the reference's token",
        [each.tokens for each in measured], labels, "steps",
    )  # fmt: skip
    eos = _Panel(
        f"EOS {steps}", "probability of EOS at a step", "fraction where the reference ends",
        [each.end for each in measured], labels, "steps",
    )  # fmt: skip
    _draw_panels([tokens, eos], path, title, width=10)


def draw_class_reliability(scores: ClassScores, path: Path, *, title: str) -> None:
    """Draw the reliability diagram of a classifier: of its labels, or of all decisions of a multi-label classifier.

    Raises DataError if the extension of `path` names no image format.
    """
    several = scores.confusion is None
    unit, confidence = ("decisions", "decision") if several else ("labels", "assigned label")
    panel = _Panel(
        f"{unit} ({scores.reliability.count:,} of {scores.texts:,} texts)", f"probability of the {confidence}",
        f"fraction of {unit} that are right", [scores.reliability], ["classifier"], unit,
    )  # fmt: skip
    _draw_panels([panel], path, title, width=5.6)


def _draw_panels(panels: Sequence[_Panel], path: Path, title: str, *, width: float) -> None:
    check_image_format(path)
    figure = new_figure(width=width, height=5.6)
    figure.suptitle(title)
    grid = figure.subplots(2, len(panels), sharex=True, height_ratios=(4, 1), squeeze=False)
    for upper, lower, panel in zip(*grid, panels, strict=True):
        upper.set_title(panel.title, fontsize="medium")
        upper.set_ylabel(panel.accuracy)
        lower.set_xlabel(panel.confidence)
        _draw_bins(upper, panel.sides, panel.labels, panel.unit)
        _draw_counts(lower, panel.sides, panel.unit)
    write_figure(figure, path)


def _draw_bins(axes: Axes, sides: Sequence[Reliability], labels: Sequence[str], unit: str) -> None:
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


def _point(each: Bin) -> tuple[float, float]:
    assert each.confidence is not None
    assert each.accuracy is not None
    return each.confidence, each.accuracy


def _interval(each: Bin) -> tuple[float, float]:
    """Return the 95 % confidence interval of the accuracy (Wilson 1927)."""
    share, n, z = _point(each)[1], each.count, 1.96
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def _draw_counts(axes: Axes, sides: Sequence[Reliability], unit: str) -> None:
    for side, colour in zip(sides, COLOURS, strict=False):
        edges = [side.bins[0].low, *(each.high for each in side.bins)]
        axes.stairs([each.count for each in side.bins], edges, color=colour, fill=False, linewidth=1.2, baseline=0.5)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
