"""A target begins with the given prefix, and its score includes the prefix."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.config import DecodingSettings
from translume.errors import TranslationError
from translume.translator import Translator

Make = Callable[..., Translator]


@given(
    texts=st.lists(st.text("abc .", max_size=9), min_size=1, max_size=4),
    prefix=st.text("bcd", max_size=5),
    beam=st.integers(1, 3),
)
def test_every_hypothesis_begins_with_the_prefix_and_its_score_includes_it(
    translator: Translator, texts: list[str], prefix: str, beam: int
) -> None:
    settings = DecodingSettings(beam=beam, nbest=beam, prefix=prefix, split="never", letterless="translate")
    begin = tuple(translator.checkpoint.target_tokenizer.encode(prefix))
    found = list(translator.translate_all(texts, settings=settings))
    assert len(found) == len(texts)
    for text, each in zip(texts, found, strict=True):
        assert bool(each.hypotheses) == bool(text.strip())
        for hypothesis in each.hypotheses:
            assert hypothesis.ids[: len(begin)] == begin
            assert hypothesis.text.startswith(prefix)
            assert translator.score(text, hypothesis).log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)


def test_only_the_first_part_of_a_long_line_has_the_prefix(make: Make) -> None:
    translator = make("decoding.beam=2", max_positions=12)
    settings = translator.config.decoding
    forced = settings.model_copy(update={"prefix": "dcb"})
    found = translator.translate("Abc def. Ghi jkl!", settings=forced)
    parts = [translator.translate("Abc def.", settings=forced), translator.translate("Ghi jkl!", settings=settings)]
    assert found.hypotheses[0].ids == parts[0].hypotheses[0].ids + parts[1].hypotheses[0].ids


def test_a_prefix_extends_the_limit_of_the_ratio_but_not_the_hard_limits(make: Make) -> None:
    translator = make("decoding.max_length_extra=2", "decoding.max_length_ratio=1.0", "decoding.min_length=99")
    settings = translator.config.decoding
    long = translator.translate("ab", settings=settings.model_copy(update={"prefix": "abcdefg"}))
    assert len(long.hypotheses[0].ids) == 7 + 2 + 2
    with pytest.raises(TranslationError) as caught:
        translator.translate("ab", settings=settings.model_copy(update={"prefix": "abcdefg", "max_length": 5}))
    assert str(caught.value) == "text: token 6: a prefix of 7 tokens, expected at most the limit of 5"
