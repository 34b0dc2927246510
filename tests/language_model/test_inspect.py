"""Inspecting a text shows the predicted distribution before each of its tokens, and self-attention."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from translume.cli import main
from translume.errors import TranslationError
from translume.inspection.tracing import trace_text
from translume.translator import Generator


def test_a_trace_has_the_probabilities_of_forced_decoding(generator: Generator) -> None:
    text = "aa bb cc and dd"
    found, score = trace_text(generator, text, k=2), generator.score(text)
    assert [step.log_p for step in found.steps] == pytest.approx(score.token_log_probs, abs=1e-4)
    assert found.log_p == pytest.approx(score.log_prob, abs=1e-3)
    assert [token.text for token in found.tokens] == list(score.tokens)
    for step in found.steps:
        best, second = step.top.candidates
        assert (step.rank == 1) == (step.p == pytest.approx(best.p_model))
        assert best.p_model >= second.p_model
        assert best.p_model + second.p_model + step.top.tail == pytest.approx(1.0, abs=1e-5)
        assert [lens.layer for lens in step.lens] == [1, 2]
        assert step.lens[-1].log_p == pytest.approx(step.log_p, abs=1e-4)


def test_each_token_attends_to_itself_and_earlier_ones(generator: Generator) -> None:
    found = trace_text(generator, "aa bb cc")
    assert found.attention is not None
    assert len(found.attention) == 2
    for layer in found.attention:
        assert layer is not None
        assert len(layer) == 2
        for head in layer:
            for place, row in enumerate(head):
                assert sum(row) == pytest.approx(1.0, abs=1e-3)
                assert not any(row[place + 1 :])


def test_texts_that_do_not_fit_are_refused(generator: Generator) -> None:
    for text, message in (
        ("", "text: found a blank text, expected a text to inspect"),
        ("aa " * 11, "text: found 12 tokens with EOS, expected at most 11"),
    ):
        with pytest.raises(TranslationError) as caught:
            trace_text(generator, text.rstrip())
        assert str(caught.value) == message


def test_the_command_prints_a_line_for_each_token(folder: Path) -> None:
    run = CliRunner().invoke(main, ["inspect", str(folder), "aa bb", "--top", "2"])
    assert run.exit_code == 0
    lines = run.stdout.splitlines()
    assert len(lines) == 2 + 3
    assert lines[-1].startswith("'</s>'")
    value = json.loads(CliRunner().invoke(main, ["inspect", str(folder), "aa bb", "--json"]).stdout)["trace"]
    assert value["schema"] == "text/1"
    assert len(value["attention"]) == 2
    run = CliRunner().invoke(main, ["inspect", str(folder), "aa", "--target", "bb"])
    assert run.stderr == "Error: --target cannot be combined with a language model\n"
    run = CliRunner().invoke(main, ["inspect", str(folder), "aa", "--beam", "2"])
    assert run.stderr == "Error: inspect: decoding.beam has no effect on a language model here\n"


def test_the_page_of_a_text_shows_its_steps_lens_and_self_attention(
    folder: Path, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """The page of a translation without its source, its search and its rules."""
    page = tmp_path / "page.html"
    run = CliRunner().invoke(main, ["inspect", str(folder), "aa bb cc", "--top", "2", "--html", str(page)])
    assert (run.exit_code, run.stdout, run.stderr) == (0, "", f"{page}: written\n")
    tab = open_page(page.read_text(encoding="utf-8"))
    assert tab.locator("#h-text").inner_text() == "The text"
    assert [each.strip() for each in tab.locator("#target .token").all_inner_texts()] == ["▁aa", "▁bb", "▁cc", "</s>"]
    visible = [each.get_attribute("id") for each in tab.locator("h2:visible").all()]
    assert visible == ["h-text", "h-step", "h-lens", "h-attention"]
    assert not tab.locator("#shade").is_visible()
    tab.click("#target [data-step='1']")
    bars = tab.locator("#bars .bar.single .number").all_inner_texts()
    assert len(bars) == 3
    assert sum(float(each.rstrip(" %").replace("<", "")) for each in bars) == pytest.approx(100, abs=0.2)
    tab.locator("#bars button:not(.chosen)").first.click()
    assert tab.locator("#whatif").inner_text().startswith('translume generate MODEL "aa')
    assert tab.locator("#kind option").all_inner_texts() == ["text over text"]
    assert "search" not in tab.locator("#footer").inner_text()
