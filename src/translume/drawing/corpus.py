"""A corpus lens for a terminal."""

from collections.abc import Iterator

from rich.text import Text

from translume.inspection.corpus_values import BandView, CorpusComparison, CorpusLens, Divergence, Gap, PairView
from translume.reliability import Reliability

BAR = 40


def corpus_lines(lens: CorpusLens) -> Iterator[Text]:
    """The lens line by line."""
    nll = f"{lens.nll:.3f} nats a token" if lens.nll is not None else "no distribution"
    if lens.impossible:
        nll = f"{lens.impossible:,} impossible tokens among them"
    yield Text(f"{lens.pairs:,} pairs, {lens.tokens:,} target tokens, {nll}")
    if lens.too_long:
        yield Text(
            f"{lens.too_long:,} pairs longer than the model reads left out, the first at line {lens.first_too_long}"
        )
    yield from _calibration(lens)
    yield from _ranks(lens)
    yield from _places(lens)
    for title, pairs in (
        ("pairs whose source says least for their target (misaligned?)", lens.suspects),
        ("hardest pairs", lens.hardest),
    ):
        yield from _title(title)
        for pair in pairs:
            yield from _pair(pair)
    if lens.never_types:
        yield from _title(
            f"in references, but nowhere the likeliest: {lens.never_types:,} of {lens.types:,} tokens, "
            f"{lens.never_tokens:,} occurrences"
        )
        more = lens.never_types - len(lens.never_predicted)
        names = [f"{each.text} ({each.tokens})" for each in lens.never_predicted]
        yield Text("  " + ", ".join([*names, f"{more:,} more"] if more else names))
    if lens.comparison is not None:
        yield from _comparison(lens.comparison)


def times(band: BandView) -> str:
    """How often tokens of a band stand in what was counted."""
    if band.most is None:
        return f"{band.least:,} or more"
    return f"{band.least:,}" if band.least == band.most else f"{band.least:,}–{band.most:,}"


def _title(text: str) -> Iterator[Text]:
    yield Text("")
    yield Text(text, style="bold")


def _calibration(lens: CorpusLens) -> Iterator[Text]:
    yield from _title("how sure, and how often right")
    yield Text("  of the likeliest token, by how sure            steps   sure  right")
    for each in lens.reliability.bins:
        if each.confidence is None or each.accuracy is None:
            continue
        line = Text(f"  {each.low:.2f}–{each.high:.2f}  ")
        right, sure = round(BAR * each.accuracy), min(BAR - 1, round(BAR * each.confidence))
        cells = ["█" if place < right else " " for place in range(BAR)]
        line.append("".join(cells[:sure]), style="blue").append("│", style="red")
        line.append("".join(cells[sure + 1 :]), style="blue")
        yield line.append(f" {each.count:8,d}  {each.confidence:.3f}  {each.accuracy:.3f}")
    yield Text("  bars: how often right; │: how sure")
    counted = "the training targets" if lens.frequency == "training" else "these targets"
    yield from _title(f"by how often a token stands in {counted}")
    yield Text("        times    types   tokens     nll  first     steps   sure  right    ECE")
    for band in lens.bands:
        first = "    –" if band.first is None else f"{band.first:5.3f}"
        yield Text(
            f"  {times(band):>11} {band.types:8,d} {band.tokens:8,d} {_number(band.nll)}  {first}  "
            f"{_reliability(band.reliability)}"
        )
    yield Text(
        f"  {'all':>11} {lens.types:8,d} {lens.tokens:8,d} {_number(lens.nll)}         {_reliability(lens.reliability)}"
    )
    yield Text(f"  {'end mark':>11} {'p(end) at every step':>33}  {_reliability(lens.end)}")
    yield Text("  left, of reference tokens (first: the likeliest); right, of steps by their likeliest token")


def _reliability(found: Reliability | None) -> str:
    if found is None:
        return "       –"
    return f"{found.count:8,d}  {found.confidence:.3f}  {found.accuracy:.3f}  {found.ece:.3f}"


def _number(value: float | None) -> str:
    return "      –" if value is None else f"{value:7.3f}"


def _ranks(lens: CorpusLens) -> Iterator[Text]:
    yield from _title("rank of the reference's token")
    before = 0
    for each in lens.ranks:
        name = f"> {before}" if each.most is None else f"{before + 1}–{each.most}"
        if each.most == before + 1:
            name = str(each.most)
        share = each.tokens / lens.tokens
        yield Text(f"  {name:>7} {share:7.2%}  ").append("█" * round(BAR * share), style="blue")
        before = each.most or before


def _places(lens: CorpusLens) -> Iterator[Text]:
    yield from _title("place    tokens     nll entropy")
    most = max((view.entropy or 0.0 for view in lens.places), default=0.0) or 1.0
    for view in lens.places:
        line = Text(f"{view.place:5d} {view.tokens:9,d} {_number(view.nll)} {_number(view.entropy)}  ")
        yield line.append("█" * round(BAR * (view.entropy or 0.0) / most), style="blue")


def _pair(pair: PairView) -> Iterator[Text]:
    gain = "  none" if pair.gain is None else f"{pair.gain:+6.2f}"
    mean = pair.log_p / pair.tokens
    yield Text(f"  line {pair.line}: gain {gain}, log p a token {mean:.2f}, worst {pair.worst} {pair.worst_log_p:.1f}")
    yield Text(f"    {pair.source}\n    {pair.target}")


def _comparison(found: CorpusComparison) -> Iterator[Text]:
    yield from _title("compared with the other model")
    units = "tokens" if found.unit == "token" else "pieces between places where both cut, for their tokens differ"
    yield Text(f"  {found.pairs:,} pairs by {units}")
    yield Text(f"  log p of the references {found.log_p:,.1f}, of the other {found.other_log_p:,.1f} nats")
    yield Text(f"  better for {found.better:,} pairs, worse for {found.worse:,}")
    yield Text(f"  {found.same:,} translations are the same, {found.pairs - found.same:,} part")
    if found.gaps:
        yield from _title("references: where the two differ most")
        yield from map(_gap, found.gaps)
    if found.partings:
        yield from _title("translations: where the two part, the surest first")
        yield from map(_parting, found.partings)


def _gap(gap: Gap) -> Text:
    line = Text(f"  line {gap.line}: log p {gap.log_p:.2f}, other {gap.other_log_p:.2f}  {gap.before}")
    return line.append(gap.text or " ▪", style="bold reverse")


def _parting(parting: Divergence) -> Text:
    shown = Text(f"  line {parting.line}: {parting.source}")
    for who, whole, own, other in (
        ("this", parting.text, parting.own, parting.other),
        ("other", parting.other_text, parting.other, parting.own),
    ):
        shown.append(f"\n    {who:5}  {parting.shared}").append(own.text or " ▪", style="bold reverse")
        shown.append(whole[len(parting.shared) + len(own.text) :])
        shown.append(f"\n           log p {own.log_p:.2f}, by the other model {other.of_other:.2f}")
    return shown
