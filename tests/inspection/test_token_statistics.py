"""Token statistics of the corpus lens, with values worked by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from translume.belief import Logits
from translume.inspection.corpus import PLACES, TokenStatistics
from translume.inspection.values import NeverPredicted
from translume.translator.scoring import TokenBeliefs


class FiveTokens:
    """A tokenizer of five tokens named after their ids; 0 is EOS."""

    specials = SimpleNamespace(eos=0)

    def __len__(self):
        return 5

    def tokens(self, ids):
        return [f"t{id_}" for id_ in ids]


TABLE = [
    [0.1, 0.6, 0.2, 0.1, 0.0],
    [0.05, 0.5, 0.4, 0.05, 0.0],
    [0.7, 0.1, 0.1, 0.1, 0.0],
    [0.25, 0.25, 0.25, 0.25, 0.0],
    [0.19, 0.81, 0.0, 0.0, 0.0],
]
LABELS = [1, 2, 0, 4, 0]
PLACE = [0, 1, 2, 0, 1]


def token_beliefs(rows):
    return TokenBeliefs(
        belief=Logits(torch.tensor([TABLE[row] for row in rows]).log()),
        labels=torch.tensor([LABELS[row] for row in rows]),
        pairs=torch.tensor([0, 0, 0, 1, 1])[rows],
        places=torch.tensor([PLACE[row] for row in rows]),
    )


@pytest.fixture(params=[[[0, 1, 2, 3, 4]], [[3, 4], [0], [1, 2]]], ids=["at once", "in parts"])
def statistics(request):
    found = TokenStatistics(FiveTokens())
    for rows in request.param:
        own = found.add(token_beliefs(rows))
        wanted = [TABLE[row][LABELS[row]] for row in rows]
        assert own.tolist() == pytest.approx([math.log(p) if p else -math.inf for p in wanted])
    return found


def test_tokens_and_ranks(statistics):
    assert (statistics.sums.count, statistics.sums.impossible, statistics.types()) == (5, 1, 4)
    assert statistics.sums.mean == pytest.approx(-math.log(0.6 * 0.4 * 0.7 * 0.19) / 4)
    assert [each.tokens for each in statistics.ranks()] == [2, 2, 1, 0, 0, 0]


def test_places(statistics):
    first, second, third = statistics.places()
    assert (first.place, first.tokens, first.nll) == (1, 2, None)
    own = -0.6 * math.log(0.6) - 0.2 * math.log(0.2) - 0.2 * math.log(0.1)
    assert first.entropy == pytest.approx((own + math.log(4)) / 2)
    assert (second.place, second.tokens) == (2, 2)
    assert second.nll == pytest.approx(-(math.log(0.4) + math.log(0.19)) / 2)
    assert (third.place, third.tokens) == (3, 1)
    assert third.nll == pytest.approx(-math.log(0.7))


def test_calibration_of_all_steps_and_of_eos(statistics):
    found = statistics.sums.tokens.reliability()
    assert (found.count, found.accuracy) == (5, 0.4)
    assert found.confidence == pytest.approx((0.6 + 0.5 + 0.7 + 0.25 + 0.81) / 5)
    assert found.ece == pytest.approx((0.4 + 0.5 + 0.3 + 0.25 + 0.81) / 5)
    ends = statistics.sums.ends.reliability()
    assert ends.ece == pytest.approx((0.1 + 0.05 + 0.3 + 0.25 + 0.81) / 5)
    assert ends.accuracy == 0.4


def test_bands_use_the_reference_for_nll_and_the_likeliest_for_calibration(statistics):
    rare, known = statistics.bands(torch.tensor([9, 0, 5, 12, 0]))
    assert (rare.least, rare.most, rare.types, rare.tokens, rare.nll, rare.first) == (0, 0, 2, 2, None, 0.5)
    assert rare.reliability.count == 3
    assert rare.reliability.ece == pytest.approx((0.4 + 0.5 + 0.81) / 3)
    assert (known.least, known.most, known.types, known.tokens, known.first) == (1, 9, 1, 1, 0.0)
    assert known.nll == pytest.approx(-math.log(0.4))
    assert known.reliability is None


def test_never_predicted_counts_all_steps(statistics):
    assert statistics.never_predicted() == (NeverPredicted(text="t2", tokens=1), NeverPredicted(text="t4", tokens=1))


def test_places_above_the_maximum_are_counted_at_the_maximum():
    statistics = TokenStatistics(FiveTokens())
    late = torch.tensor([PLACES - 2, PLACES - 1, PLACES, 5 * PLACES, 0])
    statistics.add(replace(token_beliefs(list(range(5))), places=late))
    assert [(view.place, view.tokens) for view in statistics.places()] == [(1, 1), (PLACES - 1, 1), (PLACES, 3)]


def test_unnormalised_scores_have_no_entropy_and_no_nll():
    class Unnormalised(Logits):
        normalised = False

    statistics = TokenStatistics(FiveTokens())
    scores = Unnormalised(torch.tensor(TABLE[:3]).log())
    statistics.add(replace(token_beliefs([0, 1, 2]), belief=scores))
    assert not statistics.sums.normalised
    assert {view.entropy for view in statistics.places()} == {view.nll for view in statistics.places()} == {None}
    assert {view.nll for view in statistics.bands(None)} == {None}
