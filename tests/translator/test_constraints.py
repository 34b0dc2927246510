"""Constraints: each required phrase is in the translation as words, or a warning says why it is not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import DecodingSettings, TokenizerSettings
from translume.errors import DataError, SettingsError, TranslationError
from translume.text import Tokenizer, train_tokenizer
from translume.translator import Translator
from translume.translator.constraints import (
    Terminology,
    boundaries,
    build_constraint,
    phrases_of,
    places,
    unmet_constraints,
    words_of,
)

from .conftest import untrained

Make = Callable[..., Translator]
TEXTS = ["der mann und die mannschaft", "ein haus, zwei häuser. 12 und 1234", "漢字 und かな sind schrift-zeichen!"]
WORDS = ["mann", "haus,", "mannschaft", "12", "漢字", "häuser", "die mann", "und", "zwei", "n", "schrift-zeichen!"]
WANTED = "expected as many lists of constraints as texts"
KINDS = ["bpe", "unigram", "wordpiece", "character", "byte", "word"]


def occurrences(phrase: str, text: str) -> int:
    return len(places(phrase, text))


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    sizes = {"byte": 259, "character": 331, "word": 331, "wordpiece": 101}
    return {
        kind: train_tokenizer(
            TokenizerSettings(
                kind=kind, size=sizes.get(kind, 347), unknown="token" if kind == "wordpiece" else "bytes"
            ),
            TEXTS * 3,
        )
        for kind in KINDS
    }


@pytest.fixture(scope="module")
def models(tokenizers: dict[str, Tokenizer]) -> dict[str, Translator]:
    """Return a translator with random weights for every kind of vocabulary."""
    options = "decoding.beam=3", "decoding.max_length_extra=29"
    return {kind: untrained(each, each, *options, max_positions=97) for kind, each in tokenizers.items()}


@settings(deadline=None, max_examples=15)
@given(
    kind=st.sampled_from(KINDS),
    phrases=st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
    strategy=st.sampled_from(["beam", "greedy"]),
    texts=st.lists(st.sampled_from(["die mannschaft", "zwei häuser und 12", "haus"]), min_size=1, max_size=3),
)
def test_the_text_contains_every_phrase_as_words_for_every_vocabulary(
    models: dict[str, Translator], kind: str, phrases: list[str], strategy: str, texts: list[str]
) -> None:
    translator = models[kind]
    wanted = [phrases, *[[]] * (len(texts) - 1)]
    found = list(translator.translate_all(texts, constraints=wanted, strategy=strategy))
    unwritten = [warning for warning in found[0].warnings if warning.endswith("vocabulary cannot write it")]
    assert list(found[0].warnings) == unwritten
    for phrase in set(phrases):
        if not any(repr(phrase) in warning for warning in unwritten):
            assert occurrences(phrase, found[0].text) >= phrases.count(phrase)
    for text, each in zip(texts, found, strict=True):
        for hypothesis in each.hypotheses:
            assert translator.score(text, hypothesis).log_prob == pytest.approx(hypothesis.log_prob, abs=1e-3)
    plain = list(translator.translate_all(texts[1:], strategy=strategy))
    assert [each.text for each in found[1:]] == [each.text for each in plain]


@settings(deadline=None, max_examples=50)
@given(kind=st.sampled_from(KINDS), data=st.data())
def test_phrases_at_token_boundaries_are_words_in_the_text(
    tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
) -> None:
    tokenizer = tokenizers[kind]
    phrase = data.draw(st.sampled_from(phrases_of(data.draw(st.sampled_from(WORDS)), tokenizer)))
    text = tokenizer.decode(phrase.ids)
    ids = st.lists(st.integers(3, len(tokenizer) - 1), max_size=3)
    before, after = data.draw(ids), data.draw(ids)
    parts = boundaries(tokenizer)
    left = not phrase.apart_before or not before or parts.begins[phrase.ids[0]] or parts.ends[before[-1]]
    right = not phrase.apart_after or not after or parts.begins[after[0]]
    if left and right:
        assert occurrences(text, tokenizer.decode([*before, *phrase.ids, *after]))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "character", "byte"])
def test_a_number_may_follow_a_character_of_a_script_without_spaces(kind: str) -> None:
    settings = TokenizerSettings(kind=kind, size=259 if kind == "byte" else 40, unknown="token")
    tokenizer = train_tokenizer(settings, ["这个村庄有4,909个居民。", "4,909 一 4 90 一4,909个"] * 3)
    text = tokenizer.encode("村庄有4,909个居民")
    assert any(
        tuple(text[place : place + len(phrase.ids)]) == phrase.ids
        for phrase in phrases_of("4,909", tokenizer)
        for place in range(len(text))
    )


@pytest.mark.parametrize(
    ("phrase", "text", "count"),
    [
        ("mann", "die mannschaft", 0),
        ("mann", "der mann, ein mann", 2),
        ("mann", "(mann)", 1),
        ("mann", "seemann mann", 1),
        ("12", "1234 12", 1),
        (",", "a,b,", 2),
        ("a a", "a a a a a", 2),
        ("漢", "漢字", 1),
    ],
)
def test_occurrences_are_whole_words(phrase: str, text: str, count: int) -> None:
    assert occurrences(phrase, text) == count


def test_a_longer_word_does_not_satisfy_a_phrase(models: dict[str, Translator]) -> None:
    for kind, translator in models.items():
        found = translator.translate("haus", constraints=["mannschaft", "mann"])
        if not found.warnings:
            assert occurrences("mann", found.text) >= 1, kind


def test_a_phrase_given_twice_is_required_twice(models: dict[str, Translator]) -> None:
    assert occurrences("mann", models["bpe"].translate("haus", constraints=["mann", "mann"]).text) >= 2


def test_all_n_best_hypotheses_contain_the_phrase(models: dict[str, Translator]) -> None:
    found = models["bpe"].translate("haus", constraints=["zwei häuser"], nbest=3)
    assert 1 < len(found.hypotheses) <= 3  # fewer if hypotheses reached the length limit
    assert all(occurrences("zwei häuser", each.text) for each in found.hypotheses)


def test_a_phrase_outside_the_vocabulary_is_a_warning(models: dict[str, Translator]) -> None:
    plain = models["wordpiece"].translate("haus")
    found = models["wordpiece"].translate("haus", constraints=["q€"])
    assert found == replace(
        plain, warnings=("constraint_unmet: 'q€': the target's vocabulary cannot write it",)
    )  # fmt: skip


def test_a_phrase_beyond_the_length_limit_is_a_warning_and_the_others_are_met(models: dict[str, Translator]) -> None:
    chosen = models["character"].config.decoding.model_copy(update={"max_length": 9})
    found = models["character"].translate("haus", settings=chosen, constraints=["mann", "mannschaft"])
    assert found.warnings == (
        "constraint_unmet: 'mannschaft': the limit of 9 tokens leaves no room for it",
    )  # fmt: skip
    assert occurrences("mann", found.text)


def test_constraints_extend_the_length_limit_of_the_ratio(models: dict[str, Translator]) -> None:
    chosen = models["character"].config.decoding.model_copy(update={"max_length_extra": 1, "max_length_ratio": 0.1})
    found = models["character"].translate("haus", settings=chosen, constraints=["mannschaft und zwei häuser"])
    assert occurrences("mannschaft und zwei häuser", found.text)
    assert not found.warnings


def test_a_banned_phrase_is_a_warning_and_the_others_are_met(models: dict[str, Translator]) -> None:
    chosen = models["bpe"].config.decoding.model_copy(update={"ban": ("mann",)})
    found = models["bpe"].translate("haus", settings=chosen, constraints=["zwei", "mann"])
    assert found.warnings == ("constraint_unmet: 'mann': a rule forbids it (BannedPhrases)",)
    assert occurrences("zwei", found.text)
    assert not occurrences("mann", found.text)


def test_other_strategies_give_a_one_line_error(models: dict[str, Translator]) -> None:
    with pytest.raises(SettingsError) as error:
        models["bpe"].translate("haus", strategy="sampling", constraints=["mann"])
    assert str(error.value) == "decoding.strategy: found 'sampling' with constraints, expected 'beam' or 'greedy'"


@pytest.mark.parametrize(
    ("texts", "constraints", "message"),
    [
        (["a", "b"], [["mann"]], "line 2: found no constraints for the text, " + WANTED),
        (["a"], [[], []], "line 2: found no text for the constraints, " + WANTED),
        (["a"], [["  "]], "line 1: found a constraint without a word, '  ', expected a word or a phrase"),
    ],
)  # fmt: skip
def test_invalid_lists_of_constraints_give_a_one_line_error(
    models: dict[str, Translator], texts: list[str], constraints: list[list[str]], message: str
) -> None:
    with pytest.raises(TranslationError) as error:
        list(models["bpe"].translate_all(texts, constraints=constraints))
    assert str(error.value) == message


def test_a_single_text_is_not_a_list_of_constraints(models: dict[str, Translator]) -> None:
    with pytest.raises(TypeError, match=r"^constraints: found one string, expected a list of strings$"):
        models["bpe"].translate("haus", constraints="mann")


def test_a_blank_line_ignores_its_constraints(models: dict[str, Translator]) -> None:
    assert models["bpe"].translate(" ", constraints=["mann"]).text == ""


def test_a_phrase_applies_to_the_sentence_that_contains_it_or_else_to_the_first(make: Make) -> None:
    translator = make("decoding.beam=3", max_positions=14)
    text = "Abc def geh. Ghi jkl m!"
    found = translator.translate(text, constraints=["jkl", "bb"])
    parts = [
        translator.translate("Abc def geh.", constraints=["bb"]),
        translator.translate("Ghi jkl m!", constraints=["jkl"]),
    ]
    assert not found.warnings
    assert found.hypotheses[0].ids == parts[0].hypotheses[0].ids + parts[1].hypotheses[0].ids


def test_words_of_a_text() -> None:
    assert words_of("a hot-dog, 漢字 x2") == ("a", "hot", "-", "dog", ",", "漢", "字", "x2")


def write(folder: Path, text: str) -> DecodingSettings:
    (folder / "terms.tsv").write_text(text, encoding="utf-8")
    return DecodingSettings(beam=3, max_length_extra=29, terminology=str(folder / "terms.tsv"))


def test_terms_in_the_source_become_constraints(models: dict[str, Translator], tmp_path: Path) -> None:
    translator = models["bpe"]
    terms = write(tmp_path, "haus\tzwei häuser\n\nmann\tmannschaft\n")
    found = list(translator.translate_all(["ein haus", "häuser", "mann, haus", "ein haus"], settings=terms))
    assert [occurrences("zwei häuser", each.text) > 0 for each in found] == [True, False, True, True]
    assert occurrences("mannschaft", found[2].text)
    plain = translator.translate("häuser", settings=terms.model_copy(update={"terminology": ""}))
    assert found[1] == plain


def test_a_term_given_twice_is_met_by_two_of_its_translations(models: dict[str, Translator]) -> None:
    term = build_constraint(["mann", "haus"], models["bpe"].checkpoint.target_tokenizer)
    assert term is not None
    for text, unmet in (("mann und haus", 0), ("haus haus", 0), ("mann", 1), ("mannhaus", 1), ("", 1)):
        assert len(unmet_constraints(text, [term, term])) == unmet, text
    longer = build_constraint(["zwei häuser", "häuser"], models["bpe"].checkpoint.target_tokenizer)
    assert longer is not None
    assert unmet_constraints("zwei häuser", [longer, longer]) == [longer]  # one place counts once


def test_one_of_several_translations_of_a_term_suffices(models: dict[str, Translator], tmp_path: Path) -> None:
    terms = write(tmp_path, "haus\tzwei häuser\nhaus\tmannschaft\n")
    text = models["bpe"].translate("haus", settings=terms).text
    assert occurrences("zwei häuser", text) or occurrences("mannschaft", text)


def test_a_term_inside_a_longer_term_is_ignored(tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    write(tmp_path, "hot dog\tx\ndog\ty\nhot\tz\n")
    terms = Terminology.read(str(tmp_path / "terms.tsv"), tokenizers["bpe"], tokenizers["bpe"])
    assert [" ".join(each.source) for each in terms.found_in("a hot dog, hot dogs and a dog")] == [
        "hot dog",
        "hot",
        "dog",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("haus\tx\nmann\n", "2: found 1 field, expected 2 separated by a tab: a source term and a target term"),
        ("a\tb\tc\n", "1: found 3 fields, expected 2 separated by a tab: a source term and a target term"),
        ("\tb\n", "1: found a source term without a word, expected a word or a phrase"),
        ("a\t \n", "1: found a target term without a word, expected a word or a phrase"),
    ],
)
def test_an_invalid_line_of_a_terminology_file_is_named(
    models: dict[str, Translator], tmp_path: Path, text: str, message: str
) -> None:
    terms = write(tmp_path, text)
    with pytest.raises(DataError) as error:
        models["bpe"].translate("haus", settings=terms)
    assert str(error.value) == f"{tmp_path}/terms.tsv:{message}"


def test_a_missing_terminology_file_gives_a_one_line_error(models: dict[str, Translator]) -> None:
    with pytest.raises(DataError) as error:
        models["bpe"].translate("haus", settings=DecodingSettings(terminology="no.tsv"))
    assert str(error.value) == "decoding.terminology: no.tsv: cannot be read: No such file or directory"


def test_terms_outside_the_vocabulary_are_a_warning(models: dict[str, Translator], tmp_path: Path) -> None:
    found = models["wordpiece"].translate("haus", settings=write(tmp_path, "haus\tq€\n"))
    assert found.warnings == ("constraint_unmet: 'q€': the target's vocabulary cannot write it",)


def test_phrases_are_normalised_like_the_target(tokenizers: dict[str, Tokenizer]) -> None:
    lower = train_tokenizer(TokenizerSettings(kind="bpe", size=347, lowercase=True), TEXTS)
    constraint = build_constraint(["  Der \t MANN "], lower)
    assert constraint is not None
    assert constraint.texts == ("der mann",)


def test_placeholders_are_copied_as_often_as_they_occur(models: dict[str, Translator]) -> None:
    translator = models["bpe"]
    held = translator.config.decoding.model_copy(update={"placeholders": ("number", "tag")})
    found = list(translator.translate_all(["haus 12 und 34, 12", "<b>haus</b>", "haus"], settings=held))
    assert occurrences("12", found[0].text) >= 2
    assert occurrences("34", found[0].text)
    assert all(occurrences(tag, found[1].text) for tag in ("<b>", "</b>"))
    assert found[2].text == translator.translate("haus").text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sign", [".", ",", "!", ")."])
def test_a_sign_may_be_behind_a_word_without_a_space(tokenizers: dict[str, Tokenizer], kind: str, sign: str) -> None:
    tokenizer = tokenizers[kind]
    constraint = build_constraint([sign], tokenizer)
    if constraint is None:  # the vocabulary cannot spell it
        return
    ids = tokenizer.encode(f"mann{sign}")
    attached = ids[len(tokenizer.encode("mann")) :]
    found = [list(phrase.ids) for phrase in constraint.phrases]
    assert kind == "word" or attached in found
    assert tokenizer.encode(sign) in found
    assert [list(each.ids) for each in build_constraint(["mann"], tokenizer).phrases] == [tokenizer.encode("mann")]
