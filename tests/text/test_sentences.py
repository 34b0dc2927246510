"""Lines are split into sentences without losing any text."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.text.sentences import parts_of, sentences_of

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import sentences as benchmark

LENGTH = 20_000
SIGNS = st.text(st.sampled_from(" .!?…\"'()«»“”。！「」とI;क।\u2028\u00a0\u3000\t\nABcdé漢1"), max_size=60)
CODES = st.sampled_from(["en", "de", "zh-Hans", "hi", "pt-BR", "", "xx", "no such language"])


@given(SIGNS | st.text(max_size=60), CODES)
def test_sentences_join_to_the_line(line: str, language: str) -> None:
    found = sentences_of(line, language)
    assert "".join(found) == line
    assert found
    assert len(found) == 1 or all(each.strip() for each in found)


@pytest.mark.parametrize("language", benchmark.LANGUAGES)
def test_few_sentences_of_the_seen_test_set_are_split_wrongly(language: str) -> None:
    paragraphs = benchmark.paragraphs_of(language, seen=True)
    assert sum(len(each.ends) for each in paragraphs) > 80
    assert benchmark.error_rate(paragraphs, lambda text: sentences_of(text, language)) <= 0.025


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Mr. Smith came at 5 p.m. on Jan. 3. ", "It rained!  ", '"Really?" she asked.']),
        ("en", ["He lives in the U.K. ", "She said no. ", "Five left, etc. ", "Then p. 5 was torn."]),
        ("en", ['"Why?" Peter asked. ', "Plan B. ", "It failed. . . . and failed."]),
        ("de", ["Das kostet z. B. 3.50 Euro. ", "Am 3. Mai kam Dr. Müller.\u00a0", "Er ging. "]),
        ("de", ["Er ist 20. ", "Der e. V. Köln hat 5 Mio. Euro. ", "Friedrich II. ", "»Ja.« ", "»Nein.«"]),
        ("de", ["Im 20. Jahrhundert."]),
        ("de", ["Der hl. Nikolaus lebte im 4. Jh. n. Chr. in Myra."]),
        ("fr", ["M. Dupont est là. ", "« Où ? » dit M. Le Goff. ", "« Là. » ", "Il rit."]),
        ("nl", ["Dhr. Vos kwam. ", "'s Avonds ging hij."]),
        ("ru", ["В 2020 г. у А. С. Белова жил кот в г. Тверь и т. д. ", "Потом Николай I. ", "Конец."]),
        ("zh-Hans", ["今天天气很好。", "我们去公园吧！", "好吗？"]),
        ("zh", ["他说：“我走了。”然后关门。", "他说：“你好。我来了。”", "她笑了。", "好吗?", "好。"]),
        ("ja", ["彼は「行く。」と言った。", "「うん。」", "彼女は「本当？帰ろう。」と笑った。", "（例。）", "次。"]),
        ("ko", ['"가자!" 그가 말했다. ', "그는 갔다."]),
        ("el", ["Τι κάνεις; ", "Ο κ. Παπάς ήρθε."]),
        ("ur", ["یہ ایک ہے۔ ", "یہ دو ہے۔"]),
        ("hi", ["डॉ. राव आए। ", "“रुको!” वह बोला। ", "अब?"]),
        ("", ["Im 20. Jahrhundert. ", "M. Dupont est là. ", "彼は「行く。」と言った。"]),
        ("", ["1. One. ", "2. Two goes. ", "B. Three."]),
        ("en", ["a dog runs . ", "two women . ", "a man"]),
        ("en", ["a dog runs. ", "two dogs bark! ", "why?"]),
        ("en", ["Approx. two. ", "Or 3. maybe, etc. and on."]),
        ("en", ["one"]),
        ("en", [""]),
        ("en", [" \t"]),
    ],
)
def test_sentence_boundaries(language: str, sentences: list[str]) -> None:
    assert sentences_of("".join(sentences), language) == sentences


@pytest.mark.parametrize(
    "part", ["«", "“", "‘a", "„", "‹", "「", "「。", '"(«', "(", "Mr. ", ". ", "\u2028", "A. ", "1. "]
)
@pytest.mark.parametrize("split", [sentences_of, lambda line: parts_of(line, 300)])
def test_time_is_linear_in_the_length_of_the_text(part: str, split: Callable[[str], Any]) -> None:
    lines = [(part * LENGTH)[:length] for length in (LENGTH, 4000)]
    begun = time.process_time()
    for line in lines:
        assert "".join(split(line)) == line
    assert time.process_time() - begun < 0.3


@given(SIGNS | st.text("ab, กำเ漢", max_size=60), st.integers(1, 20))
def test_parts_join_to_the_sentence_and_only_words_are_longer(sentence: str, size: int) -> None:
    parts = parts_of(sentence, size)
    assert "".join(parts) == sentence
    assert all(parts)


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (12, ["One, two; ", "three four ", "five"]),
        (5, ["One, ", "a ", "word"]),
        (4, ["abcdefg ", "hi"]),
        (4, ["กากา", "กากา"]),
        (3, ["กำ", "เกา", "漢字漢", "字"]),
    ],
)
def test_parts_end_at_clauses_then_at_words_then_between_characters(size: int, parts: list[str]) -> None:
    assert parts_of("".join(parts), size) == parts
