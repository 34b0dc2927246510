"""Minimum Bayes risk decoding: utilities equal those of sacreBLEU, and hypotheses are ranked by them."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from translume.config import DecodingSettings
from translume.translator import TextHypothesis, Translator, ranking
from translume.translator.ranking import minimum_bayes_risk, pairwise_bleu, pairwise_chrf

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
