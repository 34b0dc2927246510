"""A translator that drafts translates as one that does not, and says how many calls it took."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import DecodingSettings
from translume.errors import SettingsError
from translume.translator import Translator

Make = Callable[..., Translator]

TARGETS = ["abc abc abc", "the cat", "a cat sat.", "zzzzzz", ""]


@pytest.fixture(scope="module")
def drafting(make: Make) -> list[Translator]:
    """The plain model and the engine of it, both with targets to draft from."""
    plain = make("decoding.strategy='greedy'").draft_from(TARGETS)
    return [plain, plain.compile()]


@settings(max_examples=10)
@given(
    texts=st.lists(st.text("abcz .", max_size=9), min_size=1, max_size=6),
    prefix=st.text("bcd", max_size=4),
    least=st.sampled_from([0, 5]),
    unsmooth=st.sampled_from([0.0, 0.1]),
    length=st.integers(1, 8),
    fast=st.booleans(),
    name=st.sampled_from(["copy", "ngram"]),
)
def test_with_drafts_every_text_is_translated_as_without(
    drafting: list[Translator], texts: list[str], prefix: str, least: int, unsmooth: float, length: int, fast: bool,
    name: str,
) -> None:  # fmt: skip
    plain = DecodingSettings(strategy="greedy", prefix=prefix, min_length=least, unsmooth=unsmooth)
    options = plain.model_copy(update={"speculation": name, "draft_length": length})
    wanted = list(drafting[0].translate_all(texts, settings=plain))
    found = list(drafting[fast].translate_all(texts, settings=options))
    for one, other in zip(found, wanted, strict=True):
        assert one.text == other.text
        for own, usual in zip(one.hypotheses, other.hypotheses, strict=True):
            assert (own.ids, own.finished_by) == (usual.ids, usual.finished_by)
            assert own.log_prob == pytest.approx(usual.log_prob, abs=1e-4)
            assert own.model_calls is not None
            assert 1 <= own.model_calls <= len(own.ids)
            assert own.to_dict()["model_calls"] == own.model_calls
            assert "model_calls" not in usual.to_dict()


def test_drafts_from_what_the_model_writes_save_calls_and_from_nothing_save_none(make: Make) -> None:
    translator = make("decoding.strategy='greedy'", "decoding.min_length=20")
    chosen = translator.config.decoding.model_copy(update={"speculation": "ngram"})
    wanted = translator.translate("abc").hypotheses[0]
    same = translator.draft_from([wanted.text]).translate("abc", settings=chosen).hypotheses[0]
    assert same.ids == wanted.ids
    assert same.model_calls is not None
    assert same.model_calls <= len(same.ids) // 2
    nothing = translator.draft_from([]).translate("abc", settings=chosen).hypotheses[0]
    assert (nothing.ids, nothing.model_calls) == (wanted.ids, len(wanted.ids))


def test_a_text_in_parts_counts_the_calls_of_all_of_them(make: Make) -> None:
    translator = make("decoding.strategy='greedy'", "decoding.speculation='copy'", max_positions=12)
    parts = [translator.translate(text).hypotheses[0].model_calls for text in ("Abc def.", "Ghi jkl!")]
    whole = translator.translate("Abc def. Ghi jkl!").hypotheses[0]
    # Together the two are searched in step; each is called at least as often as alone.
    assert whole.model_calls is not None
    assert sum(part or 0 for part in parts) <= whole.model_calls <= len(whole.ids)


def test_a_beam_of_one_drafts_and_a_wider_one_does_not(make: Make) -> None:
    translator = make("decoding.speculation='copy'")
    assert translator.translate("abc", beam=1).hypotheses[0].model_calls is not None
    assert translator.translate("abc", beam=2).hypotheses[0].model_calls is None


def test_what_cannot_be_drafted_is_refused_by_name(make: Make) -> None:
    greedy = DecodingSettings(strategy="greedy", speculation="copy")

    def refusal(translator: Translator, **changes: object) -> str:
        with pytest.raises(SettingsError) as caught:
            translator.translate("abc", settings=greedy.model_copy(update=changes))
        return str(caught.value)

    assert refusal(make(shared=False)) == (
        "decoding.speculation: found 'copy' for a model with a vocabulary for each side, "
        "wanted one for both, or 'ngram'"
    )
    assert refusal(make(), speculation="ngram") == (
        "decoding.speculation: found 'ngram' without targets to draft from, wanted some: "
        "--draft FILE, Translator.draft_from"
    )
    assert refusal(make(), coverage_penalty=0.2) == (
        "decoding.speculation: found 'copy' with coverage_penalty = 0.2, wanted coverage_penalty = 0"
    )
    translator = make()
    assert refusal(translator.ensemble_with(translator)) == (
        "decoding.speculation: found 'copy' with an ensemble, wanted one model"
    )
