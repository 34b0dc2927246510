"""Which pairs a head looks at where it cannot look at all."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from translume.heads.token_statistics import spread_evenly


@given(st.integers(0, 500), st.integers(1, 50))
def test_pairs_are_spread_evenly_over_all_of_them(pairs, most):
    numbers = spread_evenly(pairs, most)
    assert len(numbers) == min(pairs, most)
    assert numbers == sorted(set(numbers))
    assert all(0 <= number < pairs for number in numbers)
    steps = {after - before for before, after in pairwise(numbers)}
    assert not steps or max(steps) - min(steps) <= 1


def test_where_all_can_be_looked_at_all_are():
    assert spread_evenly(7, 50) == list(range(7))
    assert spread_evenly(7, 3) == [0, 2, 4]
