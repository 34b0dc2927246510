"""A trace for a terminal: colours by probability, bars and a heat map; without colours the numbers say the same."""

from collections.abc import Iterator

from rich.text import Text

from translume.inspection import BeamRecord, Trace
from translume.inspection.values import Step, Top

SHADES = " ░▒▓█"
BAR = 20
"""Characters of a bar of probability 1."""
SLIGHT = 0.0005
"""A rule that moves less than this is not worth a word."""
NARROW = 14
"""Characters of a token in a column."""


def lines(trace: Trace, *, beam: BeamRecord | None = None) -> Iterator[Text]:
    """The trace line by line: target, one line a step, attention, and what became of the search."""
    yield Text(f"source  {trace.source}")
    yield Text("target  ").append_text(_coloured(trace))
    yield Text(f"log p   {trace.log_p:.3f} nats, finished by {trace.finished_by}")
    yield Text("")
    yield Text(
        f"step  {'token':{NARROW}}  {'p':>6} {'rank':>5} {'H':>5} {'gain':>6}  likeliest, and all others", style="bold"
    )
    for place, (token, step) in enumerate(zip(trace.target_tokens, trace.steps, strict=True)):
        yield _step(place, token.text, step)
    if trace.attention is not None and trace.attention.cross:
        yield Text("")
        yield from _heat_map(trace)
    if beam is not None:
        yield Text("")
        yield from _search(beam)


def _coloured(trace: Trace) -> Text:
    text = Text()
    for token, step in zip(trace.target_tokens, trace.steps, strict=True):
        text.append(token.text.replace("▁", " "), style=_style(step.p_model))
    return text


def _style(p: float) -> str:
    if p >= 0.9:
        return ""
    if p >= 0.5:
        return "yellow"
    return "dark_orange" if p >= 0.2 else "bold red"


def _step(place: int, text: str, step: Step) -> Text:
    gain = "" if step.prior is None or step.prior.gain is None else f"{step.prior.gain:+.1f}"
    head = f"{place:4}  {cut(text):{NARROW}}  {step.p_model:6.3f} {step.rank:5d} {step.entropy:5.2f} {gain:>6}  "
    line = Text(head, style=_style(step.p_model)).append(f"{'█' * round(BAR * step.p_model):{BAR}}", style="blue")
    line.append(f" {_told(step.top_model)}")
    for rule in step.rules:
        if rule.moved < SLIGHT:
            continue
        line.append(f"  [{rule.name} moved {rule.moved:.3f}; p_used {step.p_used:.3f}]", style="green")
    return line


def _told(top: Top) -> str:
    listed = ", ".join(f"{each.text} {each.p_model:.3f}" for each in top.candidates)
    return f"{listed}, others {top.tail:.3f}"


def _heat_map(trace: Trace) -> Iterator[Text]:
    """Cross-attention of the last layer but one, the mean of its heads: rows are target tokens."""
    assert trace.attention is not None
    layers = trace.attention.cross
    layer = layers[max(0, len(layers) - 2)]
    yield Text(f"cross-attention, layer {max(1, len(layers) - 1)}, mean of {len(layer)} heads (columns: source tokens)")
    for place, token in enumerate(trace.source_tokens):
        yield Text(f"{'':{NARROW}}  {'│' * place}╭ {token.text}")
    for row, token in enumerate(trace.target_tokens):
        cells = [sum(head[row][column] for head in layer) / len(layer) for column in range(len(trace.source_tokens))]
        yield Text(f"{cut(token.text):{NARROW}}  ").append("".join(map(_shade, cells)), style="blue")


def _shade(weight: float) -> str:
    return SHADES[min(len(SHADES) - 1, int(weight * 1.6 * (len(SHADES) - 1) + 0.5))]


def _search(beam: BeamRecord) -> Iterator[Text]:
    yield Text(f"search: {beam.strategy}, width {beam.width}; {len(beam.nodes)} hypotheses looked at")
    for target in beam.finished[:5]:
        score = "  none" if target.score is None else f"{target.score:6.3f}"
        yield Text(f"  {score}  {target.text}")
    if beam.greedy.ids != beam.finished[0].ids:
        how = "worse" if beam.beat_greedy else "no worse"
        yield Text(f"  greedy search finds, {how}: {beam.greedy.text}")
    if beam.reference is not None:
        score = "no score" if beam.reference.score is None else f"score {beam.reference.score:.3f}"
        yield Text(f"  reference ({score}): {beam.reference.text}: {beam.verdict}")


def cut(text: str) -> str:
    """A text as it fits into a narrow column."""
    return text if len(text) <= NARROW else text[: NARROW - 1] + "…"
