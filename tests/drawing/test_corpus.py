"""The corpus lens in a terminal and on a page: its numbers, charts and sortable tables."""

import copy
import json
import re
from dataclasses import replace

import pytest
import torch

from translume.drawing import corpus_lines, corpus_page
from translume.inspection.comparison import compare_on_corpus
from translume.inspection.corpus import CorpusLens, inspect_corpus
from translume.translator import Translator

PAIRS = [
    ("hello <b> </script> & you", 'b & "c" </script>'),
    *((f"{one} {other}", f"{other} {one}") for one in ("abc", "de", "fghi", "j") for other in ("klm", "nop.", "q!")),
]


@pytest.fixture(scope="module")
def alone(translator) -> CorpusLens:
    return inspect_corpus(translator, [*PAIRS, ("a" * 41, "b")])


@pytest.fixture(scope="module")
def lens(translator, alone) -> CorpusLens:
    other = copy.deepcopy(translator.checkpoint.model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for parameter in other.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    opponent = Translator(replace(translator.checkpoint, model=other))
    return replace(alone, comparison=compare_on_corpus(translator, opponent, PAIRS))


def test_the_terminal_shows_the_numbers_of_the_lens(lens):
    shown = [line.plain for line in corpus_lines(lens)]
    assert shown[0] == f"{lens.pairs} pairs, {lens.tokens} target tokens, {lens.nll:.3f} nats per token"
    assert shown[1] == f"1 pairs left out as longer than the model reads, the first at line {len(PAIRS) + 1}"
    (overall,) = (line for line in shown if line.strip().startswith("all "))
    assert overall.split()[-4:] == [
        f"{lens.reliability.count:,}", f"{lens.reliability.confidence:.3f}", f"{lens.reliability.accuracy:.3f}",
        f"{lens.reliability.ece:.3f}",
    ]  # fmt: skip
    (end,) = (line for line in shown if line.strip().startswith("end mark"))
    assert end.split()[-1] == f"{lens.end.ece:.3f}"
    for each in lens.reliability.bins:
        if each.count:
            assert any(f" {each.count:,d}  {each.confidence:.3f}  {each.accuracy:.3f}" in line for line in shown)
    for view in lens.places:
        assert any(line.split()[:4] == [str(view.place), str(view.tokens), f"{view.nll:.3f}", f"{view.entropy:.3f}"]
                   for line in shown)  # fmt: skip
    for pair in (*lens.suspects, *lens.hardest):
        assert any(line.startswith(f"  line {pair.line}: gain {pair.gain:+6.2f}") for line in shown)
        assert f"    {pair.source}\n    {pair.target}" in shown
    assert any(f"{lens.never_types:,} of {lens.types:,} tokens, {lens.never_tokens:,} occurrences" in x for x in shown)
    assert sum(line.startswith("  line ") and "by the other model" in line for line in shown) == len(
        lens.comparison.partings
    )
    for gap in lens.comparison.gaps:
        assert any(line.startswith(f"  line {gap.line}: log p {gap.log_p:.2f}, other {gap.other_log_p:.2f}")
                   for line in shown)  # fmt: skip


def test_the_length_of_a_reliability_bar_is_the_accuracy(lens):
    drawn = [line.plain for line in corpus_lines(lens) if "│" in line.plain and line.plain.startswith("  0.")]
    bins = [each for each in lens.reliability.bins if each.count]
    assert len(drawn) == len(bins)
    for line, each in zip(drawn, bins, strict=True):
        cells = line[13 : 13 + 40]
        assert cells.index("│") == min(39, round(40 * each.confidence))
        assert abs(cells.count("█") - round(40 * each.accuracy)) <= 1


def test_the_page_needs_no_network_and_holds_the_whole_lens(lens):
    html = corpus_page(lens, title="<model> on a & b")
    assert not re.search(r"(src|href)\s*=|url\(|@import|fetch\(|XMLHttp", html)
    assert html.count("</script>") == 2
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    data = json.loads(text)
    assert CorpusLens.from_dict(data["lens"]) == lens
    assert data["title"] == "<model> on a & b"


@pytest.fixture
def show(open_page):
    """Open the page of a lens."""
    return lambda found, *look: open_page(corpus_page(found, title="a model on two files"), *look)


def test_charts_show_the_numbers(show, lens):
    tab = show(lens)
    assert tab.inner_text("#of") == "a model on two files"
    assert f"{lens.reliability.ece:.3f}" in tab.text_content("#sure-facts")
    steps = [int(each.get_attribute("data-steps")) for each in tab.locator("#sure circle").all()]
    assert steps == [each.count for each in lens.reliability.bins if each.count]
    bars = [(int(each.get_attribute("data-tokens")), float(each.get_attribute("width")))
            for each in tab.locator("#ranks rect").all()]  # fmt: skip
    assert [tokens for tokens, _ in bars] == [each.tokens for each in lens.ranks]
    most = max(bars)
    for tokens, width in bars:
        assert width == pytest.approx(max(1, most[1] * tokens / most[0]), abs=0.5)
    assert tab.locator("#places circle").count() == 2 * len(lens.places)
    first = tab.locator("#places circle title").first.text_content()
    assert first == f"position 1: entropy {lens.places[0].entropy:.3f} nats of {lens.places[0].tokens} tokens"


def test_the_reliability_curve_of_a_band_or_of_the_end_mark_can_be_selected(show, lens):
    tab = show(lens)
    bands = [band for band in lens.bands if band.reliability]
    assert tab.locator("#group option").count() == len(bands) + 2
    for place, found in ((1, bands[0].reliability), (len(bands) + 1, lens.end)):
        tab.select_option("#group", str(place))
        assert tab.text_content("#sure-facts") == f"ECE {found.ece:.3f} · {found.count:,} steps"


def lines(tab, table):
    return [int(each.get_attribute("data-line")) for each in tab.locator(f"#{table} tbody tr").all()]


def test_tables_sort_by_mouse_and_by_keyboard(show, lens):
    tab = show(lens)
    assert lines(tab, "pairs") == [pair.line for pair in lens.suspects]
    tab.click("#pairs th button:text-is('line')")
    assert lines(tab, "pairs") == sorted(pair.line for pair in lens.suspects)
    assert tab.get_attribute("#pairs th:first-child", "aria-sort") == "ascending"
    tab.keyboard.press("Enter")
    assert lines(tab, "pairs") == sorted((pair.line for pair in lens.suspects), reverse=True)
    assert tab.get_attribute("#pairs th:first-child", "aria-sort") == "descending"
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert lines(tab, "pairs") == [pair.line for pair in lens.suspects]
    tab.select_option("#list", "hardest")
    assert lines(tab, "pairs") == [pair.line for pair in lens.hardest]
    shown = tab.locator("#pairs tbody tr").first.locator("td.text div").all_inner_texts()
    assert shown == [" ".join(text.split()) for text in (lens.hardest[0].source, lens.hardest[0].target)]


def test_a_comparison_is_shown_if_there_is_one(show, lens, alone):
    tab = show(lens)
    assert lines(tab, "gaps") == [gap.line for gap in lens.comparison.gaps]
    assert lines(tab, "partings") == [parting.line for parting in lens.comparison.partings]
    assert f"{lens.comparison.same} translations are equal" in tab.inner_text("#verdict")
    first = lens.comparison.partings[0]
    told = tab.locator("#partings tbody tr").first.inner_text()
    for value in (first.own.log_p, first.own.of_other, first.other.log_p, first.other.of_other):
        assert f"{value:.2f}" in told
    assert not show(alone).is_visible("#comparison-section")


def test_impossible_and_unknown_values_are_marked(show, lens):
    pair = replace(lens.suspects[0], log_p=-float("inf"), gain=None, worst_log_p=-float("inf"))
    place = replace(lens.places[0], nll=None, entropy=None)
    odd = replace(
        lens, nll=None, impossible=1, suspects=(pair,), places=(place, *lens.places[1:]), never_types=0,
        never_predicted=(), bands=(replace(lens.bands[0], nll=None, first=None, reliability=None),),
    )  # fmt: skip
    tab = show(odd)
    cells = tab.locator("#pairs tbody td").all_inner_texts()
    assert cells[1:3] == ["–", "−∞"]
    assert cells[4] == f"{pair.worst} −∞"
    assert not tab.is_visible("#never-section")
    assert tab.locator("#places circle").count() == 2 * len(lens.places) - 2
    text = "\n".join(line.plain for line in corpus_lines(odd))
    assert "1 of them impossible" in text
    assert "gain   none, log p per token -inf" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_fits_narrow_and_wide_in_light_and_dark(show, lens, scheme, width):
    tab = show(lens, width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    assert float(tab.get_attribute("#sure svg", "width")) <= width
    tab.set_viewport_size({"width": 2000 - width, "height": 900})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 2000 - width
    tab.select_option("#theme", "dark" if scheme == "light" else "light")
    assert tab.evaluate("document.documentElement.dataset.theme") != scheme
