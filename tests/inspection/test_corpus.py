"""The corpus lens: numbers equal forced decoding's, and misaligned pairs come first."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.errors import raises

from translume.errors import DataError
from translume.evaluation.calibration import BINS
from translume.inspection import corpus
from translume.inspection.comparison import compare_on_corpus
from translume.inspection.corpus import BANDS, RANKS, Smallest, inspect_corpus
from translume.inspection.terminal import corpus_lines
from translume.inspection.values import CorpusLens
from translume.translator import Translator, scoring

from .test_schema import problems

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "corpus.schema.json"
PAIRS = [
    ("abc", "cba"), ("hello you", "b"), ("q", "xyz abc"), ("a b c d", "hello"), ("", "q"), ("not", "to be"),
    ("this is a longer one", "which it is."),
]  # fmt: skip


@pytest.fixture(scope="module")
def translator(make):
    return make()


@pytest.fixture(scope="module")
def beliefs(translator):
    """(log-probabilities [V], the reference's token) of every step, from `Translator.beliefs`."""
    found = [(belief.log_probs().double(), labels) for belief, labels in translator.beliefs(PAIRS)]
    return torch.cat([each for each, _ in found]).numpy(), torch.cat([each for _, each in found]).numpy()


def ece(confidence: np.ndarray, right: np.ndarray) -> float:
    """Σ_b n_b/n · |accuracy − confidence| over bins (b/15, (b+1)/15]."""
    total = 0.0
    for b in range(BINS):
        inside = (confidence > b / BINS) & (confidence <= (b + 1) / BINS)
        if inside.any():
            total += inside.sum() * abs(right[inside].mean() - confidence[inside].mean())
    return total / len(confidence)


def test_log_probs_equal_those_of_forced_decoding(translator):
    lens = inspect_corpus(translator, PAIRS)
    scores = [translator.score(*pair) for pair in PAIRS]
    assert (lens.pairs, lens.tokens) == (len(PAIRS), sum(len(score.tokens) for score in scores))
    assert (lens.too_long, lens.first_too_long, lens.impossible, lens.normalised) == (0, None, 0, True)
    assert lens.nll == pytest.approx(-sum(score.log_prob for score in scores) / lens.tokens, abs=1e-5)
    assert sum(each.tokens for each in lens.ranks) == lens.tokens
    assert [each.most for each in lens.ranks] == [*RANKS, None]
    assert sum(view.tokens for view in lens.places) == lens.tokens
    assert sum(view.tokens * view.nll for view in lens.places) == pytest.approx(lens.nll * lens.tokens, abs=1e-4)
    for view in (*lens.suspects, *lens.hardest):
        score, blank = scores[view.line - 1], translator.score("", view.target)
        assert (view.source, view.target) == PAIRS[view.line - 1]
        assert view.tokens == len(score.tokens)
        assert view.log_p == pytest.approx(score.log_prob, abs=1e-4)
        assert view.gain == pytest.approx((score.log_prob - blank.log_prob) / view.tokens, abs=1e-4)
        assert view.worst_log_p == pytest.approx(min(score.token_log_probs), abs=1e-4)
        assert view.worst == score.tokens[score.token_log_probs.index(min(score.token_log_probs))]
    assert [view.gain for view in lens.suspects] == sorted(view.gain for view in lens.suspects)
    means = [view.log_p / view.tokens for view in lens.hardest]
    assert means == sorted(means)
    assert means[0] == pytest.approx(min(score.log_prob / len(score.tokens) for score in scores), abs=1e-5)


def test_places_count_from_the_start_of_the_target(translator):
    places = inspect_corpus(translator, PAIRS).places
    lengths = [len(translator.score(*pair).tokens) for pair in PAIRS]
    assert [view.tokens for view in places] == [
        sum(length >= number for length in lengths) for number in range(1, max(lengths) + 1)
    ]
    firsts = [translator.score(*pair).token_log_probs[0] for pair in PAIRS]
    assert places[0].nll == pytest.approx(-np.mean(firsts), abs=1e-5)


def test_the_last_place_includes_all_later_ones_and_says_so(translator, monkeypatch):
    places = inspect_corpus(translator, PAIRS).places
    assert not any(view.and_later for view in places)
    monkeypatch.setattr("translume.inspection.corpus.PLACES", 3)
    first = inspect_corpus(translator, PAIRS).places
    assert [(view.place, view.and_later) for view in first] == [(1, False), (2, False), (3, True)]
    assert first[2].tokens == sum(view.tokens for view in places[2:])
    rows = [line.plain.split()[:2] for line in corpus_lines(inspect_corpus(translator, PAIRS))]
    assert ["3+", str(first[2].tokens)] in rows


def test_calibration_ranks_and_entropies_agree_with_numpy(translator, beliefs):
    log_probs, labels = beliefs
    lens, end = inspect_corpus(translator, PAIRS), translator.checkpoint.target_tokenizer.specials.eos
    best, p = log_probs.argmax(-1), np.exp(log_probs)
    assert lens.reliability.ece == pytest.approx(ece(p.max(-1), best == labels), abs=1e-6)
    assert lens.reliability.accuracy == pytest.approx((best == labels).mean())
    assert lens.reliability.confidence == pytest.approx(p.max(-1).mean(), abs=1e-6)
    assert lens.end.ece == pytest.approx(ece(p[:, end], labels == end), abs=1e-6)
    entropy = -(p * log_probs).sum()
    assert sum(view.entropy * view.tokens for view in lens.places) == pytest.approx(entropy, rel=1e-5)
    own = log_probs[np.arange(len(labels)), labels]
    ranks = 1 + (log_probs > own[:, None]).sum(-1)
    groups = np.searchsorted(RANKS, ranks)
    assert [each.tokens for each in lens.ranks] == np.bincount(groups, minlength=len(RANKS) + 1).tolist()


@pytest.mark.parametrize("training", [True, False])
def test_bands_agree_with_numpy_and_exclude_eos(translator, beliefs, training):
    log_probs, labels = beliefs
    size, end = log_probs.shape[1], translator.checkpoint.target_tokenizer.specials.eos
    counts = np.arange(size) ** 3 if training else np.bincount(labels, minlength=size)
    lens = inspect_corpus(translator, PAIRS, frequencies=counts.tolist() if training else None)
    assert lens.frequency == ("training" if training else "corpus")
    band = np.searchsorted(BANDS, counts)
    band[end] = -1
    best, p = log_probs.argmax(-1), np.exp(log_probs)
    own = log_probs[np.arange(len(labels)), labels]
    assert sum(each.tokens for each in lens.bands) == len(labels) - len(PAIRS)
    lower = [0, *(most + 1 for most in BANDS)]
    for view in lens.bands:
        number = lower.index(view.least)
        assert view.most == (*BANDS, None)[number]
        wanted, steps = band[labels] == number, band[best] == number
        assert (view.tokens, view.types) == (wanted.sum(), len(set(labels[wanted])))
        if wanted.any():
            assert view.nll == pytest.approx(-own[wanted].mean(), abs=1e-5)
            assert view.first == pytest.approx((best == labels)[wanted].mean())
        else:
            assert (view.nll, view.first) == (None, None)
        if steps.any():
            assert view.reliability.count == steps.sum()
            assert view.reliability.ece == pytest.approx(ece(p.max(-1)[steps], (best == labels)[steps]), abs=1e-6)
        else:
            assert view.reliability is None
    assert {lower.index(view.least) for view in lens.bands} == {*band[labels], *band[best]} - {-1}


def test_never_predicted_tokens_are_the_likeliest_of_no_step(translator, beliefs):
    log_probs, labels = beliefs
    lens = inspect_corpus(translator, PAIRS, show=1000)
    tokenizer = translator.checkpoint.target_tokenizer
    never = Counter(labels.tolist())
    for id_ in set(log_probs.argmax(-1).tolist()):
        never.pop(id_, None)
    assert {each.text: each.tokens for each in lens.never_predicted} == {
        tokenizer.tokens([id_])[0]: count for id_, count in never.items()
    }
    assert (lens.types, lens.never_types) == (len(set(labels.tolist())), len(never))
    assert lens.never_tokens == sum(never.values())
    counts = [each.tokens for each in lens.never_predicted]
    assert counts == sorted(counts, reverse=True)


def numbers(value):
    """All numbers of a JSON value, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return [value] if isinstance(value, int | float) else []


@settings(max_examples=12)
@given(window=st.integers(1, 9), max_tokens=st.integers(1, 40), elements=st.integers(1, 700))
def test_any_split_into_batches_gives_the_same_numbers(make, window, max_tokens, elements):
    translator = make()
    config = translator.config.change(f"decoding.max_tokens={max_tokens}")
    split = Translator(replace(translator.checkpoint, config=config))
    whole = inspect_corpus(translator, PAIRS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "WINDOW_LINES", window)
        patch.setattr(scoring, "CHUNK_ELEMENTS", elements)
        parts = inspect_corpus(split, iter(PAIRS))
    assert numbers(parts.to_dict()) == pytest.approx(numbers(whole.to_dict()), abs=2e-5)
    assert [view.line for view in parts.suspects] == [view.line for view in whole.suspects]


def test_the_progress_callback_counts_every_pair(translator):
    told = []
    inspect_corpus(translator, PAIRS, progress=told.append)
    assert sum(told) == len(PAIRS)


@pytest.mark.parametrize("show", [0, 1, 3])
def test_show_limits_the_length_of_lists(translator, show):
    lens = inspect_corpus(translator, PAIRS, show=show)
    whole = inspect_corpus(translator, PAIRS, show=1000)
    for name in ("suspects", "hardest", "never_predicted"):
        assert getattr(lens, name) == getattr(whole, name)[:show]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers()), max_size=12), st.integers(0, 5))
def test_the_smallest_are_kept_in_order_and_ties_in_input_order(entries, most):
    kept = Smallest(most)
    for number, (value, _) in enumerate(entries):
        if kept.accepts(value):
            kept.add(value, number)
    assert list(kept.entries()) == sorted(range(len(entries)), key=lambda number: entries[number][0])[:most]


def test_misaligned_pairs_come_first(backwards, words):
    """1 % of targets belong to another pair. At least nine of ten must be in the two percent with the smallest gain."""
    drawn = torch.Generator().manual_seed(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    sources = ["".join(letters[i] for i in torch.randperm(26, generator=drawn)[:6].tolist()) for _ in range(1000)]
    targets = [text[::-1] for text in sources]
    planted = torch.randperm(1000, generator=drawn)[:10].tolist()
    for one, other in zip(planted, planted[1:] + planted[:1], strict=True):
        targets[one] = sources[other][::-1]
    lens = inspect_corpus(backwards, zip(sources, targets, strict=True), show=20)
    found = {view.line - 1 for view in lens.suspects}
    assert len(found & set(planted)) >= 9


def test_a_pair_that_the_model_cannot_read_is_left_out_and_counted(translator):
    pairs = [*PAIRS[:2], ("a" * 41, "b"), ("a", "b" * 41), *PAIRS[2:]]
    lens = inspect_corpus(translator, pairs)
    whole = inspect_corpus(translator, PAIRS)
    assert (lens.pairs, lens.too_long, lens.first_too_long) == (len(PAIRS), 2, 3)
    assert lens.nll == pytest.approx(whole.nll, abs=1e-6)
    assert {view.line for view in lens.suspects} == {1, 2, 5, 6, 7, 8, 9}


def test_every_head_has_a_lens_with_null_for_impossible_tokens(translator_of_every_head):
    lens = inspect_corpus(translator_of_every_head, PAIRS)
    scores = list(translator_of_every_head.score_all(PAIRS))
    assert lens.impossible == sum(value == -math.inf for score in scores for value in score.token_log_probs)
    assert lens.normalised is translator_of_every_head.checkpoint.model.head.normalised
    assert (lens.nll is None) == (bool(lens.impossible) or not lens.normalised)
    assert (lens.places[0].entropy is None) == (not lens.normalised)
    if lens.impossible:
        assert lens.suspects[0].log_p == -math.inf
        assert lens.suspects[0].gain is None
    assert CorpusLens.from_dict(json.loads(json.dumps(lens.to_dict(), allow_nan=False))) == lens


def test_a_lens_follows_the_published_schema(translator, make):
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    lens = inspect_corpus(translator, PAIRS)
    compared = replace(lens, comparison=compare_on_corpus(translator, make(seed=5), PAIRS))
    assert compared.comparison.gaps
    assert compared.comparison.partings
    for each in (lens, compared, inspect_corpus(translator, PAIRS, show=0)):
        content = json.loads(json.dumps(each.to_dict(), allow_nan=False))
        assert problems(content, schema, schema["$defs"]) == []
        assert problems({**content, "schema": "corpus/1"}, schema, schema["$defs"])
        assert CorpusLens.from_dict(content) == each


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([], {}, "corpus: found no pairs, expected at least one"),
        ([("a" * 41, "b")] * 2, {}, "corpus: all 2 pairs are longer than the model reads"),
        ([("a", "b")], {"frequencies": [1, 2, 3]}, "corpus: found 3 frequencies, expected 34, one for each token"),
    ],
)
def test_invalid_requests_are_refused(translator, pairs, options, message):
    with raises(DataError, message):
        inspect_corpus(translator, pairs, **options)
