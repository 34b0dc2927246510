"""The page of a trace: one self-contained file, and its controls in a browser."""

import json
import re

import pytest
import torch

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, ModelSettings, TokenizerSettings
from translume.drawing import trace_page
from translume.inspection import BeamRecord, Trace, trace
from translume.text import train_tokenizer
from translume.translator import Translator

SOURCE = "hello <b> </script> & you"


@pytest.fixture(scope="module")
def complete_trace(make_trace, make_beam, make_forced) -> tuple[str, Trace, BeamRecord]:
    found, beam = make_trace(SOURCE), make_beam(SOURCE)
    other = next(each for each in found.steps[1].top_used.candidates if each.id != found.target_tokens[1].id)
    forced = make_forced(SOURCE, 1, other.id)
    return trace_page(found, beam=beam, alternatives={1: {other.id: forced}}), found, beam


def test_the_page_needs_no_network_and_holds_the_whole_trace(complete_trace):
    html, found, beam = complete_trace
    assert not re.search(r"(src|href)\s*=|url\(|@import|fetch\(|XMLHttp", html)
    assert html.count("</script>") == 2
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    data = json.loads(text)
    assert Trace.from_dict(data["trace"]) == found
    assert BeamRecord.from_dict(data["beam"]) == beam


def test_a_page_of_a_trace_alone_has_no_beam_and_no_alternatives(make_trace):
    html = trace_page(make_trace("abc", show=()))
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert json.loads(text)["beam"] is None
    assert json.loads(text)["alternatives"] == {}


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_fits_narrow_and_wide_in_light_and_dark(open_page, complete_trace, scheme, width):
    tab = open_page(complete_trace[0], width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme


@pytest.fixture(scope="module")
def long_trace() -> Trace:
    """A trace of 60 source and 60 target tokens, with the attention of 6 layers of 8 heads."""
    tokenizer = train_tokenizer(
        TokenizerSettings(kind="character", size=61, unknown="token"), ["abcdefghijklm nopqrst"]
    )
    settings = ModelSettings(
        width=32, feed_forward=29, encoder_layers=6, decoder_layers=6, attention_heads=8, max_positions=61
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = build_model(settings, len(tokenizer), len(tokenizer)).eval()
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    checkpoint = Checkpoint(
        config=Config(model=settings), model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer
    )
    return trace(Translator(checkpoint), "abcde fghij " * 4 + "klmnopqrstk", "tsrqp onmlk " * 4 + "jihgfedcbaj")


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


@pytest.mark.parametrize("form", ["links", "map"])
@pytest.mark.parametrize("width", [400, 1600])
def test_a_key_press_redraws_only_a_small_part_of_a_trace_of_60_tokens(open_page, long_trace, width, form):
    assert (len(long_trace.source_tokens), len(long_trace.target_tokens)) == (60, 60)
    tab = open_page(trace_page(long_trace), width)
    tab.select_option("#form", form)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.click("#target [data-step='0']")
    changed = tab.evaluate(PRESS)
    assert tab.get_attribute("#target [data-step='15']", "aria-selected") == "true"
    assert 0 < min(changed) <= max(changed) < 20 * 60  # elements; a key press takes about 30 ms
