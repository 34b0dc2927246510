"""BPE-dropout changes the segmentation, not the text."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import TokenizerSettings
from translume.text import Tokenizer, train_tokenizer
from translume.text.bpe_dropout import MergeDropout

CORPUS = ["lower newer wider newest lowest widest 我喜欢新的房子。", "the newest, lowest house: 42!"] * 5
a_text = st.text() | st.text(st.sampled_from("lowernewstid ,!4我喜欢新的\u0301☃▁")) | st.sampled_from(CORPUS)
seeds = st.integers(0, 2**63)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerSettings(size=360, whitespace="keep"), CORPUS)


@given(text=a_text, dropout=st.floats(0, 1), seed=seeds)
@settings(max_examples=200, deadline=None)
def test_dropout_keeps_the_text(tokenizer, text, dropout, seed):
    assert tokenizer.decode(tokenizer.encode_dropped(text, dropout, seed)) == tokenizer.normalise(text)


@given(text=a_text, dropout=st.floats(0, 1), seed=seeds, again=seeds)
@settings(max_examples=200, deadline=None)
def test_dropout_depends_on_its_arguments_alone(tokenizer, text, dropout, seed, again):
    first = tokenizer.encode_dropped(text, dropout, seed)
    tokenizer.encode_dropped(text, dropout, again)
    other = (
        train_tokenizer(TokenizerSettings(size=360, whitespace="keep"), CORPUS) if len(text) % 16 == 15 else tokenizer
    )
    assert other.encode_dropped(text, dropout, seed) == first


@given(text=a_text, seed=seeds)
@settings(max_examples=200, deadline=None)
def test_no_dropout_is_the_usual_segmentation(tokenizer, text, seed):
    ids = tokenizer.encode(text)
    assert tokenizer.encode_dropped(text, 0.0, seed) == ids
    assert tokenizer.drop(ids, 1e-300, seed) == ids  # our own merging agrees with the library's


@given(text=a_text, seed=seeds, dropout=st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_ids_can_be_dropped_without_their_text(tokenizer, text, seed, dropout):
    ids = tokenizer.encode(text)
    assert tokenizer.drop(ids, dropout, seed) == tokenizer.encode_dropped(text, dropout, seed)
    assert tokenizer.drop(np.array(ids, dtype=np.int32), dropout, seed) == tokenizer.drop(ids, dropout, seed)


def test_full_dropout_leaves_characters(tokenizer):
    shown = tokenizer.tokens(tokenizer.encode_dropped("newest 42!", 1.0, 7))
    assert shown == ["▁", "n", "e", "w", "e", "s", "t", "▁", "4", "2", "!"]


def test_frequencies_are_those_worked_out_by_hand():
    """Pieces a b c ab abc, merges ab then ab+c: "abc" stays whole with (1-p)², ends as ab c with (1-p)p, else a b c."""
    merging = MergeDropout(["<s>", "a", "b", "c", "ab", "abc"], {(1, 2): 4, (4, 3): 5}, 1)
    counts = Counter(tuple(merging.draw([5], 0.3, seed)) for seed in range(20_000))
    shares = {ids: count / 20_000 for ids, count in counts.items()}
    assert shares.keys() == {(5,), (4, 3), (1, 2, 3)}
    assert shares[5,] == pytest.approx(0.49, abs=0.015)
    assert shares[4, 3] == pytest.approx(0.21, abs=0.015)
    assert shares[1, 2, 3] == pytest.approx(0.30, abs=0.015)


def test_next_merge_applies_if_the_best_is_skipped():
    """Pieces a b c ab bc, merges ab then bc: from "abc" ab c has 1-p, a bc has p(1-p), a b c has p²."""
    merging = MergeDropout(["<s>", "a", "b", "c", "ab", "bc"], {(1, 2): 4, (2, 3): 5}, 1)
    counts = Counter(tuple(merging.draw([4, 3], 0.4, seed)) for seed in range(20_000))
    shares = {ids: count / 20_000 for ids, count in counts.items()}
    assert shares.keys() == {(4, 3), (1, 5), (1, 2, 3)}
    assert shares[4, 3] == pytest.approx(0.60, abs=0.015)
    assert shares[1, 5] == pytest.approx(0.24, abs=0.015)
    assert shares[1, 2, 3] == pytest.approx(0.16, abs=0.015)
