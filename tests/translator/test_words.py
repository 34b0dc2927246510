"""Words are found in every script."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from translume.translator.alignment import word_spans


def words(text: str, cuts: set[int]) -> list[str]:
    """Return the words of a text whose tokens end at some places."""
    places = [0, *sorted(cuts), len(text)]
    return [text[begin:end] for begin, end in word_spans(text, itertools.pairwise(places))]


def test_tokens_split_only_what_is_written_without_spaces() -> None:
    assert words("Unbreakable, isn't it?", {2, 5, 12, 15}) == ["Unbreakable", ",", "isn", "'", "t", "it", "?"]
    assert words("我喜欢丹麦语。", {1, 3, 5, 6}) == ["我", "喜欢", "丹麦", "语", "。"]
    assert words("买iPhone15手机", {1, 3, 7, 8, 9, 10}) == ["买", "iPhone15", "手", "机"]
    assert words("有4,909个居民, 2.5米: 9", {1, 2, 3, 6, 14}) == ["有", "4,909", "个居民", ",", "2.5", "米", ":", "9"]
    assert words("สวัสดีครับ", {2, 6}) == ["สวัสดี", "ครับ"], "a vowel sign is not separated from its consonant"


@given(st.text(st.sampled_from("ab1 ,.漢字か。"), max_size=20), st.sets(st.integers(1, 19)))
def test_words_are_all_characters_but_spaces_in_order(text: str, cuts: set[int]) -> None:
    assert "".join(words(text, {cut for cut in cuts if cut < len(text)})) == "".join(text.split())
