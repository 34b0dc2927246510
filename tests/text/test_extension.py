"""A vocabulary that is extended keeps its ids, spells the same texts and needs fewer tokens for the new ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import TokenizerSettings
from translume.errors import SettingsError
from translume.text import Tokenizer, extend_tokenizer, train_tokenizer

OLD = ["the cat sat on the mat", "the dog sat on the cat"] * 3
NEW = ["das Weißbier und der Käse", "der Käse und das Weißbier"] * 3


@pytest.fixture(scope="module", params=["bytes", "token"])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Tokenizer]:
    old = train_tokenizer(TokenizerSettings(kind="bpe", size=330, unknown=request.param), OLD)
    return old, extend_tokenizer(old, NEW, 40)


def test_old_ids_stay_and_new_texts_get_fewer_tokens(pair: tuple[Tokenizer, Tokenizer]) -> None:
    old, new = pair
    assert new.pieces()[: len(old)] == old.pieces()
    assert len(old) < len(new) <= len(old) + 40
    assert new.encode(OLD[0]) == old.encode(OLD[0])
    assert len(new.encode(NEW[0])) < len(old.encode(NEW[0])) / 2
    assert new.decode(new.encode(NEW[0])) == NEW[0]
    again = Tokenizer.from_json(new.to_json())
    assert (again.to_json(), again.encode(NEW[1])) == (new.to_json(), new.encode(NEW[1]))
    assert new.drop(new.encode(NEW[0]), 0.5, 1) != new.encode(NEW[0])
    assert extend_tokenizer(new, NEW, 0).digest == new.digest


@settings(max_examples=30)
@given(text=st.text("the catWßiKä", max_size=20))
def test_any_text_is_decoded_as_it_was(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    _, new = pair
    assert new.decode(new.encode(text)) == new.normalise(text)


def test_other_kinds_are_refused() -> None:
    tokenizer = train_tokenizer(TokenizerSettings(kind="unigram", size=300), OLD)
    with pytest.raises(SettingsError) as caught:
        extend_tokenizer(tokenizer, NEW, 3)
    assert str(caught.value) == (
        "tokenizer.extend: found 3 with kind 'unigram', expected 0; bpe, word, character can grow"
    )
