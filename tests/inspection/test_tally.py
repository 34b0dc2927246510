"""What is counted of beliefs, with values worked by hand."""

import math
from types import SimpleNamespace

import pytest
import torch

from translume.belief import Logits
from translume.inspection.corpus import PLACES, NeverPredicted, TokenStatistics
from translume.translator.scoring import TokenBeliefs


class Five:
    """Tokens by the names of their ids; 0 is the end mark."""

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


def judged(rows):
    return TokenBeliefs(
        belief=Logits(torch.tensor([TABLE[row] for row in rows]).log()),
        labels=torch.tensor([LABELS[row] for row in rows]),
        pairs=torch.tensor([0, 0, 0, 1, 1])[rows],
        places=torch.tensor([PLACE[row] for row in rows]),
    )


@pytest.fixture(params=[[[0, 1, 2, 3, 4]], [[3, 4], [0], [1, 2]]], ids=["at once", "in parts"])
def tally(request):
    found = TokenStatistics(Five())
    for rows in request.param:
        own = found.add(judged(rows))
        wanted = [TABLE[row][LABELS[row]] for row in rows]
        assert own.tolist() == pytest.approx([math.log(p) if p else -math.inf for p in wanted])
    return found


def test_tokens_and_ranks(tally):
    assert (tally.tokens, tally.impossible, tally.types()) == (5, 1, 4)
    assert tally.mean(tally.nll, 5) is None
    assert [each.tokens for each in tally.ranks()] == [2, 2, 1, 0, 0, 0]


def test_places(tally):
    first, second, third = tally.places()
    assert (first.place, first.tokens, first.nll) == (1, 2, None)
    own = -0.6 * math.log(0.6) - 0.2 * math.log(0.2) - 0.2 * math.log(0.1)
    assert first.entropy == pytest.approx((own + math.log(4)) / 2)
    assert (second.place, second.tokens) == (2, 2)
    assert second.nll == pytest.approx(-(math.log(0.4) + math.log(0.19)) / 2)
    assert (third.place, third.tokens) == (3, 1)
    assert third.nll == pytest.approx(-math.log(0.7))


def test_calibration_of_all_steps_and_of_the_end_mark(tally):
    found = tally.bins.reliability()
    assert (found.count, found.accuracy) == (5, 0.4)
    assert found.confidence == pytest.approx((0.6 + 0.5 + 0.7 + 0.25 + 0.81) / 5)
    assert found.ece == pytest.approx((0.4 + 0.5 + 0.3 + 0.25 + 0.81) / 5)
    ends = tally.ends.reliability()
    assert ends.ece == pytest.approx((0.1 + 0.05 + 0.3 + 0.25 + 0.81) / 5)
    assert ends.accuracy == 0.4


def test_bands_go_by_the_reference_for_nll_and_by_the_likeliest_for_calibration(tally):
    rare, known = tally.bands(torch.tensor([9, 0, 5, 12, 0]))
    assert (rare.least, rare.most, rare.types, rare.tokens, rare.nll, rare.first) == (0, 0, 2, 2, None, 0.5)
    assert rare.reliability.count == 3
    assert rare.reliability.ece == pytest.approx((0.4 + 0.5 + 0.81) / 3)
    assert (known.least, known.most, known.types, known.tokens, known.first) == (1, 9, 1, 1, 0.0)
    assert known.nll == pytest.approx(-math.log(0.4))
    assert known.reliability is None


def test_never_predicted_counts_all_steps(tally):
    assert tally.never_predicted() == (NeverPredicted(text="t2", tokens=1), NeverPredicted(text="t4", tokens=1))


def test_places_beyond_the_last_are_counted_with_it():
    tally = TokenStatistics(Five())
    rows = list(range(5))
    late = TokenBeliefs(
        belief=judged(rows).belief,
        labels=judged(rows).labels,
        pairs=judged(rows).pairs,
        places=torch.tensor([PLACES - 2, PLACES - 1, PLACES, 5 * PLACES, 0]),
    )
    tally.add(late)
    assert [(view.place, view.tokens) for view in tally.places()] == [(1, 1), (PLACES - 1, 1), (PLACES, 3)]


def test_beliefs_that_are_no_distribution_have_no_entropy_and_no_nll():
    class Affirmative(Logits):
        normalised = False

    tally = TokenStatistics(Five())
    rows = [0, 1, 2]
    tally.add(
        TokenBeliefs(
            belief=Affirmative(torch.tensor([TABLE[row] for row in rows]).log()),
            labels=judged(rows).labels,
            pairs=judged(rows).pairs,
            places=judged(rows).places,
        )
    )
    assert not tally.normalised
    assert {view.entropy for view in tally.places()} == {view.nll for view in tally.places()} == {None}
    assert {view.nll for view in tally.bands(None)} == {None}
