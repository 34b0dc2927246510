"""A corpus as the model sees it: the numbers are those of forced decoding, and what is misaligned comes first."""

import math

import pytest

from translume.errors import DataError
from translume.inspection.corpus import RANKS, CorpusLens, inspect_corpus


@pytest.fixture(scope="module")
def translator(make):
    return make()


PAIRS = [("abc", "cba"), ("hello you", "b"), ("q", "xyz abc"), ("a b c d", "hello")]


def test_the_numbers_are_those_of_forced_decoding(translator):
    sources, targets = zip(*PAIRS, strict=True)
    lens = inspect_corpus(translator, sources, targets)
    scores = [translator.score(*pair) for pair in PAIRS]
    assert (lens.pairs, lens.tokens) == (4, sum(len(score.tokens) for score in scores))
    assert lens.nll == pytest.approx(-sum(score.log_prob for score in scores) / lens.tokens, abs=1e-5)
    assert sum(each.tokens for each in lens.ranks) == lens.tokens
    assert [each.most for each in lens.ranks] == [*RANKS, None]
    assert sum(view.tokens for view in lens.places) == lens.tokens
    assert sum(view.tokens * view.nll for view in lens.places) == pytest.approx(lens.nll * lens.tokens, abs=1e-4)
    assert lens.places[0].tokens == len(PAIRS)
    for view in (*lens.suspects, *lens.hardest):
        score, blank = scores[view.line - 1], translator.score("", view.target)
        assert (view.source, view.target) == PAIRS[view.line - 1]
        assert view.log_p == pytest.approx(score.log_prob, abs=1e-4)
        assert view.gain == pytest.approx((score.log_prob - blank.log_prob) / view.tokens, abs=1e-4)
        assert view.worst_log_p == pytest.approx(min(score.token_log_probs), abs=1e-4)
    assert [view.gain for view in lens.suspects] == sorted(view.gain for view in lens.suspects)
    assert lens.hardest[0].log_p / lens.hardest[0].tokens == min(v.log_p / v.tokens for v in lens.hardest)


def test_a_lens_survives_json(translator):
    lens = inspect_corpus(translator, ["abc", "q"], ["cba", "x"], show=1)
    assert CorpusLens.from_dict(lens.to_dict()) == lens
    assert (len(lens.suspects), len(lens.hardest)) == (1, 1)
    assert math.isfinite(lens.nll)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (["a", "b"], ["a"], "corpus: 2 sources but 1 targets; wanted as many of both"),
        ([], [], "corpus: no pairs, wanted at least one"),
    ],
)
def test_sides_that_do_not_fit_are_refused(translator, sources, targets, message):
    with pytest.raises(DataError) as caught:
        inspect_corpus(translator, sources, targets)
    assert str(caught.value) == message
