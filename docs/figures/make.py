"""Draw the figures of docs/transformer.md from the model that comes with Translume.

    python docs/figures/make.py [FOLDER]

Each figure is a function that returns the SVG of one picture; a test draws them again and compares the numbers. Text
stays text, so that a browser finds the fonts of Chinese tokens.
"""

import re
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np
import torch

import translume
from translume.inspection.inputs import trace_inputs
from translume.inspection.passes import forward

SENTENCE = "The library had 17,705 visitors in June."
INK, QUIET, LINE, MAIN, SECOND, BAD = "#1d2a27", "#5d6d68", "#d7dfdc", "#0b6b5d", "#d58a1b", "#b3352b"
FONT = 13
"""Size of the letters, in pixels."""
CELL = 20
"""Width and height of a heat map's cell, in pixels."""

Parts = list[str]


def svg(width: float, height: float, parts: Sequence[str], *, title: str) -> str:
    """Return a picture on a white card, which is legible on a dark page too."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" font-family="system-ui, sans-serif" font-size="{FONT}">'
        f'<title>{escape(title)}</title><rect width="100%" height="100%" rx="8" fill="#ffffff"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def text(
    x: float, y: float, words: str, *, anchor: str = "start", color: str = INK, size: int = FONT, turn: int = 0
) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}"{turned}>'
        f"{escape(words)}</text>"
    )


def rect(
    x: float, y: float, width: float, height: float, fill: str, *, line: str = "none", tip: str = "", rx: int = 0
) -> str:
    inner = f"<title>{escape(tip)}</title>" if tip else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" rx="{rx}" fill="{fill}" '
        f'stroke="{line}">{inner}</rect>'
    )


def shade(value: float, low: str = "#ffffff", high: str = MAIN) -> str:
    """Return the colour of a value in [0, 1] between two colours."""
    share = min(1.0, max(0.0, value))
    ends = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in (low, high)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(*ends, strict=True))


def heat_map(
    x: float, y: float, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], cell: int = CELL
) -> Parts:
    """Draw values in [−1, 1]: positive ones green, negative ones red. Labels may be empty."""
    parts = [text(x - 6, y + (i + 0.72) * cell, row, anchor="end", size=12) for i, row in enumerate(rows)]
    parts += [text(x + (j + 0.7) * cell, y - 6, each, turn=-55, size=12) for j, each in enumerate(columns)]
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            fill = shade(value) if value >= 0 else shade(-value, high=BAD)
            named = f"{rows[i]} → {columns[j]}: " if rows and columns else ""
            parts.append(
                rect(
                    x + j * cell,
                    y + i * cell,
                    cell,
                    cell,
                    fill,
                    line=LINE if cell > 8 else "none",
                    tip=f"{named}{value:.2f}",
                )
            )
    return parts


class Model:
    """The demo's model, its trace of the sentence, and the states inside."""

    def __init__(self) -> None:
        self.translator = translume.load("demo")
        self.trace = translume.trace(self.translator, SENTENCE, k=4, show=("attention", "lens"))
        self.network = self.translator.checkpoint.model.float().eval()
        self.settings = self.translator.checkpoint.config.model
        self.inputs = trace_inputs(self.translator, SENTENCE, None, None)
        with torch.no_grad():
            self.found = forward(self.network, self.inputs.sentence(), attention=True)
        self.source = [each.text for each in self.trace.source_tokens]
        self.target = [each.text for each in self.trace.target_tokens]


def network(model: Model) -> str:
    """The parts of the model and the shapes between them."""
    s, t, d, f = len(model.source), len(model.target), model.settings.width, model.settings.feed_forward
    v = model.trace.facts.vocabulary
    box, gap, left, right = 40, 22, 20, 330
    parts: Parts = []

    def column(x: float, blocks: Sequence[tuple[str, str, str]], bottom: float) -> float:
        y = bottom
        for name, shape, fill in blocks:
            y -= box
            parts.append(rect(x, y, 220, box, fill, line=LINE, rx=6))
            parts.append(text(x + 110, y + 25, name, anchor="middle"))
            y -= gap
            arrow = f"M{x + 110} {y + gap} V{y + 3}"
            parts.append(f'<path d="{arrow}" stroke="{QUIET}" marker-end="url(#tip)" fill="none"/>')
            parts.append(text(x + 120, y + 15, shape, color=QUIET, size=12))
        return y

    bottom = 470
    pale, green, warm = "#eef3f1", "#d9ebe5", "#fbeed6"
    parts.append(
        '<marker id="tip" orient="auto" markerWidth="8" markerHeight="8" refX="4" refY="3">'
        '<path d="M0 0 L6 3 L0 6 z" fill="#5d6d68"/></marker>'
    )
    parts.append(text(left + 110, bottom + 20, "the source, and EOS", anchor="middle"))
    parts.append(text(right + 110, bottom + 20, "BOS, and the target so far", anchor="middle"))
    encoder = [
        ("embedding + position", f"[{s}, {d}]", pale),
        ("self-attention", f"[{s}, {d}]", green),
        (f"feed-forward, {f} wide", f"[{s}, {d}] × {model.settings.encoder_layers} layers", green),
        ("norm", f"memory [{s}, {d}]", pale),
    ]
    decoder = [
        ("embedding + position", f"[{t}, {d}]", pale),
        ("masked self-attention", f"[{t}, {d}]", green),
        ("cross-attention", f"[{t}, {d}]", green),
        (f"feed-forward, {f} wide", f"[{t}, {d}] × {model.settings.decoder_layers} layers", green),
        ("norm", f"hidden [{t}, {d}]", pale),
        ("output head: linear", f"logits [{t}, {v:,}]", warm),
        ("softmax", f"p(next token) [{t}, {v:,}]", warm),
    ]
    top = column(left, encoder, bottom)
    column(right, decoder, bottom)
    cross = bottom - 2 * (box + gap) - box / 2
    parts.append(
        f'<path d="M{left + 110} {top} V{top - 8} H{left + 270} V{cross} H{right - 4}" fill="none" stroke="{MAIN}" '
        'stroke-width="2" marker-end="url(#tip)"/>'
    )
    parts.append(text(left + 264, (top + cross) / 2, "keys and values", anchor="middle", color=MAIN, size=12, turn=-90))
    return svg(610, 505, parts, title="The encoder-decoder Transformer and the shapes between its parts")


def embeddings(model: Model) -> str:
    """Cosines between rows of the embedding table."""
    words = [
        "Monday",
        "Tuesday",
        "Friday",
        "Sunday",
        "January",
        "June",
        "December",
        "Paris",
        "Jakarta",
        "dollars",
        "euros",
        "3",
        "7",
    ]
    tokenizer = model.translator.checkpoint.source_tokenizer
    rows, names = [], []
    for word in words:
        ids = tokenizer.encode(word)
        if len(ids) == 1 or (word.isdigit() and ids):
            rows.append(model.network.encoder.embedding.table.weight[ids[-1]].detach().numpy())
            names.append(word)
    table = np.stack(rows)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return svg(
        130 + CELL * len(names),
        110 + CELL * len(names),
        heat_map(90, 95, table @ table.T, names, names),
        title="Cosines between embeddings of tokens",
    )


def positions(model: Model) -> str:
    """The vectors that tell the positions apart, and their inner products."""
    length, width = 48, model.settings.width
    rates = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * rates
    table = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    parts = heat_map(40, 40, table, [], [], 6)
    parts += [text(34, 46 + 6 * i, str(i), anchor="end", size=11) for i in range(0, length, 8)]
    parts.append(
        text(40, 26, f"{width // 2} sines, then {width // 2} cosines; one row for each position", size=12, color=QUIET)
    )
    return svg(60 + 6 * width, 56 + 6 * length, parts, title="Sinusoidal positions")


def self_attention(model: Model) -> str:
    """What each head of the encoder's last layer reads."""
    heads = np.array(model.trace.attention.encoder[-1])
    step = CELL * len(model.source) + 100
    parts: Parts = []
    for number, weights in enumerate(heads):
        x, y = 90 + (number % 2) * step, 110 + (number // 2) * (step - 5)
        parts.append(text(x, y - 86, f"head {number + 1}", color=QUIET))
        parts += heat_map(x, y, weights, model.source, model.source)
    return svg(2 * step + 20, 2 * step + 15, parts, title="Self-attention of the encoder: rows read columns")


def masked(model: Model) -> str:
    """The triangle of the decoder's self-attention."""
    weights = np.array(model.trace.attention.decoder[-1]).mean(0)
    names = ["BOS", *model.target[:-1]]
    return svg(
        150 + CELL * len(names),
        140 + CELL * len(names),
        heat_map(110, 120, weights, names, names),
        title="Self-attention of the decoder, mean of the heads: no row reads a later column",
    )


def cross_attention(model: Model) -> str:
    weights = np.array(model.trace.attention.cross[-1]).mean(0)
    size = (140 + CELL * len(model.source), 120 + CELL * len(model.target))
    return svg(
        *size,
        heat_map(110, 100, weights, model.target, model.source),
        title="Cross-attention of the last layer, mean of the heads",
    )


def residual(model: Model) -> str:
    """How long the vectors are after each sublayer of the decoder, and how long what it added: means of the steps."""
    lengths: list[tuple[str, float, float]] = []
    handles = []
    decoder = model.network.decoder
    for number, layer in enumerate(decoder.layers, 1):
        for name, part in (
            ("self-attention", layer.around_self),
            ("cross-attention", layer.around_cross),
            ("feed-forward", layer.around_feed_forward),
        ):

            def note(_: object, given: tuple, result: torch.Tensor, label: str = f"{number} {name}") -> None:
                before, after = given[0].reshape(-1, given[0].shape[-1]), result.reshape(-1, result.shape[-1])
                lengths.append((label, after.norm(dim=-1).mean().item(), (after - before).norm(dim=-1).mean().item()))

            handles.append(part.register_forward_hook(note))
    with torch.no_grad():
        forward(model.network, model.inputs.sentence(), attention=False)
    for handle in handles:
        handle.remove()
    scale = 330 / max(length for _, length, _ in lengths)
    parts = [
        text(150, 24, "length of the vector after the sublayer", color=QUIET, size=12),
        text(400, 24, "of what it added", color=SECOND, size=12),
    ]
    for row, (label, whole, added) in enumerate(lengths):
        y = 36 + 30 * row
        parts.append(text(140, y + 14, label, anchor="end", size=12))
        parts.append(rect(150, y, scale * whole, 9, MAIN, tip=f"{whole:.1f}"))
        parts.append(rect(150, y + 10, scale * added, 9, SECOND, tip=f"{added:.1f}"))
        parts.append(text(156 + scale * whole, y + 9, f"{whole:.1f}", size=11, color=QUIET))
    return svg(540, 50 + 30 * len(lengths), parts, title="The residual stream of the decoder")


def distributions(model: Model) -> str:
    """The likeliest tokens at each step."""
    parts: Parts = []
    for row, (token, step) in enumerate(zip(model.target, model.trace.steps, strict=True)):
        y, x = 14 + 26 * row, 110.0
        parts.append(text(100, y + 15, token, anchor="end"))
        for rank, each in enumerate(step.top_model.candidates):
            width = 400 * each.p_model
            fill = (MAIN, SECOND, "#7fb0a5", "#e7c48e")[rank % 4]
            parts.append(rect(x, y, width, 20, fill, tip=f"{each.text} {each.p_model:.3f}"))
            if width > 14 * len(each.text) + 6:
                parts.append(text(x + 5, y + 15, each.text, color="#ffffff" if rank < 2 else INK, size=12))
            x += width
        parts.append(rect(x, y, 400 * step.top_model.tail, 20, LINE, tip=f"others {step.top_model.tail:.3f}"))
        parts.append(text(520, y + 15, f"{step.p_model:.3f}", size=12, color=QUIET))
    return svg(
        570,
        24 + 26 * len(model.target),
        parts,
        title="The predicted distribution at each step: the four likeliest tokens, and all others in grey",
    )


def lens(model: Model) -> str:
    """The likeliest token after each layer of the decoder."""
    parts: Parts = []
    layers = len(model.trace.steps[0].lens)
    for layer in range(layers):
        parts.append(
            text(110 + 170 * layer + 80, 22, f"after layer {layer + 1}", anchor="middle", size=12, color=QUIET)
        )
    for row, (token, step) in enumerate(zip(model.target, model.trace.steps, strict=True)):
        y = 32 + 26 * row
        parts.append(text(100, y + 16, token, anchor="end"))
        for layer in step.lens:
            best = layer.top.candidates[0]
            x = 110 + 170 * (layer.layer - 1)
            parts.append(
                rect(x, y, 160, 22, shade(best.p_model), line=LINE, rx=3, tip=f"rank of the chosen token: {layer.rank}")
            )
            ink = "#ffffff" if best.p_model > 0.7 else INK
            parts.append(text(x + 8, y + 16, best.text, color=ink))
            parts.append(text(x + 152, y + 16, f"{best.p_model:.2f}", anchor="end", size=12, color=ink))
    return svg(
        120 + 170 * layers,
        44 + 26 * len(model.target),
        parts,
        title="The likeliest token after each layer of the decoder",
    )


def softmax(model: Model) -> str:
    """All logits of the least certain step, from the largest to the smallest, as logits and as probabilities."""
    step = int(np.argmax([each.entropy for each in model.trace.steps]))
    with torch.no_grad():
        logits = (
            model.network.head.next_token(model.found.hidden[step : step + 1], None).log_probs()[0].double().numpy()
        )
    ordered = np.sort(logits)[::-1]
    span = ordered[0] - ordered[-1]
    parts = [
        text(
            50,
            22,
            f"log p of all {len(ordered):,} tokens, likeliest first, before “{model.target[step]}”",
            size=12,
            color=QUIET,
        )
    ]
    points = " ".join(
        f"{50 + 440 * rank / len(ordered):.1f},{40 + 200 * (ordered[0] - value) / span:.1f}"
        for rank, value in enumerate(ordered)
        if rank < 50 or rank % 10 == 0
    )
    parts.append(f'<polyline points="{points}" fill="none" stroke="{MAIN}" stroke-width="2"/>')
    mass = np.cumsum(np.exp(ordered))
    for share in (0.5, 0.9, 0.99, 0.999):
        rank = int(np.searchsorted(mass, share))
        x, y = 50 + 440 * rank / len(ordered), 40 + 200 * (ordered[0] - ordered[rank]) / span
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{SECOND}"/>')
        parts.append(text(x + 8, y - 3, f"{100 * share:g} % of the mass: {rank + 1} tokens", size=12))
    for nats in range(0, int(span) + 1, 5):
        parts.append(
            text(
                44,
                44 + 200 * nats / span,
                f"{ordered[0] - nats + 0.0:.0f}".replace("-0", "0"),
                anchor="end",
                size=11,
                color=QUIET,
            )
        )
    return svg(520, 260, parts, title="Log-probabilities of all tokens at one step")


def cost(model: Model) -> str:
    """Multiply-adds for one more target token, by part: this model, and the base model with 32,000 tokens."""
    parts: Parts = []
    rows = [
        (
            "this model",
            model.settings.width,
            model.settings.feed_forward,
            model.settings.decoder_layers,
            model.trace.facts.vocabulary,
            14,
            10,
        ),
        ("the base model of 2017", 512, 2048, 6, 32_000, 30, 30),
        ("a vocabulary of 256,000", 512, 2048, 6, 256_000, 30, 30),
    ]
    for row, (name, d, f, layers, v, s, t) in enumerate(rows):
        pieces = [
            ("projections of attention", layers * (4 * d * d + 2 * d * d), MAIN),
            ("scores and means", layers * 2 * d * (s + t), "#7fb0a5"),
            ("feed-forward", layers * 2 * d * f, "#b9d6cd"),
            ("output head", d * v, SECOND),
        ]
        whole = sum(size for _, size, _ in pieces)
        x, y = 170.0, 40 + 44 * row
        parts.append(text(160, y + 14, name, anchor="end", size=12))
        parts.append(text(160, y + 29, f"{whole / 1e6:,.1f} million", anchor="end", size=11, color=QUIET))
        for label, size, fill in pieces:
            width = 400 * size / whole
            parts.append(
                rect(x, y, width, 30, fill, tip=f"{label}: {size / 1e6:.2f} million, {100 * size / whole:.0f} %")
            )
            if width > 40:
                parts.append(
                    text(
                        x + width / 2,
                        y + 20,
                        f"{100 * size / whole:.0f} %",
                        anchor="middle",
                        size=12,
                        color="#ffffff" if fill in (MAIN, SECOND) else INK,
                    )
                )
            x += width
    x = 170.0
    for label, fill in (
        ("attention’s products", MAIN),
        ("reading", "#7fb0a5"),
        ("feed-forward", "#b9d6cd"),
        ("output head", SECOND),
    ):
        parts.append(rect(x, 16, 10, 10, fill))
        parts.append(text(x + 14, 25, label, size=11, color=QUIET))
        x += 30 + 6.2 * len(label)
    return svg(600, 180, parts, title="Multiply-adds for one target token, by part")


FIGURES: tuple[Callable[[Model], str], ...] = (
    network,
    embeddings,
    positions,
    self_attention,
    masked,
    cross_attention,
    residual,
    distributions,
    lens,
    softmax,
    cost,
)


def numbers(picture: str) -> list[float]:
    """Return the numbers of a picture, for comparison."""
    return [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"#[0-9a-f]{6}", "", picture))]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    model = Model()
    for figure in FIGURES:
        (folder / f"{figure.__name__.replace('_', '-')}.svg").write_text(figure(model), encoding="utf-8")


if __name__ == "__main__":
    main()
