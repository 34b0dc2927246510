"""Minimum Bayes risk decoding: utilities equal those of sacreBLEU, and hypotheses are ranked by them."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tests.evaluation import fake_comet

from translume.config import DecodingSettings, EvaluationSettings
from translume.config.evaluation import METRICS
from translume.errors import SettingsError
from translume.evaluation import SegmentMetric, metric_from
from translume.evaluation.segment_metrics import Row
from translume.translator import TextHypothesis, Translator, ranking
from translume.translator.cohort import Cohort
from translume.translator.planning import Line
from translume.translator.ranking import minimum_bayes_risk, pairwise_bleu, pairwise_chrf, rank_by_metric

Make = Callable[..., Translator]
words = st.lists(st.sampled_from(["a", "aa", "the", "cat", "(hi)", "don't", "3.5", ",", "über", " "]), max_size=9)
texts = st.lists(words.map(" ".join) | st.text("ab .", max_size=9), min_size=1, max_size=7)
ORACLES = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}


def hypothesis(text: str, log_prob: float = -1.0) -> TextHypothesis:
    return TextHypothesis(text=text, tokens=(), ids=(), log_prob=log_prob, score=log_prob, finished_by="eos")


@pytest.mark.parametrize(("name", "pairwise"), [("chrf", pairwise_chrf), ("bleu", pairwise_bleu)])
@settings(max_examples=60, deadline=None)
@given(texts=texts)
def test_pairwise_scores_equal_those_of_sacrebleu(
    name: str, pairwise: Callable[[list[str]], np.ndarray], texts: list[str]
):
    wanted = [[ORACLES[name].sentence_score(one, [other]).score for other in texts] for one in texts]
    np.testing.assert_allclose(pairwise(texts), wanted, rtol=1e-9, atol=1e-9)


def test_matches_are_summed_over_blocks_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the cat sat on the mat", "a cat sat on that mat", "the the the the the"]
    whole = pairwise_chrf(texts)
    monkeypatch.setattr(ranking, "COLUMNS", 3)
    np.testing.assert_array_equal(pairwise_chrf(texts), whole)


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
@settings(max_examples=60, deadline=None)
@given(texts=texts, nbest=st.integers(1, 9))
def test_hypotheses_are_ranked_by_their_mean_utility(utility: str, texts: list[str], nbest: int) -> None:
    found = [hypothesis(text, -float(place)) for place, text in enumerate(texts)]
    ranked = minimum_bayes_risk(found, utility, nbest)
    oracle = ORACLES[utility]
    means = {text: np.mean([oracle.sentence_score(text, [other]).score for other in texts]) for text in texts}
    assert len(ranked) == min(nbest, len(means))
    assert [each.score for each in ranked] == pytest.approx(sorted(means.values(), reverse=True)[:nbest])
    for each in ranked:
        assert each.score == pytest.approx(means[each.text])
        assert each.log_prob == -float(texts.index(each.text))  # that of the first hypothesis with this text


def test_duplicates_count_in_the_mean_and_are_listed_once() -> None:
    found = [hypothesis(text) for text in ("x y z", "a b c d", "a b c d", "a b c e")]
    assert [each.text for each in minimum_bayes_risk(found, "bleu", 9)] == ["a b c d", "a b c e", "x y z"]
    assert [each.text for each in minimum_bayes_risk(found[:2], "bleu", 9)] == ["x y z", "a b c d"]  # a tie


@pytest.mark.parametrize(
    "options", [{"strategy": "sampling", "samples": 7}, {"strategy": "stochastic", "samples": 7}, {}]
)
def test_translations_are_ranked_by_the_risk_over_all_hypotheses_found(make: Make, options: dict[str, object]) -> None:
    translator = make()
    plain = DecodingSettings(**options)
    everything = translator.translate(
        "abc def", settings=plain.model_copy(update={"nbest": plain.samples if options else 5})
    )
    wanted = minimum_bayes_risk(everything.hypotheses, "chrf", 2)
    found = translator.translate(
        "abc def", settings=plain.model_copy(update={"utility": "chrf", "nbest": min(2, len(wanted))})
    )
    assert [each.text for each in found.hypotheses] == [each.text for each in wanted]
    assert [each.score for each in found.hypotheses] == pytest.approx([each.score for each in wanted])
    assert found.text == wanted[0].text


def test_a_single_hypothesis_is_returned_unchanged(make: Make) -> None:
    translator = make()
    plain = translator.translate("abc def", settings=DecodingSettings(strategy="greedy"))
    assert translator.translate("abc def", settings=DecodingSettings(strategy="greedy", utility="bleu")) == plain


def test_parts_of_a_long_line_are_ranked_separately(make: Make) -> None:
    translator = make(max_positions=12)
    settings = DecodingSettings(strategy="sampling", samples=5, nbest=2, utility="chrf")
    found = translator.translate("Abc def. Ghi jkl!", settings=settings)
    assert 1 <= len(found.hypotheses) <= 2
    assert 0 <= found.hypotheses[0].score <= 200


NUMBERS = itertools.count()


class Sentences(SegmentMetric):
    """Sentence chrF; without references, the number of letters that text and source have in common."""

    name = title = "sentences"
    reads_sources = True

    def __init__(self, settings: EvaluationSettings | None = None, *, references: bool = True) -> None:
        self.reads_references = references
        self.computed: list[Row] = []
        self.number = next(NUMBERS)  # ids of objects come again, and the cache outlives a metric

    def definition(self) -> str:
        return f"test:{self.number}"

    def compute(self, rows: Sequence[Row]) -> list[float]:
        self.computed += rows
        if not self.reads_references:
            return [float(len(set(source) & set(text))) for source, text, _ in rows]
        return [ORACLES["chrf"].sentence_score(text, [other]).score for _, text, other in rows]


@pytest.fixture
def sentences(monkeypatch: pytest.MonkeyPatch) -> type[Sentences]:
    """Return a metric from outside, which `decoding.utility` may name."""
    monkeypatch.setitem(METRICS, "sentences", Sentences)
    return Sentences


@settings(max_examples=40, deadline=None)
@given(found=st.lists(texts, min_size=1, max_size=3), nbest=st.integers(1, 4))
def test_ranking_by_a_metric_rates_each_pair_once_for_the_least_risk(found: list[list[str]], nbest: int) -> None:
    lists = [[hypothesis(text, -float(place)) for place, text in enumerate(own)] for own in found]
    metric = Sentences()
    ranked = rank_by_metric(lists, ["source"] * len(lists), metric, nbest)
    for own, best in zip(lists, ranked, strict=True):
        wanted = minimum_bayes_risk(own, "chrf", len(own))
        score = {each.text: each.score for each in wanted}
        assert [each.score for each in best] == pytest.approx([each.score for each in wanted[:nbest]])
        assert [score[each.text] for each in best] == pytest.approx([each.score for each in best])
    pairs = {(one, other) for own in found for one in own for other in own}
    assert sorted(metric.computed) == sorted(("source", one, other) for one, other in pairs)


def test_ranking_without_references_is_by_the_rating_itself() -> None:
    found = [[hypothesis(text) for text in ("xy", "ab", "abc", "ab")], [hypothesis("c"), hypothesis("abz")]]
    metric = Sentences(references=False)
    ranked = rank_by_metric(found, ["abcd", "zz"], metric, 2)
    scores = [[(each.text, each.score) for each in own] for own in ranked]
    assert scores == [[("abc", 3), ("ab", 2)], [("abz", 1), ("c", 0)]]
    assert len(metric.computed) == 5


@pytest.mark.parametrize("options", [{"strategy": "sampling", "samples": 7}, {"beam": 4}])
def test_translations_are_ranked_by_a_metric_from_outside(
    make: Make, sentences: type[Sentences], options: dict[str, object]
) -> None:
    translator = make("decoding.split=always")
    lines = ["abc def. Ghi!", "xyz"]
    plain = DecodingSettings(**options, split="always", nbest=1)
    by_chrf, by_metric = (
        list(translator.translate_all(lines, settings=plain.model_copy(update={"utility": name, "nbest": 2})))
        for name in ("chrf", "sentences")
    )
    for one, other in zip(by_chrf, by_metric, strict=True):
        assert [each.score for each in other.hypotheses] == pytest.approx([each.score for each in one.hypotheses])
    chosen = plain.model_copy(update={"utility": "sentences"})
    cohort, done = Cohort(translator, chosen), {}
    cohort.enter({number: Line(number=number, text=text) for number, text in enumerate(lines)}, {})
    while cohort:
        done |= cohort.run()
    alone = translator.translate_all(lines, settings=chosen)
    assert [done[number].text for number in range(2)] == [each.text for each in alone]


def test_comet_rates_the_pieces_of_a_line_with_their_sources(make: Make, tmp_path: Path) -> None:
    comet = fake_comet.make(tmp_path)
    translator = make(f"evaluation.comet.python={comet.python}")
    words = {"strategy": "sampling", "samples": 5, "seed": 3}
    every = translator.translate("abc def", nbest=5, **words)
    found = translator.translate("abc def", nbest=5, utility="comet", utility_model=comet.model, **words)
    texts = [each.text for each in every.hypotheses]
    scores = {(one, other): 100 * fake_comet.score("abc def", one, other) for one in texts for other in texts}
    means = {one: np.mean([scores[one, other] for other in texts]) for one in texts}
    assert {each.text: each.score for each in found.hypotheses} == pytest.approx(means)
    assert [each.score for each in found.hypotheses] == pytest.approx(sorted(means.values(), reverse=True))
    assert len(fake_comet.rows_scored(tmp_path)) == len(means) ** 2
    best = translator.translate("abc def", utility="comet-kiwi", utility_model=comet.kiwi_model, **words)
    assert best.hypotheses[0].score == pytest.approx(max(100 * fake_comet.score("abc def", text) for text in texts))
    chosen = EvaluationSettings(comet=comet)
    for name, setting in (("comet", "model"), ("comet-kiwi", "kiwi_model")):
        used = comet.model_copy(update={"model": "", "kiwi_model": "", setting: getattr(comet, setting)})
        metric_from(name, chosen.model_copy(update={"comet": used})).close()


@pytest.mark.parametrize(("changes", "message"), [
    ({"utility": "comet"},
     "evaluation.comet.model: found '', expected a file of comet, .ckpt, or hf://owner/name"),
    ({"utility": "bleu", "utility_model": "a"}, "decoding.utility_model: found 'a', must be '' for utility = 'bleu'"),
    ({"utility": "lengths"}, "decoding.utility: 'lengths' does not rate single texts, expected a SegmentMetric"),
])  # fmt: skip
def test_utilities_that_cannot_rank_are_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], message: str
) -> None:
    monkeypatch.setitem(METRICS, "lengths", lambda settings: object())
    with pytest.raises(SettingsError) as caught:
        make().check(DecodingSettings(**changes))
    assert str(caught.value) == message
