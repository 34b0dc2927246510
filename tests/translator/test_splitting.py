"""Lines are translated sentence by sentence by a model that was trained on single sentences, and never cut silently."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from translume import inspection
from translume.checkpoint import save_model
from translume.cli import main
from translume.config import DataSettings
from translume.data.lengths import Lengths
from translume.errors import TranslationError
from translume.text.sentences import split_text
from translume.translator import Translator
from translume.translator.assembly import best_choices

Make = Callable[..., Translator]
TEXT = "  Abc def.  Ghi jkl! "


def lengths(share: float) -> Lengths:
    return Lengths(
        pairs=1, several_sentences=share, longest_source=20, longest_target=(20,), least_ratio=(0.5, 0.5, 0.5, 0.5)
    )


def with_facts(translator: Translator, share: float | None, source: str = "en", target: str = "de") -> Translator:
    """Return the translator as if trained between two languages, a share of its sources with several sentences."""
    data = DataSettings(source_language=source, target_language=target)
    config = translator.config.model_copy(update={"data": data})
    found = None if share is None else lengths(share)
    return Translator(replace(translator.checkpoint, config=config, lengths=found))


@pytest.mark.parametrize(
    ("split", "share", "languages", "splits"),
    [
        ("auto", 0.0, ("en", "de"), True),
        ("auto", 0.04, ("en", "de"), True),
        ("auto", 0.06, ("en", "de"), False),
        ("auto", None, ("en", "de"), True),
        ("auto", 0.0, ("en", "en"), False),
        ("auto", 0.0, ("", ""), False),
        ("always", 0.9, ("", ""), True),
        ("never", 0.0, ("en", "de"), False),
    ],
)
def test_which_lines_are_translated_sentence_by_sentence(
    make: Make, split: Literal["auto", "always", "never"], share: float | None, languages: tuple[str, str], splits: bool
) -> None:
    translator = with_facts(make("decoding.strategy=greedy"), share, *languages)
    found = str(translator.translate(TEXT, split=split))
    one, two = (str(translator.translate(part, split="never")) for part in ("Abc def.", "Ghi jkl!"))
    whole = str(translator.translate(TEXT, split="never"))
    assert whole != f"{one}  {two}"
    assert found == (f"{one}  {two}" if splits else whole)


def test_lines_in_are_lines_out_when_they_are_split(make: Make) -> None:
    translator = with_facts(make("decoding.strategy=greedy"), 0.0)
    texts = ["Abc. Def.", "", " ", "abc", "One.\tTwo!  Three?", "."]
    found = list(translator.translate_all(texts, split="always"))
    assert [each.source for each in found] == texts
    assert [bool(each.text) for each in found] == [True, False, False, True, True, True]
    assert all("\n" not in each.text for each in found)


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_a_line_that_is_too_long_is_split_for_translation_only(make: Make, share: float) -> None:
    translator = with_facts(make("decoding.strategy=greedy", max_positions=12), share)
    assert str(translator.translate("Abc def. Ghi jkl.", split="never")).count(" ") >= 1
    summariser = with_facts(translator, share, "en", "en")
    with pytest.raises(TranslationError) as caught:
        list(summariser.translate_all(["abc", "Abc def. Ghi jkl."]))
    assert str(caught.value) == (
        'line 2: the text has 17 tokens, expected at most 11; decoding.max_length_action = "truncate" '
        '(--max-length-action truncate) cuts it, decoding.split = "always" (--split always) splits it at sentences'
    )


@pytest.mark.parametrize(
    ("keep", "kept", "said"), [("keep_first", "abcdefg", "7"), ("keep_last", "ijklmno", "the last 7")]
)
def test_texts_are_cut_as_in_training(make: Make, tmp_path: Path, keep: str, kept: str, said: str) -> None:
    """By searches, scores, traces and the statistics of a corpus, beyond `max_positions` too."""
    translator = make("decoding.strategy=greedy")
    cleaning = {"max_tokens": 7, "too_long": keep}
    data = translator.config.data.model_copy(
        update={"target_language": "en", "cleaning": translator.config.data.cleaning.model_copy(update=cleaning)}
    )
    config = translator.config.model_copy(update={"data": data})
    cuts = Translator(replace(translator.checkpoint, config=config))
    found = cuts.translate("abcdefghijklmno")
    warning = f"truncated: the text had 15 tokens and was cut to {said}"
    assert found.warnings == (warning,)
    assert found.hypotheses == translator.translate(kept).hypotheses
    target = found.hypotheses[0].text
    scored, whole = cuts.score("abcdefghijklmno", target), translator.score(kept, target)
    assert (scored.token_log_probs, scored.warnings, whole.warnings) == (whole.token_log_probs, (warning,), ())
    traced = inspection.trace(cuts, "abcdefghijklmno", target)
    assert [traced.source[token.begin : token.end] for token in traced.source_tokens] == [*kept, ""]
    assert (traced.warnings, traced.steps) == ((warning,), inspection.trace(translator, kept, target).steps)
    lens = inspection.inspect_corpus(cuts, [("a" * 2_000, "b"), ("a" * 7, "b")])
    assert (lens.pairs, lens.truncated) == (2, 1)
    (aligned,) = cuts.translate("abcdefgh ijklmno", alignment=True).hypotheses
    assert aligned.alignment is not None
    assert {0 if keep == "keep_first" else 9} == {begin for begin, *_ in aligned.alignment.word_links}
    save_model(tmp_path / "model", cuts.checkpoint)
    (tmp_path / "source").write_text("ab\nabcdefghijklmno\n")
    (tmp_path / "target").write_text("a\nb\n")
    run = CliRunner().invoke(main, ["score", *(str(tmp_path / name) for name in ("model", "source", "target"))])
    assert (run.exit_code, run.stderr) == (0, f"line 2: {warning}\n")


def test_a_line_that_a_search_splits_is_scored_and_traced_as_a_whole(make: Make) -> None:
    translator = make("decoding.strategy=greedy")
    cleaning = {"max_tokens": 7, "too_long": "keep_first"}
    data = translator.config.data.model_copy(
        update={"cleaning": translator.config.data.cleaning.model_copy(update=cleaning)}
    )
    config = translator.config.model_copy(update={"data": data})
    splits = Translator(replace(translator.checkpoint, config=config))
    text = "Abc def. Ghi jkl."
    assert splits.translate(text).warnings[0].startswith("truncated: sentence 1 of 2 had 8 tokens")
    assert splits.score(text, "b") == translator.score(text, "b")
    traced = inspection.trace(splits, text, "b")
    assert (traced.warnings, len(traced.source_tokens)) == ((), len(text) + 1)


def test_a_target_shorter_than_nearly_all_training_targets_is_a_warning(make: Make) -> None:
    translator = with_facts(make("decoding.strategy=greedy", "decoding.max_length=3"), 0.0)
    assert translator.translate("abcdefg hij").quality_warnings[-1] == (
        "low_source_use: 3 tokens for 11 of the source, where training targets have at least 6"
    )
    assert translator.translate("Abcd. Cdefg hijk.", split="auto").quality_warnings[-1] == (
        "low_source_use: sentence 2: 3 tokens for 11 of the source, where training targets have at least 6"
    )
    assert translator.translate("abcdefg").quality_warnings[-1].startswith("truncated: ")


@pytest.mark.parametrize(("ratio", "said"), [(0.12, False), (0.17, False), (0.19, True)])
def test_an_answer_of_one_token_to_a_long_text_is_no_warning(make: Make, ratio: float, said: bool) -> None:
    """Answers do not grow with their texts: a fraction of a token more than one is not missing."""
    translator = make("decoding.strategy=greedy", "decoding.max_length=1")
    facts = replace(lengths(0.0), least_ratio=(ratio,) * 4)
    found = Translator(replace(translator.checkpoint, lengths=facts)).translate("abcdefg hij")
    assert any(each.startswith("low_source_use") for each in found.quality_warnings) == said


@pytest.mark.parametrize("language", ["en", "", "zh"])
def test_texts_are_split_at_line_ends_and_sentence_ends(language: str) -> None:
    text = " One goes. Two go.\n\nThree\r\n 你好。我是。"
    found = split_text(text, language)
    assert "".join(sentence + spacing for sentence, spacing in found) == text
    assert [sentence.strip() for sentence, _ in found] == ["One goes.", "Two go.", "Three", "你好。", "我是。"]


SCORES = st.integers(-99, 0).map(float)  # their sums are exact


@given(st.lists(st.lists(SCORES, min_size=1, max_size=3), max_size=5), st.integers(1, 7))
def test_the_best_choices_are_the_best_of_all_combinations(scores: list[list[float]], most: int) -> None:
    found = best_choices([[(score, (place, score)) for score in each] for place, each in enumerate(scores)], most)
    every = sorted((sum(chosen) for chosen in product(*scores)), reverse=True)
    assert [score for score, _ in found] == every[:most]
    for score, chosen in found:
        assert [place for place, _ in chosen] == list(range(len(scores)))
        assert sum(each for _, each in chosen) == score
