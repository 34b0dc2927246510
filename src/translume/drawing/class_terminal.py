"""A classifier's answer for a terminal; without colours the numbers say the same."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from translume.drawing.terminal import BAR, NARROW, cut
from translume.inspection import ClassTrace

STRONG = 0.25
"""The share of the strongest evidence from which a token is coloured."""
NUMBER = 9
"""Characters of a number in a column."""


def class_lines(trace: ClassTrace) -> Iterator[Text]:
    """The trace line by line: the text, its classes, and a line of evidence for each token."""
    yield Text("text    ").append_text(_coloured(trace))
    given = ", ".join(trace.labels) or "none"
    yield Text(f"class   {given}; margin {trace.margin:.3f}, entropy {trace.entropy:.2f} nats")
    for warning in trace.warnings:
        yield Text(f"        {warning}", style="yellow")
    yield Text("")
    yield from _classes(trace)
    yield Text("")
    yield from _evidence(trace)


def _looked(trace: ClassTrace) -> int:
    """How many classes evidence was worked out for."""
    return max((len(each.values) for each in trace.evidence), default=1)


def _classes(trace: ClassTrace) -> Iterator[Text]:
    shown = trace.classes[: _looked(trace)]
    others = trace.classes[len(shown) :]
    wide = max(NARROW, *(len(each.label) for each in shown))
    for each in shown:
        line = Text(f"{each.label:<{wide}}  {each.p:6.3f}  ", style="bold" if each.given else "")
        yield line.append("█" * round(BAR * each.p), style="blue")
    if others and not trace.facts.several:
        mass = sum(each.p for each in others)
        name = f"{len(others)} others"
        yield Text(f"{name:<{wide}}  {mass:6.3f}  ").append("█" * round(BAR * mass), style="bright_black")
    elif others:
        yield Text(f"{len(others)} others, none likelier than {others[0].p:.3f}")


def _evidence(trace: ClassTrace) -> Iterator[Text]:
    """A row a token, a column for each method and class."""
    columns: list[tuple[str, str, Sequence[float | None]]] = [
        (each.method, belief.label, row)
        for each in trace.evidence
        for belief, row in zip(trace.classes, each.values, strict=False)
    ]
    if trace.pooling is not None:
        columns.append(("pooling", trace.facts.pooling, trace.pooling))
    if not columns:
        return
    yield Text("what each token says for a class (log p, nats), and how much it counts in the text's vector")
    wide = [max(NUMBER, len(method), len(label)) for method, label, _ in columns]
    for place in (0, 1):
        names = (column[place] for column in columns)
        repeated = zip(names, [""] + [column[0] for column in columns], wide, columns, strict=False)
        yield Text(
            f"{'token' if place else '':{NARROW}}"
            + "".join(f"  {'' if place == 0 and name == before else name:>{w}}" for name, before, w, _ in repeated),
            style="bold",
        )
    for number, token in enumerate(trace.source_tokens):
        line = Text(f"{cut(trace.shown(token)):{NARROW}}")
        for (method, _, row), w in zip(columns, wide, strict=True):
            value = row[number]
            told = "none" if value is None else f"{value:.3f}" if method == "pooling" else f"{value:+z.2f}"
            style = "" if method == "pooling" else _style(value, row)
            line.append(f"  {told:>{w}}", style=style)
        yield line


def _coloured(trace: ClassTrace) -> Text:
    """The text's tokens, coloured by the first method for the likeliest class."""
    text = Text()
    row = trace.evidence[0].values[0] if trace.evidence else None
    for place, token in enumerate(trace.source_tokens):
        characters = trace.source[token.begin : token.end]
        if characters:
            text.append(characters, style="" if row is None else _style(row[place], row))
    return text


def _style(value: float | None, row: Sequence[float | None]) -> str:
    most = max((abs(each) for each in row if each is not None), default=0.0)
    if value is None or abs(value) < STRONG * most or most == 0.0:
        return ""
    return "bold green" if value > 0 else "bold red"
