"""Significance tests between two systems, compared with sacreBLEU's."""

import random

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from translume.config import EvaluationSettings
from translume.errors import TranslumeError
from translume.evaluation import compare
from translume.evaluation.significance import interval

WORDS = ["the", "a", "cat", "dog", "bird", "sits", "runs", "sings", "on", "under", "mat", "tree", "loudly", "."]
ALL = EvaluationSettings(metrics=("bleu", "chrf", "ter", "wer", "exact_match"), tokenize="none")


def corpus(noise: float, seed: int) -> list[str]:
    """Fixed sentences with a random fraction of their words changed."""
    fixed, changed = random.Random(1), random.Random(seed)
    lines = [[fixed.choice(WORDS) for _ in range(fixed.randint(5, 12))] for _ in range(53)]
    return [" ".join(changed.choice(WORDS) if changed.random() < noise else word for word in line) for line in lines]


REFERENCES, GOOD, BAD = corpus(0, 0), corpus(0.2, 2), corpus(0.3, 3)


def test_comparisons_of_bleu_chrf_and_ter_equal_sacrebleus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    samples = 211
    metrics = {
        "BLEU": sacrebleu.BLEU(tokenize="none", force=True),
        "chrF2": sacrebleu.CHRF(),
        "TER": sacrebleu.TER(case_sensitive=True),
    }
    systems = [("first", BAD), ("second", GOOD)]
    _, expected = PairedTest(systems, metrics, [REFERENCES], test_type="bs", n_samples=samples)()
    found = compare(BAD, GOOD, REFERENCES, ALL, samples=samples)
    for each, title in zip(found, metrics, strict=False):
        first, second = expected[title]
        assert each.first.value == pytest.approx(first.score)
        assert each.second.value == pytest.approx(second.score)
        assert each.p_value == pytest.approx(second.p_value, abs=1.5 / samples)
        assert each.second_interval.mean == pytest.approx(second.mean, abs=1e-3)
        assert (each.second_interval.high - each.second_interval.low) / 2 == pytest.approx(second.ci, abs=1e-3)


@pytest.mark.parametrize("sentences", [53, 32])  # of few, some exchanges differ as much, which only we count
def test_approximate_randomisation_equals_sacrebleus(monkeypatch: pytest.MonkeyPatch, sentences: int) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    samples = 211
    metrics = {"BLEU": sacrebleu.BLEU(tokenize="none", force=True), "chrF2": sacrebleu.CHRF()}
    bad, good, references = BAD[:sentences], GOOD[:sentences], REFERENCES[:sentences]
    systems = [("first", bad), ("second", good)]
    _, expected = PairedTest(systems, metrics, [references], test_type="ar", n_samples=samples)()
    settings = EvaluationSettings(metrics=("bleu", "chrf"), tokenize="none")
    for each, title in zip(
        compare(bad, good, references, settings, samples=samples, test="randomisation"), metrics, strict=True
    ):
        assert each.p_value == pytest.approx(expected[title][1].p_value, abs=1e-12)
        assert f"|ar:{samples}|seed:12345|" in str(each)


def test_randomisation_of_few_sentences_counts_exchanges() -> None:
    """Of eight exchanges of three sentences that are all wrong in one system, two differ as much: p is 2 / 8."""
    wer = EvaluationSettings(metrics=("wer",))
    (each,) = compare(["x"] * 3, ["a"] * 3, ["a"] * 3, wer, test="randomisation")
    assert each.p_value == pytest.approx(0.25, abs=0.02)
    assert each.samples == 10_000
    (same,) = compare(["x"] * 3, ["x"] * 3, ["a"] * 3, wer, test="randomisation", samples=97)
    assert same.p_value == 1


def test_a_large_difference_is_significant_and_no_difference_is_not() -> None:
    for each in compare(corpus(0.9, 5), GOOD, REFERENCES, ALL, samples=97):
        assert each.p_value == pytest.approx(1 / 98) or each.first.name == "exact_match"
        better = each.difference.low > 0 or each.difference.high < 0
        assert better or each.first.name == "exact_match"
    for each in compare(GOOD, GOOD, REFERENCES, ALL, samples=97):
        assert each.difference.mean == each.difference.low == each.difference.high == 0
        assert each.p_value == 1


def test_a_seed_determines_the_samples() -> None:
    wer = EvaluationSettings(metrics=("wer",))
    assert compare(BAD, GOOD, REFERENCES, wer, samples=41) == compare(BAD, GOOD, REFERENCES, wer, samples=41)
    (one,) = compare(BAD, GOOD, REFERENCES, wer, samples=41, seed=1)
    (other,) = compare(BAD, GOOD, REFERENCES, wer, samples=41, seed=2)
    assert one.difference != other.difference
    assert (one.seed, one.samples) == (1, 41)


def test_both_systems_are_measured_on_the_same_samples() -> None:
    (each,) = compare(GOOD, GOOD, REFERENCES, EvaluationSettings(metrics=("wer",)), samples=41)
    assert each.first_interval == each.second_interval


def test_an_interval_excludes_two_and_a_half_percent_at_each_end() -> None:
    found = interval(np.arange(200.0)[::-1])
    assert (found.mean, found.low, found.high) == (99.5, 5.0, 194.0)


def test_a_comparison_is_one_line() -> None:
    (each,) = compare(["a b"], ["a c"], ["a b"], EvaluationSettings(metrics=("wer",)), samples=3, seed=7)
    assert str(each) == (
        "WER|nrefs:1|case:mixed|tok:blank|edits:levenshtein|bs:3|seed:7|sentences:1: "
        "0.00 ± 0.00 against 50.00 ± 0.00, difference +50.00 [+50.00, +50.00], p = 0.2500"
    )
    assert each.to_dict()["p_value"] == 0.25


@pytest.mark.parametrize(
    ("systems", "metric", "options", "message"),
    [
        ((["a"], ["a", "b"]), "wer", {}, "evaluate: 2 translations but 1 references, expected equally many"),
        ((["a"], ["b"]), "sari", {"sources": ["x", "y"]},
         "evaluate: 1 translations but 2 sources, expected equally many"),
        ((["a"], ["a"]), "wer", {"samples": 0}, "compare: found 0 samples, expected at least 1"),
    ],
)  # fmt: skip
def test_invalid_input_is_refused_in_one_line(systems, metric: str, options, message: str) -> None:
    with pytest.raises(TranslumeError) as error:
        compare(*systems, ["a"], EvaluationSettings(metrics=(metric,)), **options)
    assert str(error.value) == message
