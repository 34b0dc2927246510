"""Inspection results as lines for a terminal. Colours only repeat what the numbers say."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from translume.evaluation import Reliability
from translume.inspection.values import (
    Attribution,
    BandView,
    BeamRecord,
    Choice,
    ClassTrace,
    CorpusComparison,
    CorpusLens,
    Divergence,
    Edited,
    Forced,
    Fork,
    Frames,
    Gap,
    Outcome,
    PairView,
    Step,
    Trace,
    WhyNot,
)
from translume.text.imported import SPACE

SHADES = " ░▒▓█"
COLUMN_WIDTH = 14
"""Characters of a token in a column."""
SOURCE_WIDTH = 96
"""Maximum number of columns of a source of frames."""
SPECTROGRAM_LINES, MAX_IMAGE_LINES = 8, 24
"""Lines of a spectrogram, and of an image."""
_TICK_WIDTH, _HIGHEST_LEVEL = 10, 255
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""Token of one byte of a character outside the vocabulary."""
BAR = 20
"""Characters of a bar of probability 1."""
WIDE_BAR = 40
"""Characters of a bar of probability 1 in a corpus lens."""
MIN_SHOWN_EFFECT = 0.0005
"""Rules that move the distribution by less than this are not shown."""
MIN_SHOWN_NATS = 0.005
"""Changes of less than this many nats are shown as 0.00 without a bar."""
COLOURED_SHARE = 0.25
"""Tokens with at least this fraction of the strongest evidence are coloured."""
NUMBER_WIDTH = 9
"""Characters of a number in a column."""
MAX_EFFECTS = 4
"""Source tokens listed for each target token."""
MIN_SHARE_OF_EFFECT = 0.1
"""Source tokens with less than this fraction of the largest effect on a target token are not listed."""
MIN_FIXED_P = 1e-4
"""Smaller probabilities are shown as a power of ten."""


def column(text: str, width: int = COLUMN_WIDTH) -> str:
    """Cut and pad a text to the width of a column. Han and other wide characters take two cells of a terminal."""
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width)


def shade(weight: float) -> str:
    """Return a block for an attention weight; weights from 0.6 on are the darkest."""
    return SHADES[min(len(SHADES) - 1, int(weight * 1.6 * (len(SHADES) - 1) + 0.5))]


def trace_lines(trace: Trace, *, beam: BeamRecord | None = None) -> Iterator[Text]:
    """Yield the lines of a trace: its texts, one line per step, attention, attributions, and the search record."""
    yield Text(f"source  {trace.source}{'' if trace.frames is None else f': {trace.frames.size}'}")
    for warning in trace.warnings:
        yield Text(f"        {warning}", style="yellow")
    yield Text("target  ").append_text(_coloured(trace))
    yield Text(f"log p   {trace.log_p:.3f} nats, finished by {trace.finished_by}")
    yield Text("")
    yield Text(
        f"step  {'token':{COLUMN_WIDTH}}  {'p':>6} {'rank':>5} {'H':>5} {'gain':>6}  likeliest tokens, and all others",
        style="bold",
    )
    for place, (token, step) in enumerate(zip(trace.target_tokens, trace.steps, strict=True)):
        yield _step(place, token.text, step)
    if trace.frames is not None:
        yield Text("")
        yield from _frames(trace, trace.frames)
    elif (attention := trace.cross_attention()) is not None:
        yield Text("")
        yield from _heat_map(trace, *attention)
    for attribution in trace.attributions:
        yield Text("")
        yield from _effects(trace, attribution)
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
    gain = "" if step.gain is None else f"{step.gain:+.1f}"
    head = f"{place:4}  {column(text)}  {step.p_model:6.3f} {step.rank:5d} {step.entropy:5.2f} {gain:>6}  "
    line = Text(head, style=_style(step.p_model)).append(f"{'█' * round(BAR * step.p_model):{BAR}}", style="blue")
    line.append(f" {step.top_model}")
    for rule in step.rules:
        if rule.moved < MIN_SHOWN_EFFECT:
            continue
        line.append(f"  [{rule.name} moved {rule.moved:.3f}; p_used {step.p_used:.3f}]", style="green")
    return line


def _heat_map(trace: Trace, weights: NDArray[np.float64], layer: int) -> Iterator[Text]:
    """Yield a heat map of the cross-attention [t, S] of a layer; rows are target tokens."""
    assert trace.attention is not None
    heads = len(trace.attention.cross[layer - 1])
    yield Text(f"cross-attention, layer {layer}, mean of {heads} heads (columns: source tokens)")
    for place, token in enumerate(trace.source_tokens):
        yield Text(f"{'':{COLUMN_WIDTH}}  {'│' * place}╭ {token.text}")
    for token, row in zip(trace.target_tokens, weights.tolist(), strict=True):
        yield Text(f"{column(token.text)}  ").append("".join(map(shade, row)), style="blue")


def _effects(trace: Trace, attribution: Attribution) -> Iterator[Text]:
    """Yield the source tokens with the largest effect on each target token, largest first."""
    what = "source tokens" if trace.frames is None else "positions of the source"
    yield Text(f"{what} with the largest effect on each token ({attribution.method}, nats)")
    for token, row in zip(trace.target_tokens, attribution.values, strict=True):
        known = [(value, source.text) for value, source in zip(row, trace.source_tokens, strict=True) if value]
        known.sort(key=lambda each: -abs(each[0]))
        least = max(MIN_SHOWN_NATS, MIN_SHARE_OF_EFFECT * abs(known[0][0])) if known else 0.0
        shown = [f"{text} {value:+.2f}" for value, text in known[:MAX_EFFECTS] if abs(value) >= least]
        yield Text(f"{column(token.text)}  {', '.join(shown)}".rstrip())


def _search(beam: BeamRecord) -> Iterator[Text]:
    yield Text(f"search: {beam.strategy}, width {beam.width}; {len(beam.nodes)} hypotheses considered")
    for target in beam.finished[:5]:
        score = "  none" if target.score is None else f"{target.score:6.3f}"
        yield Text(f"  {score}  {target.text}")
    if beam.greedy.ids != beam.finished[0].ids:
        how = "a lower" if beam.beat_greedy else "no lower"
        yield Text(f"  greedy search finds a result with {how} score: {beam.greedy.text}")
    if beam.reference is not None:
        score = "no score" if beam.reference.score is None else f"score {beam.reference.score:.3f}"
        yield Text(f"  reference ({score}): {beam.reference.text}: {beam.verdict}")


def _frames(trace: Trace, frames: Frames) -> Iterator[Text]:
    """Yield a spectrogram or an image, and below it the cross-attention and the part of each target token."""
    length = len(frames.levels)
    width = min(SOURCE_WIDTH, length)
    edges = np.linspace(0, length, width + 1)
    title = {"image": "image", "features": "values, the last on top"}.get(frames.kind, "spectrogram, 8 kHz on top")
    yield Text(f"{title}, {_alignment(frames)}")
    margin = " " * (2 * COLUMN_WIDTH + 2)
    for row in _shades(frames, edges):
        yield Text(margin + row)
    yield Text(margin + _axis(frames, width))
    attention = trace.cross_attention()
    if attention is not None and trace.attention is not None:
        heads = len(trace.attention.cross[attention[1] - 1])
        many = f"mean of {heads} heads" if heads > 1 else "mean of its heads"
        yield Text(f"cross-attention, layer {attention[1]}, {many}; ─: the part of the token")
    begins = [token.begin for token in trace.source_tokens if token.end > token.begin]
    for place, token in enumerate(trace.target_tokens):
        cells = [" "] * width
        first, last = np.array(frames.spans[place]) * width / length
        for cell in range(width):
            if first < cell + 1 and cell < last:
                cells[cell] = "─"
            if attention is not None:
                inside = _positions(begins, edges[cell], edges[cell + 1])
                mark = shade(float(attention[0][place][inside].max()))
                cells[cell] = mark if mark != " " else cells[cell]
        line = Text(f"{column(token.text)}{column(_span(frames, place))}  ")
        yield line.append("".join(cells).rstrip(), style="blue")


def _positions(begins: list[int], first: float, last: float) -> slice:
    """Return the positions of the encoder that overlap frames from `first` to `last`."""
    begin = max(0, int(np.searchsorted(begins, first, "right")) - 1)
    return slice(begin, max(begin + 1, int(np.searchsorted(begins, last, "left"))))


def _alignment(frames: Frames) -> str:
    if not frames.aligned_by:
        return f"in {frames.unit}"
    how = {"ctc": "CTC", "attention": "attention"}[frames.aligned_by]
    return f"in {frames.unit}; the part of each token by {how}"


def _shades(frames: Frames, edges: NDArray[np.float64]) -> Iterator[str]:
    """Yield the lines of a picture with a column between two edges each."""
    pixels = frames.pixels().astype(float)
    if pixels.ndim == 3:
        pixels = pixels.mean(2)
    height, length = pixels.shape
    if frames.kind == "image":
        count = min(MAX_IMAGE_LINES, height, max(3, round(height * (len(edges) - 1) / length / 2)))
        pixels = _HIGHEST_LEVEL - pixels if pixels.mean() > _HIGHEST_LEVEL / 2 else pixels  # so that ink is drawn
    else:
        count = min(SPECTROGRAM_LINES, height)
    low, high = np.percentile(pixels, (5, 99))
    rows = np.linspace(0, height, count + 1).round().astype(int)
    columns = edges.round().astype(int)
    for top, bottom in pairwise(rows):
        means = [
            pixels[top:bottom, min(begin, length - 1) : max(end, begin + 1)].mean() for begin, end in pairwise(columns)
        ]
        shares = np.clip((np.array(means) - low) / max(high - low, 1.0), 0, 1)
        yield "".join(SHADES[round(share * (len(SHADES) - 1))] for share in shares).rstrip()


def _axis(frames: Frames, width: int) -> str:
    """Return ticks with their places, below the columns that they are at."""
    length = frames.place_of(len(frames.levels))
    least = length * _TICK_WIDTH / width
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * many for many in (1, 2, 5, 10) if power * many >= least)
    step = step if frames.per_second else max(1.0, step)
    line = ""
    for number in range(int(length / step) + 1):
        line = f"{line:<{round(number * step * width / length)}}╵{number * step:g}"
    return line


def _span(frames: Frames, place: int) -> str:
    """Return the part of the source that a target token belongs to; empty if it has none."""
    begin, end = frames.spans[place]
    if end <= begin:
        return ""
    if frames.per_second:
        return f"{frames.place_of(begin):.2f}–{frames.place_of(end):.2f}"
    return f"{begin}–{end - 1}"


def class_lines(trace: ClassTrace) -> Iterator[Text]:
    """Yield the lines of a class trace: the text, its classes, and one line of evidence per token."""
    yield Text("text    ").append_text(_evidence_colours(trace))
    given = ", ".join(trace.labels) or "none"
    yield Text(f"class   {given}; margin {trace.margin:.3f}, entropy {trace.entropy:.2f} nats")
    for warning in trace.warnings:
        yield Text(f"        {warning}", style="yellow")
    yield Text("")
    yield from _classes(trace)
    yield Text("")
    yield from _evidence(trace)


def _classes(trace: ClassTrace) -> Iterator[Text]:
    shown = trace.classes[: max((len(each.values) for each in trace.evidence), default=1)]  # those with evidence
    others = trace.classes[len(shown) :]
    wide = max(COLUMN_WIDTH, *(len(each.label) for each in shown))
    for each in shown:
        line = Text(f"{each.label:<{wide}}  {each.p:6.3f}  ", style="bold" if each.given else "")
        yield line.append("█" * round(BAR * each.p), style="blue")
    if others and not trace.facts.several:
        mass = sum(each.p for each in others)
        name = f"{len(others)} others"
        yield Text(f"{name:<{wide}}  {mass:6.3f}  ").append("█" * round(BAR * mass), style="bright_black")
    elif others:
        yield Text(f"{len(others)} others, each at most {others[0].p:.3f}")


def _evidence(trace: ClassTrace) -> Iterator[Text]:
    """Yield one row per token, with a column for each method and class."""
    columns: list[tuple[str, str, Sequence[float | None]]] = [
        (each.method, belief.label, row)
        for each in trace.evidence
        for belief, row in zip(trace.classes, each.values, strict=False)
    ]
    if trace.pooling is not None:
        columns.append(("pooling", trace.facts.pooling, trace.pooling))
    if not columns:
        return
    yield Text("evidence of each token for a class (log p, nats), and its pooling weight")
    wide = [max(NUMBER_WIDTH, len(method), len(label)) for method, label, _ in columns]
    for place in (0, 1):
        names = (column[place] for column in columns)
        repeated = zip(names, [""] + [column[0] for column in columns], wide, columns, strict=False)
        yield Text(
            f"{'token' if place else '':{COLUMN_WIDTH}}"
            + "".join(f"  {'' if place == 0 and name == before else name:>{w}}" for name, before, w, _ in repeated),
            style="bold",
        )
    for number, token in enumerate(trace.source_tokens):
        line = Text(f"{column(trace.shown(token))}")
        for (method, _, row), w in zip(columns, wide, strict=True):
            value = row[number]
            cell = "none" if value is None else f"{value:.3f}" if method == "pooling" else f"{value:+z.2f}"
            style = "" if method == "pooling" else _evidence_style(value, row)
            line.append(f"  {cell:>{w}}", style=style)
        yield line


def _evidence_colours(trace: ClassTrace) -> Text:
    """Colour the text by the evidence of the first method for the likeliest class."""
    text = Text()
    row = trace.evidence[0].values[0] if trace.evidence else None
    for place, token in enumerate(trace.source_tokens):
        characters = trace.source[token.begin : token.end]
        if characters:
            text.append(characters, style="" if row is None else _evidence_style(row[place], row))
    return text


def _evidence_style(value: float | None, row: Sequence[float | None]) -> str:
    most = max((abs(each) for each in row if each is not None), default=0.0)
    if value is None or abs(value) < COLOURED_SHARE * most or most == 0.0:
        return ""
    return "bold green" if value > 0 else "bold red"


def corpus_lines(lens: CorpusLens) -> Iterator[Text]:
    """Yield the lines of a corpus lens."""
    nll = f"{lens.nll:.3f} nats per token" if lens.nll is not None else "no distribution"
    if lens.impossible:
        nll = f"{lens.impossible:,} of them impossible"
    yield Text(f"{lens.pairs:,} pairs, {lens.tokens:,} target tokens, {nll}")
    if lens.too_long:
        yield Text(
            f"{lens.too_long:,} pairs left out as longer than the model reads, the first at line {lens.first_too_long}"
        )
    if lens.truncated:
        yield Text(f"{lens.truncated:,} sources were longer than the model reads and were truncated")
    yield from _calibration(lens)
    yield from _ranks(lens)
    yield from _places(lens)
    for title, pairs in (("pairs with the lowest gain (misaligned?)", lens.suspects), ("hardest pairs", lens.hardest)):
        yield from _title(title)
        for pair in pairs:
            yield from _pair(pair)
    if lens.never_types:
        yield from _title(
            f"in references, but never the likeliest token: {lens.never_types:,} of {lens.types:,} tokens, "
            f"{lens.never_tokens:,} occurrences"
        )
        more = lens.never_types - len(lens.never_predicted)
        names = [f"{each.text} ({each.tokens})" for each in lens.never_predicted]
        yield Text("  " + ", ".join([*names, f"{more:,} more"] if more else names))
    if lens.comparison is not None:
        yield from _comparison(lens.comparison)


def times(band: BandView) -> str:
    """Return the frequency range of a band."""
    if band.most is None:
        return f"{band.least:,} or more"
    return f"{band.least:,}" if band.least == band.most else f"{band.least:,}–{band.most:,}"


def _title(text: str) -> Iterator[Text]:
    yield Text("")
    yield Text(text, style="bold")


def _calibration(lens: CorpusLens) -> Iterator[Text]:
    yield from _title("calibration: confidence and accuracy")
    yield Text("  of the likeliest token, by confidence          steps  conf.   acc.")
    for each in lens.reliability.bins:
        if each.confidence is None or each.accuracy is None:
            continue
        line = Text(f"  {each.low:.2f}–{each.high:.2f}  ")
        accurate, confident = round(WIDE_BAR * each.accuracy), min(WIDE_BAR - 1, round(WIDE_BAR * each.confidence))
        cells = ["█" if place < accurate else " " for place in range(WIDE_BAR)]
        line.append("".join(cells[:confident]), style="blue").append("│", style="red")
        line.append("".join(cells[confident + 1 :]), style="blue")
        yield line.append(f" {each.count:8,d}  {each.confidence:.3f}  {each.accuracy:.3f}")
    yield Text("  bars: accuracy; │: confidence")
    counted = "the training targets" if lens.frequency == "training" else "these targets"
    yield from _title(f"by frequency of the token in {counted}")
    yield Text("        times    types   tokens     nll  first     steps  conf.   acc.    ECE")
    for band in lens.bands:
        first = "    –" if band.first is None else f"{band.first:5.3f}"
        yield Text(
            f"  {times(band):>11} {band.types:8,d} {band.tokens:8,d} {_nats(band.nll)}  {first}  "
            f"{_reliability(band.reliability)}"
        )
    yield Text(
        f"  {'all':>11} {lens.types:8,d} {lens.tokens:8,d} {_nats(lens.nll)}         {_reliability(lens.reliability)}"
    )
    yield Text(f"  {'EOS':>11} {'p(EOS) at every step':>33}  {_reliability(lens.end)}")
    yield Text("  left: reference tokens (first: fraction with rank 1); right: steps, by their likeliest token")


def _reliability(reliability: Reliability | None) -> str:
    if reliability is None:
        return "       –"
    return f"{reliability.count:8,d}  {reliability.confidence:.3f}  {reliability.accuracy:.3f}  {reliability.ece:.3f}"


def _nats(value: float | None) -> str:
    return "      –" if value is None else f"{value:7.3f}"


def _ranks(lens: CorpusLens) -> Iterator[Text]:
    yield from _title("rank of the reference's token")
    before = 0
    for each in lens.ranks:
        name = f"> {before}" if each.most is None else f"{before + 1}–{each.most}"
        if each.most == before + 1:
            name = str(each.most)
        share = each.tokens / lens.tokens
        yield Text(f"  {name:>7} {share:7.2%}  ").append("█" * round(WIDE_BAR * share), style="blue")
        before = each.most or before


def _places(lens: CorpusLens) -> Iterator[Text]:
    yield from _title("  pos.  tokens     nll entropy")
    largest = max((view.entropy or 0.0 for view in lens.places), default=0.0) or 1.0
    for view in lens.places:
        place = f"{view.place}+" if view.and_later else f"{view.place} "
        line = Text(f"{place:>6}{view.tokens:9,d} {_nats(view.nll)} {_nats(view.entropy)}  ")
        yield line.append("█" * round(WIDE_BAR * (view.entropy or 0.0) / largest), style="blue")


def _pair(pair: PairView) -> Iterator[Text]:
    gain = "  none" if pair.gain is None else f"{pair.gain:+6.2f}"
    mean = pair.log_p / pair.tokens
    yield Text(
        f"  line {pair.line}: gain {gain}, log p per token {mean:.2f}, worst {pair.worst} {pair.worst_log_p:.1f}"
    )
    yield Text(f"    {pair.source}\n    {pair.target}")


def _comparison(comparison: CorpusComparison) -> Iterator[Text]:
    yield from _title("compared with the other model")
    units = "tokens" if comparison.unit == "token" else "pieces between positions where both tokenizers split"
    yield Text(f"  {comparison.pairs:,} pairs by {units}")
    yield Text(f"  log p of the references {comparison.log_p:,.1f}, of the other {comparison.other_log_p:,.1f} nats")
    yield Text(f"  better for {comparison.better:,} pairs, worse for {comparison.worse:,}")
    yield Text(f"  {comparison.same:,} translations are equal, {comparison.pairs - comparison.same:,} differ")
    if comparison.gaps:
        yield from _title("references: the largest differences")
        yield from map(_gap, comparison.gaps)
    if comparison.partings:
        yield from _title("translations: where they diverge, largest disagreement first")
        yield from map(_divergence, comparison.partings)


def _gap(gap: Gap) -> Text:
    line = Text(f"  line {gap.line}: log p {gap.log_p:.2f}, other {gap.other_log_p:.2f}  {gap.before}")
    return line.append(gap.text or " ▪", style="bold reverse")


def _divergence(divergence: Divergence) -> Text:
    shown = Text(f"  line {divergence.line}: {divergence.source}")
    for who, whole, own, other in (
        ("this", divergence.text, divergence.own, divergence.other),
        ("other", divergence.other_text, divergence.other, divergence.own),
    ):
        shown.append(f"\n    {who:5}  {divergence.shared}").append(own.text or " ▪", style="bold reverse")
        shown.append(whole[len(divergence.shared) + len(own.text) :])
        shown.append(f"\n           log p {own.log_p:.2f}, by the other model {other.of_other:.2f}")
    return shown


def forced_lines(forced: Forced, given_text: str | None = None) -> Iterator[Text]:
    """Yield the target before and after forcing a token; given_text: the text that the user forced, if known."""
    yield Text(f"source   {forced.source}")
    yield Text(f"forced   {forced.fork.wanted.text if given_text is None else given_text}, at step {forced.fork.step}")
    yield from _fork(forced.fork, forced.before.tokens)
    yield from _outcomes([("before", forced.before), ("forced", forced.after)])


def why_not_lines(why: WhyNot) -> Iterator[Text]:
    """Yield a given text, the search's result, and the best target with the text's token at the fork."""
    yield Text(f"source   {why.source}")
    yield Text(f"why not  {why.text}")
    if why.fork is not None:
        yield from _fork(why.fork, why.found.tokens)
    elif why.wanted is not None and why.wanted.ids == why.found.ids:
        yield Text("         this is what the search found")
    else:
        yield Text("         the search's result was cut at its length limit before the two differ")
    shown = [("found", why.found), ("wanted", why.wanted)]
    if why.fork is not None:
        shown.insert(1, (f"best with {why.fork.wanted.text}", why.continued))
    yield from _outcomes(shown)


def edited_lines(edited: Edited) -> Iterator[Text]:
    """Yield both translations, and how log p of each token of the first one changes."""
    yield Text(f"source   {edited.source}")
    yield Text(f"edited   {edited.edited}")
    change = "stays the same" if edited.step is None else f"changes at step {edited.step}"
    yield Text(f"         the translation {change}")
    yield from _outcomes([("before", edited.before), ("after", edited.after)])
    yield Text("")
    yield Text(f"step  {'token before':{COLUMN_WIDTH}}  {'log p':>8} {'moved':>7}  (nats)", style="bold")
    largest = max((abs(each) for each in edited.moves if each is not None), default=0.0)
    own = zip(edited.before.tokens, edited.before.token_log_probs, edited.moves, strict=True)
    for place, (token, log_p, move) in enumerate(own):
        line = Text(f"{place:4}  {column(token)}  {log_p:8.3f} ")
        if move is None:
            yield line.append("   none")
            continue
        style = "" if abs(move) < MIN_SHOWN_NATS else "green" if move > 0 else "red"
        bar = "█" * round(BAR * abs(move) / largest) if style else ""
        yield line.append(f"{move:+z7.2f}  {bar}".rstrip(), style=style)


def _fork(fork: Fork, tokens: Sequence[str]) -> Iterator[Text]:
    """Yield the fork of two targets: the shared tokens and the probability of either continuation."""
    shared = "".join(tokens[: fork.step]).replace(SPACE, " ").strip()
    yield Text("")
    yield Text(
        f"step {fork.step}, after: {shared}" if fork.step else f"step {fork.step}, at the beginning of the target"
    )
    yield _choice("chosen", fork.chosen)
    yield _choice("wanted", fork.wanted)
    if BYTE.fullmatch(fork.wanted.text.removeprefix(SPACE)):
        yield Text(f"  {fork.wanted.text} is a byte of a character that the target vocabulary lacks")


def _choice(what: str, choice: Choice) -> Text:
    p = f"{choice.p_model:.2e}" if 0.0 < choice.p_model < MIN_FIXED_P else f"{choice.p_model:.6f}"
    line = Text(f"  {what:6}  {column(choice.text)}  p {p}, rank {choice.rank:<5} ")
    return line.append("█" * round(BAR * choice.p_model), style="blue")


def _outcomes(shown: Sequence[tuple[str, Outcome | None]]) -> Iterator[Text]:
    """Yield whole targets with their scores; the best one is bold."""
    wide = max(cell_len(name) for name, _ in shown)
    best = max(each.score for _, each in shown if each is not None)
    yield Text("")
    yield Text(f"{'':{wide + 2}}  {'score':>8} {'log p':>9}", style="bold")
    for name, each in shown:
        if each is None:
            yield Text(f"  {column(name, wide)}  rules forbid it")
            continue
        style = "bold" if each.score == best else ""
        yield Text(f"  {column(name, wide)}  {each.score:8.3f} {each.log_prob:9.3f}  {each.text}", style=style)
