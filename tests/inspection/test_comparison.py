"""Comparing two models on one corpus: gaps sum to the total; numbers equal those of forced decoding."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.errors import raises

from translume.checkpoint import build_model
from translume.config import TokenizerSettings
from translume.errors import DataError
from translume.inspection import comparison
from translume.inspection.comparison import compare_on_corpus
from translume.text import train_tokenizer
from translume.translator import Translator

PAIRS = [("abc", "cba"), ("hello you", "b"), ("q", "xyz abc"), ("a b c d", "hello"), ("not", "to be")]
TEXTS = ["abc abd", "abc bcd", "hello abc", "xyz hello", "to be abc", "a b c d", "Hello äbc", "höhö 中文 q", "q"]


@pytest.fixture(scope="module")
def translator(make):
    return make()


@pytest.fixture(scope="module")
def other(make):
    return make(seed=5)


@pytest.fixture(scope="module", params=["bpe", "byte", "word", "lowercase"])
def pieces(request, translator):
    """A model with another target tokenizer and random weights."""
    kind = {"kind": "bpe", "size": 60, "lowercase": True} if request.param == "lowercase" else {"kind": request.param}
    sizes = {"byte": {}}.get(request.param, {"size": 60, "unknown": "token"})
    tokenizer = train_tokenizer(TokenizerSettings(**{**sizes, **kind}), [*TEXTS, *"abcdefhlotxyz q"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = build_model(translator.config.model, len(tokenizer), len(tokenizer)).eval()
        for parameter in model.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    checkpoint = replace(translator.checkpoint, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    return Translator(checkpoint)


def test_a_model_agrees_with_itself(translator):
    found = compare_on_corpus(translator, translator, PAIRS)
    assert (found.unit, found.pairs, found.same, found.partings) == ("token", len(PAIRS), len(PAIRS), ())
    assert (found.better, found.worse) == (0, 0)
    assert found.log_p == found.other_log_p
    assert {gap.log_p - gap.other_log_p for gap in found.gaps} == {0.0}


def test_references_are_compared_token_by_token(translator, other):
    found = compare_on_corpus(translator, other, PAIRS, show=1000)
    own, theirs = ([each.score(*pair) for pair in PAIRS] for each in (translator, other))
    assert found.unit == "token"
    assert found.log_p == pytest.approx(sum(score.log_prob for score in own), abs=1e-4)
    assert found.other_log_p == pytest.approx(sum(score.log_prob for score in theirs), abs=1e-4)
    assert found.better == sum(one.log_prob > two.log_prob for one, two in zip(own, theirs, strict=True))
    assert found.better + found.worse == len(PAIRS)
    wanted = sorted(
        (line, math.isclose(a, b), round(a, 3), round(b, 3))
        for line, (one, two) in enumerate(zip(own, theirs, strict=True), 1)
        for a, b in zip(one.token_log_probs, two.token_log_probs, strict=True)
    )
    gaps = [(gap.line, False, round(gap.log_p, 3), round(gap.other_log_p, 3)) for gap in found.gaps]
    assert sorted(gaps) == wanted
    apart = [abs(gap.log_p - gap.other_log_p) for gap in found.gaps]
    assert apart == sorted(apart, reverse=True)
    for gap in found.gaps:
        assert PAIRS[gap.line - 1][1].startswith(gap.before + gap.text)
    assert compare_on_corpus(translator, other, PAIRS, show=3).gaps == found.gaps[:3]


def test_values_where_translations_differ_equal_forced_decoding(translator, other):
    found = compare_on_corpus(translator, other, PAIRS, show=1000)
    texts = [(translator.translate(source).text, other.translate(source).text) for source, _ in PAIRS]
    assert found.same == sum(one == two for one, two in texts)
    assert len(found.partings) == len(PAIRS) - found.same > 0
    for parting in found.partings:
        source = PAIRS[parting.line - 1][0]
        assert (parting.text, parting.other_text) == texts[parting.line - 1]
        assert parting.text.startswith(parting.shared + parting.own.text)
        assert parting.other_text.startswith(parting.shared + parting.other.text)
        assert parting.own.text != parting.other.text
        place = next(
            place for place, (one, two) in enumerate(zip(f"{parting.text}$", f"{parting.other_text}$", strict=False))
            if one != two
        )  # fmt: skip
        assert parting.shared == parting.text[:place]
        for model, own, opposed in ((translator, parting.own, parting.other), (other, parting.other, parting.own)):
            mine, theirs = (
                (parting.text, parting.other_text) if model is translator else (parting.other_text, parting.text)
            )
            assert own.log_p == pytest.approx(model.score(source, mine).token_log_probs[place], abs=1e-4)
            assert own.of_other == pytest.approx(model.score(source, theirs).token_log_probs[place], abs=1e-4)
            assert len(opposed.text) <= 1
    sure = [each.own.log_p - each.own.of_other + each.other.log_p - each.other.of_other for each in found.partings]
    assert sure == sorted(sure, reverse=True)


def test_models_with_different_tokenizers_are_compared_at_common_boundaries(translator, pieces):
    pairs = [("abc", text) for text in TEXTS]
    for one, another in ((translator, pieces), (pieces, translator)):
        found = compare_on_corpus(one, another, pairs, show=1000)
        assert found.unit == "piece"
        for line, (source, target) in enumerate(pairs, 1):
            parts = sorted((gap for gap in found.gaps if gap.line == line), key=lambda gap: len(gap.before + gap.text))
            own, theirs = one.score(source, target), another.score(source, target)
            assert 1 <= len(parts) <= min(len(own.tokens), len(theirs.tokens))
            assert sum(gap.log_p for gap in parts) == pytest.approx(own.log_prob, abs=1e-4)
            assert sum(gap.other_log_p for gap in parts) == pytest.approx(theirs.log_prob, abs=1e-4)
            assert "".join(gap.text for gap in parts) == one.checkpoint.target_tokenizer.normalise(target)
        for parting in found.partings:
            assert parting.own.text != parting.other.text
            assert all(value <= 1e-6 for each in (parting.own, parting.other) for value in (each.log_p, each.of_other))


@settings(max_examples=6)
@given(window=st.integers(1, 6), max_tokens=st.integers(1, 30))
def test_any_split_into_batches_gives_the_same_comparison(make, window, max_tokens):
    one, another = make(), make(seed=5)
    short = one.config.change("decoding.beam=1", "decoding.max_length=3").decoding
    whole = compare_on_corpus(one, another, PAIRS, settings=(short, short))
    split = Translator(replace(one.checkpoint, config=one.config.change(f"decoding.max_tokens={max_tokens}")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "WINDOW_LINES", window)
        found = compare_on_corpus(split, another, PAIRS, settings=(short, short))
    assert found.log_p == pytest.approx(whole.log_p, abs=1e-4)
    assert [(each.line, each.shared) for each in found.partings] == [
        (each.line, each.shared) for each in whole.partings
    ]
    assert [each.log_p for each in found.gaps] == pytest.approx([each.log_p for each in whole.gaps], abs=1e-5)


def test_a_pair_that_one_model_cannot_read_is_left_out(translator, other):
    told = []
    found = compare_on_corpus(translator, other, [*PAIRS, ("a" * 41, "b")], progress=told.append)
    assert (found.pairs, sum(told)) == (len(PAIRS), len(PAIRS))
    with raises(DataError, "corpus: all 1 pairs are longer than the model reads"):
        compare_on_corpus(translator, other, [("a" * 41, "b")])


def test_each_model_keeps_its_own_decoding_settings(translator, other):
    greedy = translator.config.change("decoding.beam=1", "decoding.max_length=2").decoding
    found = compare_on_corpus(translator, other, PAIRS, settings=(greedy, None), show=1000)
    for parting in found.partings:
        source = PAIRS[parting.line - 1][0]
        assert parting.text == translator.translate(source, settings=greedy).text
        assert parting.other_text == other.translate(source).text
