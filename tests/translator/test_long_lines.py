"""A line that is too long is translated sentence by sentence; text is never truncated silently."""

import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.errors import TranslationError
from translume.text.sentences import split_text
from translume.translator import Translator
from translume.translator.assembly import separator_between

Make = Callable[..., Translator]

CUTS = '; decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it'

texts = st.text('ab. !?…”"。」！ \n\tZ1', max_size=60)


@given(text=texts)
def test_sentences_and_spacing_join_to_the_text(text: str) -> None:
    sentences = split_text(text)
    assert "".join(sentence + spacing for sentence, spacing in sentences) == text
    assert all(sentence for sentence, _ in sentences) or not text.strip()  # white space alone is not translated
    assert all(spacing == "" or spacing.isspace() for _, spacing in sentences)
    assert all("\n" not in sentence.strip() for sentence, _ in sentences)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("One.  Two", ["One.", "Two"]),
        ("He said: “Go.” She went.", ["He said: “Go.”", "She went."]),
        ("(Really?) Yes… No...  Ja", ["(Really?)", "Yes…", "No...", "Ja"]),
        ("Version 2.0 is out. Fine.", ["Version 2.0 is out.", "Fine."]),
        ("Am 3. Mai kam J. Smith. Gut.", ["Am 3. Mai kam J. Smith.", "Gut."]),
        ("He came, e.g. with a car. Good.", ["He came, e.g. with a car.", "Good."]),
        ("你好。我是人！你呢？好", ["你好。", "我是人！", "你呢？", "好"]),
        ("他说：「走吧。」她走了。", ["他说：「走吧。」", "她走了。"]),
        ("A title\nA text. More", ["A title", "A text.", "More"]),
        ("no end", ["no end"]),
        ("", []),
    ],
)
def test_sentence_boundaries(text: str, sentences: list[str]) -> None:
    assert [sentence for sentence, _ in split_text(text)] == sentences


@pytest.mark.parametrize("unit", [".", "a", " ", ". ", '."', "\n", "。", "a. "])
def test_a_megabyte_of_any_text_is_split_quickly(unit: str) -> None:
    begun = time.process_time()
    split_text(unit * (1_000_000 // len(unit)))
    assert time.process_time() - begun < 5


def test_a_long_line_is_translated_in_parts_with_its_own_spacing(make: Make) -> None:
    translator = make("decoding.beam=2", max_positions=12)
    text = "  abc def.  Ghi jkl!\tMno? "
    found = translator.translate(text)
    parts = [translator.translate(part) for part in ("abc def.", "Ghi jkl!", "Mno?")]
    assert found.source == text
    assert found.text == f"{parts[0]}  {parts[1]}\t{parts[2]}"
    assert found.warnings == ()
    best = found.hypotheses[0]
    assert best.log_prob == pytest.approx(sum(part.hypotheses[0].log_prob for part in parts), abs=1e-4)
    assert best.score == pytest.approx(sum(part.hypotheses[0].score for part in parts), abs=1e-4)
    assert best.ids == sum((part.hypotheses[0].ids for part in parts), ())


@pytest.mark.parametrize(
    ("before", "spacing", "after", "source", "wanted"),
    [
        ("One.", " ", "Two.", ".Z", " "),
        ("One.", "", "Two.", "。二", " "),
        ("One.", "", "Two.", ".Z", ""),
        ("一。", " ", "二。", ".T", ""),
        ("一。", " ", "二。", "。二", " "),
        ("一。", "", "二。", ".T", ""),
        ("一。", "  ", "二。", ".T", "  "),
        ("One.", "", "二。", ".T", ""),
        ("하나.", " ", "둘.", ".T", " "),
        ("", "", "Two.", "", ""),
    ],
)
def test_sentences_are_separated_as_in_the_targets_script(
    before: str, spacing: str, after: str, source: str, wanted: str
) -> None:
    assert separator_between(before, spacing, after, source) == wanted


def test_the_best_combinations_of_the_parts_are_returned(make: Make) -> None:
    translator = make("decoding.beam=3", max_positions=8)
    found = translator.translate("abcd. Efgh.", nbest=3)
    one, other = (translator.translate(part, nbest=3).hypotheses for part in ("abcd.", "Efgh."))
    every = sorted((a.score + b.score for a in one for b in other), reverse=True)
    assert [each.score for each in found.hypotheses] == pytest.approx(every[:3], abs=1e-4)
    assert found.hypotheses[0].text == f"{one[0].text} {other[0].text}"


def test_a_line_that_just_fits_is_not_split(make: Make) -> None:
    text = "abc. Def."
    translator = make(max_positions=len(text) + 1)
    hypothesis = translator.translate(text).hypotheses[0]
    assert translator.score(text, hypothesis).log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)


def test_a_sentence_that_is_too_long_raises_after_all_lines_before_it(make: Make) -> None:
    translator = make(max_positions=12)
    found: list[str] = []
    with pytest.raises(TranslationError) as caught:
        found.extend(each.source for each in translator.translate_all(["abc", "", "a" * 12, "def"]))
    assert str(caught.value) == ("line 3: a sentence has 12 tokens, expected at most 11" + CUTS)
    assert found == ["abc", ""]
    with pytest.raises(TranslationError) as caught:
        translator.translate("Ok. " + "Z" + "a" * 1199)
    assert str(caught.value) == ("text: sentence 2 of 2 has 1,200 tokens, expected at most 11" + CUTS)


def test_a_sentence_that_is_too_long_is_cut_at_clauses_then_at_words_with_a_warning(make: Make) -> None:
    translator = make("decoding.strategy=greedy", max_positions=13)
    found = translator.translate("Ok. abcd, efg hij klm no")
    parts = [translator.translate(part).text for part in ("Ok. abcd,", "efg hij", "klm no")]
    assert found.text == " ".join(parts)
    assert found.warnings == ("split: a sentence had 24 tokens and was translated in 3 parts",)
    assert len(found.source) == 24
    words = translator.translate(" ".join(["abc"] * 3000))
    assert words.warnings == ("split: a sentence had 11,999 tokens and was translated in 1,500 parts",)
    assert words.text == " ".join([translator.translate("abc abc").text] * 1500)


def test_thai_is_cut_between_characters_and_its_parts_are_joined_with_spaces(make: Make) -> None:
    found = make("decoding.strategy=greedy", max_positions=13).translate("กา" * 15)
    assert found.warnings == ("split: a sentence had 30 tokens and was translated in 3 parts",)


def test_a_truncated_sentence_is_a_warning(make: Make) -> None:
    translator = make("decoding.max_length_action=truncate", max_positions=12)
    found = translator.translate("b" * 25)
    assert found.warnings == ("truncated: a sentence had 25 tokens and was cut to 11",)
    assert found.source == "b" * 25
    assert found.hypotheses == translator.translate("b" * 11).hypotheses
    assert translator.translate("Ok. Z" + "a" * 11).warnings == (
        "truncated: sentence 2 of 2 had 12 tokens and was cut to 11",
    )


def test_a_megabyte_without_a_break_is_an_error_within_seconds(make: Make) -> None:
    begun = time.process_time()
    with pytest.raises(TranslationError) as caught:
        list(make().translate_all(["abc", "x" * 1_000_000]))
    assert str(caught.value) == ("line 2: a sentence has 1,000,000 tokens, expected at most 40" + CUTS)
    assert time.process_time() - begun < 10


@given(parts=st.lists(st.text("abcd", min_size=1, max_size=6), min_size=4, max_size=9))
def test_any_number_of_sentences_is_translated_and_joined(make: Make, parts: list[str]) -> None:
    translator = make("decoding.strategy=greedy", "decoding.max_length=5", max_positions=9)
    text = "! ".join(part.capitalize() for part in parts) + "!"
    found = translator.translate(text)
    alone = [translator.translate(f"{part.capitalize()}!").text for part in parts]
    assert re.sub(r"\s+", " ", found.text) == re.sub(r"\s+", " ", " ".join(alone))


def test_a_hypothesis_of_several_parts_cannot_be_forced(make: Make) -> None:
    translator = make("decoding.beam=2", max_positions=8)
    eos = translator.checkpoint.target_tokenizer.specials.eos
    best = translator.translate("abcd.").hypotheses[0]
    joined = replace(best, ids=(5, eos, 7, eos), tokens=("b", "</s>", "d", "</s>"))
    with pytest.raises(TranslationError) as caught:
        translator.score("abcd.", joined)
    assert str(caught.value) == (
        "pair: the hypothesis was joined from parts, expected one of a single sentence; "
        'split = "never" translates a text as one'
    )
