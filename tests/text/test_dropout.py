"""BPE-dropout changes the segmentation, not the text."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import TokenizerSettings
from translume.errors import SettingsError
from translume.text import Tokenizer, train_tokenizer
from translume.text.bpe_dropout import MergeDropout

CORPUS = ["lower newer wider newest lowest widest 我喜欢新的房子。", "the newest, lowest house: 42!"] * 5
a_text = st.text() | st.text(st.sampled_from("lowernewstid ,!4我喜欢新的\u0301☃▁")) | st.sampled_from(CORPUS)
seeds = st.integers(0, 2**63)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerSettings(size=360, whitespace="keep"), CORPUS)


@given(text=a_text, dropout=st.floats(0, 1), seed=seeds, again=seeds)
@settings(max_examples=50, deadline=None)
def test_dropout_keeps_the_text_and_depends_on_its_arguments_alone(tokenizer, text, dropout, seed, again):
    ids = tokenizer.encode(text)
    first = tokenizer.drop(ids, dropout, seed)
    assert tokenizer.decode(first) == tokenizer.normalise(text)
    tokenizer.drop(ids, dropout, again)
    other = Tokenizer.from_json(tokenizer.to_json()) if len(text) % 16 == 15 else tokenizer
    assert other.drop(np.array(ids, dtype=np.int32), dropout, seed) == first


@given(text=a_text, seed=seeds)
@settings(max_examples=50, deadline=None)
def test_no_dropout_is_the_usual_segmentation(tokenizer, text, seed):
    ids = tokenizer.encode(text)
    assert tokenizer.drop(ids, 0.0, seed) == ids
    assert tokenizer.drop(ids, 1e-300, seed) == ids  # our own merging agrees with the library's


@pytest.mark.parametrize(
    ("kind", "dropout", "message"),
    [
        ("unigram", 0.1, "found 0.1 with kind 'unigram', expected 0; only kind 'bpe' has merges"),
        ("bpe", 1.5, "found 1.5, expected a probability from 0 to 1"),
    ],
)
def test_dropout_is_a_probability_and_needs_merges(kind, dropout, message):
    with pytest.raises(SettingsError) as error:
        train_tokenizer(TokenizerSettings(kind=kind, size=360), CORPUS).drop([], dropout, 1)
    assert str(error.value) == f"tokenizer.dropout: {message}"


def test_full_dropout_leaves_characters(tokenizer):
    shown = tokenizer.tokens(tokenizer.drop(tokenizer.encode("newest 42!"), 1.0, 7))
    assert shown == ["▁", "n", "e", "w", "e", "s", "t", "▁", "4", "2", "!"]


@pytest.mark.parametrize(
    ("pieces", "merges", "ids", "dropout", "wanted"),
    [
        # "abc" stays whole with (1-p)², ends as ab c with (1-p)p, else as a b c.
        (["ab", "abc"], {(1, 2): 4, (4, 3): 5}, [5], 0.3, {(5,): 0.49, (4, 3): 0.21, (1, 2, 3): 0.30}),
        # If the best merge is skipped, the next one applies: ab c has 1-p, a bc has p(1-p), a b c has p².
        (["ab", "bc"], {(1, 2): 4, (2, 3): 5}, [4, 3], 0.4, {(4, 3): 0.60, (1, 5): 0.24, (1, 2, 3): 0.16}),
    ],
)
def test_frequencies_are_those_worked_out_by_hand(pieces, merges, ids, dropout, wanted):
    merging = MergeDropout(["<s>", "a", "b", "c", *pieces], merges, 1)
    counts = Counter(tuple(merging.draw(ids, dropout, seed)) for seed in range(20_000))
    assert {drawn: count / 20_000 for drawn, count in counts.items()} == pytest.approx(wanted, abs=0.015)
