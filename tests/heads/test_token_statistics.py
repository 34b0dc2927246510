"""Choosing the pairs from which token statistics are estimated if there are too many to read all."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from translume.heads.token_statistics import spread_evenly


@given(st.integers(0, 500), st.integers(1, 50))
def test_sampled_pairs_are_spread_evenly(pairs, most):
    numbers = spread_evenly(pairs, most)
    assert len(numbers) == min(pairs, most)
    assert numbers == sorted(set(numbers))
    assert all(0 <= number < pairs for number in numbers)
    steps = {after - before for before, after in pairwise(numbers)}
    assert not steps or max(steps) - min(steps) <= 1


def test_all_pairs_are_used_if_the_limit_allows():
    assert spread_evenly(7, 50) == list(range(7))
    assert spread_evenly(7, 3) == [0, 2, 4]
