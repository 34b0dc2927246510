"""`Candidates`: padding to a number of places, and selection of places."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.decoding import Candidates


def candidates(width: int, inner: tuple[int, ...] | None = None) -> Candidates:
    """Candidates of two sentences, `width` each, carrying [2, width, *inner], or nothing for None."""
    numbers = torch.arange(2 * width).view(2, width) + 5
    carried = None
    if inner is not None:
        carried = torch.arange(2 * width * math.prod(inner)).view(2, width, *inner) + 1
    return Candidates(
        token=numbers, origin=numbers % 3, log_prob=-numbers.double(), total=-numbers / 2, carried=carried
    )


def as_lists(found: Candidates) -> list[object]:
    carried = None if found.carried is None else found.carried.tolist()
    return [found.token.tolist(), found.origin.tolist(), found.log_prob.tolist(), found.total.tolist(), carried]


shapes = st.none() | st.lists(st.integers(1, 3), max_size=2).map(tuple)


@given(width=st.integers(1, 5), count=st.integers(0, 7), inner=shapes)
def test_filled_pads_with_impossible_candidates_and_keeps_the_given_ones(
    width: int, count: int, inner: tuple[int, ...] | None
) -> None:
    given_ = candidates(width, inner)
    filled = given_.filled(count)
    assert as_lists(filled.foremost(width)) == as_lists(given_)
    behind = max(0, count - width)
    assert filled.total[:, width:].tolist() == filled.log_prob[:, width:].tolist() == [[-torch.inf] * behind] * 2
    assert filled.token[:, width:].tolist() == filled.origin[:, width:].tolist() == [[0] * behind] * 2
    if inner is not None:
        assert filled.carried is not None
        assert filled.carried.shape == (2, width + behind, *inner)
        assert not filled.carried[:, width:].any()


@given(width=st.integers(1, 5), inner=shapes, data=st.data())
def test_taking_the_first_places_equals_foremost(
    width: int, inner: tuple[int, ...] | None, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, width))
    taken = candidates(width, inner).take(torch.arange(count).expand(2, -1))
    assert as_lists(taken) == as_lists(candidates(width, inner).foremost(count))
