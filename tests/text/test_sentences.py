"""Lines are split into sentences without losing any text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.text.sentences import LONGEST, sentences_of, split_sentences

SIGNS = st.text(st.sampled_from(" .!?…\"'()«»“”。！\u2028\u00a0\u3000\tABcdé漢1"), max_size=60)


@given(SIGNS | st.text(max_size=60), st.sampled_from(["en", "de", "zh-Hans", "pt-BR", "", "xx", "no such language"]))
def test_sentences_join_to_the_line(line: str, language: str) -> None:
    found = sentences_of(line, language)
    assert "".join(found) == line
    assert found
    assert len(found) == 1 or all(each.strip() for each in found)


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Mr. Smith came at 5 p.m. on Jan. 3. ", "It rained!  ", '"Really?" she asked.']),
        ("de", ["Das kostet z. B. 3.50 Euro. ", "Am 3. Mai kam Dr. Müller.\u00a0", "Er ging. "]),
        ("zh-Hans", ["今天天气很好。", "我们去公园吧！", "好吗？"]),
        ("en", ["a dog runs . ", "two women . ", "a man"]),
        ("en", ["one"]),
        ("en", [""]),
        ("en", [" \t"]),
    ],
)
def test_sentence_boundaries(language: str, sentences: list[str]) -> None:
    assert sentences_of("".join(sentences), language) == sentences


def test_sentences_without_capitals_end_at_their_marks() -> None:
    assert split_sentences("a dog runs. two dogs bark! why?") == [
        ("a dog runs.", " "),
        ("two dogs bark!", " "),
        ("why?", ""),
    ]
    assert [sentence for sentence, _ in split_sentences("Approx. two. Or 3. maybe, etc. and on.")] == [
        "Approx. two.",
        "Or 3. maybe, etc. and on.",
    ]


def test_a_text_that_makes_the_library_panic_is_split() -> None:
    # sentencex 1.0.32: "end byte index 52 is not a char boundary; it is inside '\u2028'".
    assert "".join(sentences_of("a. B\u2028X. c \u2028\u2028Z. D", "en")) == "a. B\u2028X. c \u2028\u2028Z. D"


def test_a_very_long_line_is_split() -> None:
    found = sentences_of("One goes. " * LONGEST, "en")
    assert len(found) == LONGEST
    assert set(found) == {"One goes. "}


@pytest.mark.parametrize("part", ["«", "“", "‘a", "„", "‹", "「", '"(«', "(", "Mr. ", ". ", "\u2028", "A. "])
def test_time_is_linear_in_the_length_of_the_text(part: str) -> None:
    lines = [(part * LONGEST)[:length] for length in (LONGEST, 4000)]
    begun = time.process_time()
    for line in lines:
        assert "".join(sentences_of(line, "en")) == line
    assert time.process_time() - begun < 0.2
