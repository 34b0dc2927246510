"""A corpus lens for a terminal."""

from collections.abc import Iterator

from rich.text import Text

from translume.inspection.corpus import CorpusLens, PairView

BAR = 40


def corpus_lines(lens: CorpusLens) -> Iterator[Text]:
    """The lens line by line."""
    nll = "impossible tokens among them" if lens.nll is None else f"{lens.nll:.3f} nats a token"
    yield Text(f"{lens.pairs:,} pairs, {lens.tokens:,} target tokens, {nll}")
    yield Text("")
    yield Text("rank of the reference's token", style="bold")
    before = 0
    for each in lens.ranks:
        name = f"> {before}" if each.most is None else f"{before + 1}–{each.most}"
        if each.most == before + 1:
            name = str(each.most)
        share = each.tokens / lens.tokens
        yield Text(f"  {name:>7} {share:7.2%}  ").append("█" * round(BAR * share), style="blue")
        before = each.most or before
    yield Text("")
    yield Text("place    tokens  entropy    nll", style="bold")
    for view in lens.places:
        shown = "    ∞" if view.nll is None else f"{view.nll:6.3f}"
        yield Text(f"{view.place:5d} {view.tokens:9,d}  {view.entropy:7.3f} {shown}")
    for title, pairs in (
        ("pairs whose source says least for their target (misaligned?)", lens.suspects),
        ("hardest pairs", lens.hardest),
    ):
        yield Text("")
        yield Text(title, style="bold")
        for pair in pairs:
            yield from _pair(pair)
    if lens.never_first:
        yield Text("")
        yield Text("in references, but never the likeliest where they stand", style="bold")
        yield Text("  " + ", ".join(f"{each.text} ({each.tokens})" for each in lens.never_first))


def _pair(pair: PairView) -> Iterator[Text]:
    gain = "  none" if pair.gain is None else f"{pair.gain:+6.2f}"
    mean = pair.log_p / pair.tokens
    yield Text(f"  line {pair.line}: gain {gain}, log p a token {mean:.2f}, worst {pair.worst} {pair.worst_log_p:.1f}")
    yield Text(f"    {pair.source}\n    {pair.target}")
