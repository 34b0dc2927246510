"""The stable beginning of an incomplete text is a prefix of the whole text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from translume.config import TokenizerSettings
from translume.text import train_tokenizer

numbers = st.lists(st.integers(0, 10**6), max_size=9)
texts = st.text(st.sampled_from("the cat.über犬が🙂\t  \n9ß\u0301"), max_size=12)


@given(first=numbers, rest=numbers)
def test_stable_text_is_a_prefix_of_every_continuation(tokenizer, first, rest):
    ids, more = ([number % len(tokenizer) for number in numbers] for numbers in (first, rest))
    assert tokenizer.decode([*ids, *more]).startswith(tokenizer.beginning(ids))


@given(text=texts)
def test_text_is_stable_once_its_bytes_are_complete_except_trailing_space(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.beginning(ids) == tokenizer.decode(ids).rstrip()
    said = [tokenizer.beginning(ids[:count]) for count in range(len(ids) + 1)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(said))


def test_character_is_stable_after_its_last_byte():
    tokenizer = train_tokenizer(TokenizerSettings(kind="byte"), [])
    ids = tokenizer.encode("aß 犬")
    assert [tokenizer.beginning(ids[:count]) for count in range(len(ids) + 1)] == [
        *("", "a", "a", "aß", "aß", "aß", "aß", "aß 犬")
    ]
    assert tokenizer.beginning([*ids[:2], ids[0]]) == "a\ufffda"
