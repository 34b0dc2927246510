"""Texts and sentences without letters are kept, by one rule for Python, commands, the server and files."""

from collections.abc import Callable

import pytest

from translume.translator import Translator
from translume.translator.planning import Line

Make = Callable[..., Translator]
TRANSLATES = ("data.source_language='en'", "data.target_language='de'")
LETTERLESS = ["42", "12:30", "!!!", "→", " 5.5 % ", "½", "\U0001f600"]


@pytest.mark.parametrize("text", LETTERLESS)
def test_a_text_without_letters_is_its_own_translation(make: Make, text: str) -> None:
    translator = make(*TRANSLATES)
    found = translator.translate(text, beam=3, nbest=2, alignment=True)
    assert (found.text, found.hypotheses) == (text, ())
    assert [each.text for each in translator.translate_all([text, "abc", text])][::2] == [text, text]


def test_a_sentence_without_letters_is_kept_within_a_text(make: Make) -> None:
    translator = make(*TRANSLATES)
    found = translator.translate("!!! Abc def. 42! Ghi.", split="always")
    parts = [translator.translate(text).text.rstrip() for text in ("Abc def.", "Ghi.")]
    assert found.text.split() == ["!!!", *parts[0].split(), "42!", *parts[1].split()]


def test_a_setting_translates_it(make: Make) -> None:
    same = make("data.source_language='en'", "data.target_language='en'")
    assert make(*TRANSLATES).translate("!!!", letterless="translate").hypotheses
    assert same.translate("!!!").hypotheses
    assert same.translate("!!!", letterless="keep").text == "!!!"


def test_a_prefix_and_constraints_are_written_nevertheless(make: Make) -> None:
    translator = make(*TRANSLATES)
    assert translator.translate("42", prefix="ab").text.startswith("ab")
    assert "ab" in translator.translate("42", constraints=["ab"], beam=3).text


def test_the_final_part_of_a_kept_text_is_reported(make: Make) -> None:
    reported: list[str] = []
    translator = make(*TRANSLATES)
    line = Line(number=1, text="42")
    (found,) = translator.translate_lines([line], translator.config.decoding, {1: reported.append})
    assert reported == [found.text] == ["42"]
