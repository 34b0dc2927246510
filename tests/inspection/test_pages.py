"""The pages of traces, of classifications and of a corpus: self-contained files, and their controls in a browser."""

import html
import json
import re
from dataclasses import replace

import pytest

from translume.inspection import BeamRecord, ClassTrace, CorpusLens, Trace, trace
from translume.inspection.terminal import corpus_lines

SOURCE = "hello <b> </script> & you"


@pytest.fixture(scope="module")
def complete_trace(make_trace, make_beam, make_forced) -> tuple[str, Trace, BeamRecord]:
    found, beam = make_trace(SOURCE), make_beam(SOURCE)
    other = next(each for each in found.steps[1].top_used.candidates if each.id != found.target_tokens[1].id)
    forced = make_forced(SOURCE, 1, other.id)
    return found.to_page(beam=beam, alternatives={1: {other.id: forced}}), found, beam


def data_of(page):
    """Return what a page shows, which must be one self-contained file."""
    assert not re.search(r"(src|href)\s*=|url\(|@import|fetch\(|XMLHttp", page)
    assert page.count("</script>") == 2
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_pages_need_no_network_and_hold_the_whole_values(complete_trace, make_trace, class_trace, lens):
    page, found, beam = complete_trace
    data = data_of(page)
    assert Trace.from_dict(data["trace"]) == found
    assert BeamRecord.from_dict(data["beam"]) == beam
    alone = data_of(make_trace("abc", show=()).to_page())
    assert (alone["beam"], alone["alternatives"]) == (None, {})
    assert ClassTrace.from_dict(data_of(class_trace.to_page())["trace"]) == class_trace
    data = data_of(lens.to_page(title="<model> on a & b"))
    assert CorpusLens.from_dict(data["lens"]) == lens
    assert data["title"] == "<model> on a & b"


def test_a_notebook_shows_the_page_in_a_frame(complete_trace):
    found = complete_trace[1]
    (page,) = re.findall(r'^<iframe srcdoc="([^"<>]*)" style="[^"]*"></iframe>$', found._repr_html_())
    assert html.unescape(page) == found.to_page()


@pytest.fixture
def opened(open_page, complete_trace):
    return open_page(complete_trace[0])


def test_a_click_on_a_token_shows_its_bars_with_the_tail(opened, complete_trace):
    _, found, _ = complete_trace
    opened.click("#target [data-step='2']")
    assert opened.get_attribute("#target [data-step='2']", "aria-selected") == "true"
    step, bars = found.steps[2], opened.locator("#bars .bar")
    names = [each.text for each in step.top_model.candidates]
    assert bars.locator(".name").all_inner_texts()[: len(names)] == names
    assert bars.last.locator(".name").inner_text() == "all others"
    shares = [float(each.get_attribute("data-model")) for each in bars.all()]
    assert sum(shares) == pytest.approx(1.0, abs=1e-6)
    assert shares[0] == pytest.approx(step.top_model.candidates[0].p_model)


def test_arrow_keys_move_between_tokens(opened):
    opened.click("#target [data-step='1']")
    opened.keyboard.press("ArrowRight")
    assert opened.get_attribute("#target [data-step='2']", "aria-selected") == "true"
    opened.keyboard.press("Home")
    assert opened.get_attribute("#target [data-step='0']", "aria-selected") == "true"
    assert opened.evaluate("document.activeElement.dataset.step") == "0"


def test_forcing_another_token_shows_the_resulting_translation(opened, complete_trace, make_forced):
    _, found, _ = complete_trace
    other = next(each for each in found.steps[1].top_used.candidates if each.id != found.target_tokens[1].id)
    opened.click("#target [data-step='1']")
    opened.click(f"#bars [data-id='{other.id}']")
    wanted = make_forced(SOURCE, 1, other.id).after
    told = opened.inner_text("#whatif")
    assert f"{wanted.log_prob:.2f}" in told
    assert " ".join(wanted.text.split()) in " ".join(told.split())
    opened.click("#target [data-step='0']")
    opened.click("#bars .bar:nth-of-type(2)")
    assert "--prefix" in opened.inner_text("#whatif")


def test_the_search_tree_is_expanded_along_the_result_and_on_click(opened, complete_trace):
    _, _, beam = complete_trace
    shown = opened.locator("#beam [data-node]")
    before = shown.count()
    assert opened.locator("#beam .kept").count() == len(beam.finished[0].ids)
    closed = opened.locator("#beam button[aria-expanded='false']")
    if closed.count():
        closed.first.click()
        assert shown.count() > before


def test_attention_is_drawn_as_links_and_as_a_map_for_every_layer_and_head(opened, complete_trace):
    _, found, _ = complete_trace
    assert opened.locator("#attention svg line").count() > 0
    opened.select_option("#form", "map")
    assert opened.locator("#attention canvas").count() == 1
    opened.select_option("#kind", "decoder")
    opened.select_option("#layer", "0")
    opened.select_option("#head", "10")
    opened.select_option("#form", "links")
    assert opened.locator("#attention svg text").first.text_content() == "start"
    assert opened.locator("#layer option").count() == len(found.attention.decoder)


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1600, "dark")])
def test_pages_fit_narrow_and_wide_in_light_and_dark(open_page, complete_trace, class_trace, lens, scheme, width):
    for page in (complete_trace[0], class_trace.to_page(), lens.to_page()):
        tab = open_page(page, width, scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    assert float(tab.get_attribute("#sure svg", "width")) <= width
    tab.set_viewport_size({"width": 2000 - width, "height": 900})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 2000 - width
    tab.select_option("#theme", "dark" if scheme == "light" else "light")
    assert tab.evaluate("document.documentElement.dataset.theme") != scheme


@pytest.mark.parametrize(
    "options", [{"scheme": "light"}, {"scheme": "dark", "width": 360}, {"forced_colors": "active"}], ids=str
)
def test_pages_are_accessible(open_page, complete_trace, class_trace, lens, options):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    for page in (complete_trace[0], class_trace.to_page(), lens.to_page()):
        found = axe.Axe().run(open_page(page, **options)).response
        assert len(found["passes"]) > 10
        assert [(each["id"], node["html"]) for each in found["violations"] for node in each["nodes"]] == []


COLOURS = """([locator, name]) => {
  const found = [...document.querySelectorAll(locator)].map((each) => getComputedStyle(each)[name]);
  return [...new Set(found)];
}"""


def test_bars_and_selection_are_visible_in_forced_colours(open_page, complete_trace, class_trace, lens):
    tab = open_page(complete_trace[0], forced_colors="active")
    (ground,) = tab.evaluate(COLOURS, ["body", "backgroundColor"])
    for locator, name in [
        (".track i:not(.used)", "backgroundColor"),
        (".strip i", "backgroundColor"),
        ("#target [aria-selected=true]", "backgroundColor"),
        (".strip [aria-current=true] span", "backgroundColor"),
        ("#attention line", "stroke"),
    ]:
        found = tab.evaluate(COLOURS, [locator, name])
        assert found, locator
        assert ground not in found, locator
    others = tab.evaluate(COLOURS, ["#target [aria-selected=false]", "backgroundColor"])
    assert {each.rpartition(",")[0] for each in others} == {"rgba(255, 255, 255"}  # The browser takes the colour away.
    tab = open_page(class_trace.to_page(), forced_colors="active")
    assert ground not in tab.evaluate(COLOURS, ["#bars .track i", "backgroundColor"])
    # The more a token counts, the thicker the line below it.
    assert len(tab.evaluate(COLOURS, ["#source .token", "borderBottomWidth"])) > 1
    assert set(tab.evaluate(COLOURS, ["#source .token", "borderBottomStyle"])) == {"solid", "dotted"}
    tab = open_page(lens.to_page(), forced_colors="active")
    assert ground not in tab.evaluate(COLOURS, [".curve", "stroke"])


def test_without_scripts_a_page_says_what_it_needs(open_page, complete_trace, lens):
    for page in (complete_trace[0], lens.to_page()):
        tab = open_page(page, java_script_enabled=False)
        assert tab.inner_text("main").strip() == "This page needs JavaScript, which draws what the file holds."
        assert tab.locator("select:visible, section:visible").count() == 0


@pytest.fixture(scope="module")
def long_trace(make) -> Trace:
    """A trace of 60 source and 60 target tokens, with the attention of 6 layers of 11 heads."""
    translator = make(encoder_layers=6, decoder_layers=6, max_positions=61)
    return trace(translator, "abcde fghij " * 4 + "klmnopqrstk", "tsrqp onmlk " * 4 + "jihgfedcbaj")


PRESS = """async () => {
  const counts = [];
  let changed = 0;
  const count = (records) => {
    for (const each of records) {
      changed += 1 + [...each.addedNodes].reduce((sum, node) => sum + (node.querySelectorAll?.("*").length ?? 0), 0);
    }
  };
  const watch = new MutationObserver(count);
  watch.observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  for (let press = 0; press < 15; press++) {
    changed = 0;
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    count(watch.takeRecords());
    counts.push(changed);
  }
  return counts;
}"""


@pytest.mark.parametrize(("width", "form"), [(400, "links"), (1600, "map")])
def test_a_key_press_redraws_only_a_small_part_of_a_trace_of_60_tokens(open_page, long_trace, width, form):
    assert (len(long_trace.source_tokens), len(long_trace.target_tokens)) == (60, 60)
    tab = open_page(long_trace.to_page(), width)
    tab.select_option("#form", form)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.click("#target [data-step='0']")
    changed = tab.evaluate(PRESS)
    assert tab.get_attribute("#target [data-step='15']", "aria-selected") == "true"
    assert 0 < min(changed) <= max(changed) < 20 * 60  # elements; a key press takes about 30 ms


@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_of_a_classification_works_by_mouse_and_keyboard_at_any_width(open_page, class_trace, width):
    tab = open_page(class_trace.to_page(), width)
    shown = tab.locator("#source .token").all_inner_texts()
    assert shown == [class_trace.shown(token) for token in class_trace.source_tokens]
    bars = tab.locator("#bars .bar")
    assert sum(float(each.get_attribute("data-p")) for each in bars.all()) == pytest.approx(1.0, abs=1e-6)
    assert bars.last.locator(".name").inner_text() == "2 others"

    def column_texts(column):
        return [cell.inner_text() for cell in tab.locator(f"#evidence tbody td:nth-child({column})").all()]

    def told(values):
        return ["0.00" if abs(each) < 0.005 else f"{each:+.2f}".replace("-", "−") for each in values]

    assert column_texts(2) == told(class_trace.evidence[0].values[0])
    tab.click("#bars [data-class='1']")
    assert column_texts(2) == told(class_trace.evidence[0].values[1])
    tab.keyboard.press("ArrowDown")
    assert tab.get_attribute("#bars [data-class='2']", "aria-selected") == "true"
    assert column_texts(3) == told(class_trace.evidence[1].values[2])
    assert column_texts(4) == [f"{each:.3f}" for each in class_trace.pooling]
    tab.select_option("#shade", "pooling")
    tab.select_option("#shade", "none")


@pytest.fixture
def show(open_page):
    """Open the page of a lens."""
    return lambda lens, *look: open_page(lens.to_page(title="a model on two files"), *look)


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
    for place, chosen in ((1, bands[0].reliability), (len(bands) + 1, lens.end)):
        tab.select_option("#group", str(place))
        assert tab.text_content("#sure-facts") == f"ECE {chosen.ece:.3f} · {chosen.count:,} steps"


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


def test_a_comparison_is_shown_if_there_is_one(show, lens, lens_alone):
    tab = show(lens)
    assert lines(tab, "gaps") == [gap.line for gap in lens.comparison.gaps]
    assert lines(tab, "partings") == [parting.line for parting in lens.comparison.partings]
    assert f"{lens.comparison.same} translations are equal" in tab.inner_text("#verdict")
    first = lens.comparison.partings[0]
    told = tab.locator("#partings tbody tr").first.inner_text()
    for value in (first.own.log_p, first.own.of_other, first.other.log_p, first.other.of_other):
        assert f"{value:.2f}" in told
    assert not show(lens_alone).is_visible("#comparison-section")


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
