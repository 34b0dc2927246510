"""Figures of a trace: attention, beliefs, lens, gains and attributions."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from translume.drawing.heat_map import heat_map
from translume.drawing.picture import (
    AGAINST,
    CHOSEN,
    LETTER,
    OTHERS,
    ROW,
    USED,
    label_rows,
    lettering,
    longest,
    picture,
    short,
    signed,
)
from translume.errors import SettingsError, nearest
from translume.inspection import Trace
from translume.inspection.plots import AttentionKind, HeadChoice
from translume.inspection.values import Heads, Step, Token

BAR = 5.5
"""Inches of a bar of probability one."""
SLIGHT = 0.005
"""p_used is drawn where it is farther from p_model than this."""
FEW_COLUMNS = 4
"""Small maps beside each other."""


def plot_attention(
    trace: Trace, *, kind: AttentionKind = "cross", layer: int | None = None, head: HeadChoice = "mean"
) -> Figure:
    """Attention of a layer as a heat map, or as a small one of each head; see `Trace.plot_attention`."""
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
        raise SettingsError(f"head: found {head}, wanted 1 to {len(heads)}, 'mean' or 'all'")
    return heat_map(chosen, (rows, columns), title, "Blues", limits=(0.0, float(chosen.max())), unit="weight")


def plot_beliefs(trace: Trace) -> Figure:
    """Every step's likeliest tokens as parts of a bar, the chosen one dark, the mass of all others hatched at its end.

    Where rules changed what was chosen from, a thin bar below says how much the chosen token had after them.
    """
    texts = _texts(trace.target_tokens)
    with lettering():
        figure = picture(width=longest(texts) + BAR + 2.2, height=ROW * 1.25 * len(texts) + 1.0)
        axes = figure.subplots()
        for row, (token, step) in enumerate(zip(trace.target_tokens, trace.steps, strict=True)):
            _stack(axes, row, token, step)
        label_rows(axes, texts)
        axes.set_xlim(0, 1)
        axes.set_xlabel("probability: the chosen token dark, others light, all that are not listed hatched")
        axes.set_title(f"what was believed at each step ({signed(trace.log_p)} nats in all)", loc="left")
        axes.tick_params(axis="y", length=0)
    return figure


def plot_lens(trace: Trace) -> Figure:
    """A row a step, a column a decoder layer: the likeliest token there, on the probability of the chosen one."""
    if not any(step.lens for step in trace.steps):
        raise _missing("lens")
    texts = _texts(trace.target_tokens)
    chances = np.array([[math.exp(layer.log_p) for layer in step.lens] for step in trace.steps])
    likeliest = [[layer.top.candidates[0] for layer in step.lens] for step in trace.steps]
    wide = max(0.9, *(LETTER * len(short(each.text)) + 0.15 for row in likeliest for each in row))
    with lettering():
        layers = chances.shape[1]
        figure = picture(width=longest(texts) + wide * layers + 1.6, height=ROW * len(texts) + 1.2)
        axes = figure.subplots()
        shown = axes.imshow(chances, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for row, candidates in enumerate(likeliest):
            for column, each in enumerate(candidates):
                right = each.id == trace.target_tokens[row].id
                colour = "white" if chances[row, column] > 0.55 else "black"
                axes.text(column, row, short(each.text), ha="center", va="center", color=colour,
                          fontweight="bold" if right else "normal", parse_math=False)  # fmt: skip
        label_rows(axes, texts)
        axes.set_xticks(range(layers), [f"layer {number + 1}" for number in range(layers)])
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_title("likeliest token after each decoder layer (bold: the one chosen in the end)", loc="left")
        figure.colorbar(shown, label="probability of the chosen token", aspect=30)
    return figure


def plot_gain(trace: Trace) -> Figure:
    """What the source says for each token, in nats: to the right it asks for it, to the left it speaks against it."""
    if not any(step.prior for step in trace.steps):
        raise _missing("prior")
    texts = _texts(trace.target_tokens)
    gains = [step.prior.gain if step.prior else None for step in trace.steps]
    with lettering():
        figure = picture(width=longest(texts) + BAR + 0.6, height=ROW * len(texts) + 1.0)
        axes = figure.subplots()
        values = [gain or 0.0 for gain in gains]
        axes.barh(range(len(values)), values, height=0.7, color=[USED if each >= 0 else AGAINST for each in values])
        for row, gain in enumerate(gains):
            told = "impossible" if gain is None else signed(gain, digits=1)
            axes.annotate(told, ((gain or 0.0), row), xytext=(3 if (gain or 0.0) >= 0 else -3, 0), va="center",
                          ha="left" if (gain or 0.0) >= 0 else "right", textcoords="offset points")  # fmt: skip
        label_rows(axes, texts)
        axes.axvline(0, color="0.4", linewidth=0.8)
        axes.margins(x=0.12)
        axes.set_xlabel("log p(y | source, prefix) − log p(y | prefix), nats")
        axes.set_title("what the source says for each token", loc="left")
        axes.tick_params(axis="y", length=0)
    return figure


def plot_attribution(trace: Trace, method: str | None = None) -> Figure:
    """What each source token does for each target token, by a method: blue for it, red against it."""
    known = {each.method: each for each in trace.attributions}
    if not known:
        raise _missing("occlusion")
    found = known.get(method or trace.attributions[0].method)  # type: ignore[call-overload]  # any word may be asked for
    if found is None:
        assert method is not None
        raise SettingsError(f"method: found '{method}'{nearest(method, known)}")
    values = np.array([[math.nan if each is None else each for each in row] for row in found.values])
    most = float(np.nanmax(np.abs(values), initial=1e-9))
    unit = "nats" if found.method.startswith("occlusion") else "share of log p, nats"
    texts = _texts(trace.target_tokens), _texts(trace.source_tokens)
    return heat_map(
        values, texts, f"{found.method} (against {found.baseline})", "RdBu", limits=(-most, most), unit=unit
    )


def _texts(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens]


def _missing(part: str) -> SettingsError:
    return SettingsError(f"{part}: the trace holds none; ask for it: trace(…, show=('{part}',))")


def _heads(trace: Trace, kind: AttentionKind, layer: int | None) -> tuple[Heads, int, int]:
    """The weights of a layer, its number, and how many layers there are."""
    if trace.attention is None:
        raise _missing("attention")
    kinds = {"cross": trace.attention.cross, "decoder": trace.attention.decoder, "encoder": trace.attention.encoder}
    if kind not in kinds:
        raise SettingsError(f"kind: found '{kind}'{nearest(kind, kinds)}")
    layers = kinds[kind]
    number = max(1, len(layers) - 1) if layer is None else layer
    if not 1 <= number <= len(layers):
        raise SettingsError(f"layer: found {number}, wanted 1 to {len(layers)}")
    heads = layers[number - 1]
    if heads is None:
        raise SettingsError(f"layer: {number} has no {kind} attention")
    return heads, number, len(layers)


def _small_maps(weights: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", title: str) -> Figure:
    """A map of each head [H, rows, columns] on one scale, without the tokens' names."""
    count, rows, columns = weights.shape
    across = min(count, FEW_COLUMNS)
    down = -(-count // across)
    wide, high = max(1.3, 0.11 * columns), max(1.0, 0.11 * rows)
    with lettering():
        figure = picture(width=across * wide + 1.0, height=down * (high + 0.3) + 0.5)
        grid = figure.subplots(down, across, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number >= count:
                axes.set_axis_off()
                continue
            shown = axes.imshow(weights[number], cmap="Blues", vmin=0, vmax=float(weights.max()), aspect="auto")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"head {number + 1}", fontsize=8)
        figure.suptitle(f"{title}, every head (rows read columns)", x=0.01, ha="left", fontsize=10)
        figure.colorbar(shown, ax=grid, label="weight", shrink=0.8, aspect=25)
    return figure


def _stack(axes: Axes, row: int, token: Token, step: Step) -> None:
    """The bar of a step: its candidates, the chosen one if it is none of them, and the mass of all others."""
    parts = [(each.text, each.p_model, each.id == token.id) for each in step.top_model.candidates]
    rest = step.top_model.tail
    if not any(mine for _, _, mine in parts):
        parts.append((token.text, step.p_model, True))
        rest = max(0.0, rest - step.p_model)
    begin = 0.0
    for text, chance, mine in parts:
        axes.barh(
            row, chance, left=begin, height=0.72, color=CHOSEN if mine else OTHERS, edgecolor="white", linewidth=0.6
        )
        if chance * BAR > LETTER * len(short(text)) + 0.1:
            axes.text(begin + chance / 2, row, short(text), ha="center", va="center", fontsize=8,
                      color="white" if mine else "black", parse_math=False)  # fmt: skip
        begin += chance
    axes.barh(row, rest, left=begin, height=0.72, color="none", edgecolor="0.7", hatch="////", linewidth=0)
    if abs(step.p_used - step.p_model) > SLIGHT:
        axes.barh(row + 0.42, step.p_used, height=0.12, color=USED)
    told = f"p {step.p_model:.3f}  rank {step.rank}  H {step.entropy:.2f}"
    axes.text(1.01, row, told, va="center", fontsize=8, color="0.3")
