"""Long texts are translated sentence by sentence, keeping every sentence and all white space between them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.serving.api.errors import RequestError
from translume.serving.api.texts import RequestTexts, SplitTexts, field_names
from translume.serving.settings import Limits
from translume.translator import TextHypothesis, Translation, Translator


def copied(line: str) -> Translation:
    """Return a translation equal to its source."""
    if not line.strip():
        return Translation(source=line, text=line)
    best = TextHypothesis(text=line, tokens=(line,), ids=(1,), log_prob=-1.0, score=-1.0, finished_by="eos")
    return Translation(source=line, text=line, hypotheses=(best,))


def split(*texts: str, language: str | None = "en", **limits: int) -> SplitTexts:
    names = field_names("text", len(texts), several=len(texts) > 1)
    request = RequestTexts(texts=texts, field="text", names=names, language=language)
    return request.split(Limits(**limits))


SIGNS = st.text(st.sampled_from(" .!?…\"'()“”。！\t\r\n\u2028\u00a0\u3000ABcdé漢1"), max_size=60)


@given(st.lists(SIGNS | st.text(max_size=40), max_size=3), st.sampled_from(["en", "zh-Hans", "", None]))
def test_copied_sentences_join_to_the_original_text(texts: list[str], language: str | None) -> None:
    found = split(*texts, language=language)
    done = found.join([copied(part.text) for part in found.parts], 1)
    assert [each.text for each in done] == texts
    assert len(found.names) == len(found.parts)


@given(st.lists(st.sampled_from(["One.", "Is it two?", "Three!", "“Four.”"]), min_size=1, max_size=6))
def test_every_sentence_is_translated_in_order(sentences: list[str]) -> None:
    found = split(" ".join(sentences))
    assert [part.text for part in found.parts] == sentences
    assert [part.first for part in found.parts] == [not place for place in range(len(sentences))]


def test_names_of_sentences_in_errors() -> None:
    assert split("One.").names == ["text"]
    assert split("One. Two.").names == ["text: sentence 1", "text: sentence 2"]
    assert split("\nOne.\n\nTwo. Three.", "a").names == [
        "text[0]: line 1",
        "text[0]: line 2, sentence 1",
        "text[0]: line 2, sentence 2",
        "text[1]",
    ]
    assert split("One. Two.\nThree. Four.", language=None).names == ["text: line 1", "text: line 2"]


def test_too_many_sentences_are_refused() -> None:
    with pytest.raises(RequestError, match=r"^text: found 6 sentences, expected at most 5$") as caught:
        split("One. " * 6, lines=5, texts=5)
    assert (caught.value.status, caught.value.code) == (413, "too_many_lines")


def test_the_split_field_selects_sentences_or_lines(live: Any, translator: Translator) -> None:
    text = "A man.  A dog runs."
    one, two = (str(translator.translate(each)) for each in ("A man.", "A dog runs."))
    whole = str(translator.translate(text, split="never"))
    assert str(translator.translate(text)) == f"{one}  {two}"
    assert live.post("/v1/translate", text=text).json()["translations"][0]["text"] == f"{one}  {two}"
    answer = live.post("/v1/translate", text=text, split="sentences").json()
    assert answer["translations"][0]["text"] == f"{one}  {two}"
    for value in ("lines", "never"):
        answer = live.post("/v1/translate", text=text, split=value).json()
        assert answer["translations"][0]["text"] == whole
    found = live.post("/translate", q=text, source="en", target="de").json()
    assert found == {"translatedText": f"{one}  {two}"}
    long = " ".join(["A man runs."] * 9)
    answer = live.post("/v1/translate", text=long)
    assert answer.json()["translations"][0]["text"] == " ".join([str(translator.translate("A man runs."))] * 9)


@pytest.mark.parametrize("value", ["words", 1, None, ["lines"]])
def test_other_values_of_split_are_refused(live: Any, value: Any) -> None:
    answer = live.post("/v1/translate", text="a", split=value)
    assert (answer.status, answer.json()["field"]) == (422, "split")
