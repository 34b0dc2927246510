"""Numbers that are a function of their counters look like random ones, along each of these and together."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.decoding.sampling import gumbels, uniforms

words = st.integers(-(2**63), 2**63 - 1)
COUNT = 60_000
RANGE = torch.arange(COUNT)
KEYS = (RANGE * 0x2545F4914F6CDD1D).abs()
ALONG = {
    "keys": lambda seed: uniforms(seed, KEYS, 0, 0),
    "small keys": lambda seed: uniforms(seed, RANGE, 0, 0),
    "places": lambda seed: uniforms(seed, 17, RANGE, 3),
    "steps": lambda seed: uniforms(seed, 17, 3, RANGE),
    "tokens": lambda seed: uniforms(seed, 17, 3, 2, RANGE),
    "places and steps": lambda seed: uniforms(seed, 17, (RANGE % 30), RANGE // 30),
    "seeds": lambda seed: torch.stack(
        [uniforms(seed * 1000 + each, 17, 0, RANGE[:300]) for each in range(200)]
    ).ravel(),
}


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("along", ALONG.values(), ids=ALONG)
def test_they_are_uniform_along_every_counter(along, seed, likely):
    found = along(seed)
    assert found.dtype == torch.float64
    assert ((found > 0) & (found < 1)).all()
    assert likely((found * 97).long().bincount(minlength=97), torch.full((97,), 1 / 97))
    assert likely((found * 2**20 % 64).long().bincount(minlength=64), torch.full((64,), 1 / 64))  # low bits, too


@pytest.mark.parametrize("along", ALONG.values(), ids=ALONG)
def test_neighbours_and_streams_of_other_seeds_are_independent(along, likely):
    one, other = along(0), along(1)
    for left, right in ((one[:-1:2], one[1::2]), (one, other), (one[:-1], other[1:])):
        cells = (left * 11).long() * 11 + (right * 11).long()
        assert likely(cells.bincount(minlength=121), torch.full((121,), 1 / 121))


def test_no_counter_can_stand_for_another():
    grid = [uniforms(seed, *each).item() for seed in range(3) for each in itertools.product(range(7), repeat=3)]
    assert len(set(grid)) == len(grid) == 3 * 7**3


@given(words, words, words, st.integers(0, 2**64))
def test_a_number_depends_on_nothing_but_its_own_counters(key, place, step, seed):
    alone = uniforms(seed, key, place, step)
    keys = torch.tensor([5, key, -3])[:, None]
    many = uniforms(seed, keys, torch.tensor([place, 9]), step)
    assert many.shape == (3, 2)
    assert many[1, 0] == alone
    assert 0 < alone < 1


def test_splitmix64_by_its_published_numbers():
    # The generator of Steele, Lea and Flood seeded with 0, as in Java's SplittableRandom: its first output.
    wanted = 0xE220A8397B1DCDAF
    assert uniforms(0).item() == ((wanted >> 12) + 0.5) / 2**52


def test_gumbels_are_gumbel_distributed(likely):
    found = gumbels(3, RANGE)
    shares = torch.exp(-torch.exp(-found))  # their distribution function, uniform if they are what they say
    assert likely((shares * 53).long().bincount(minlength=53), torch.full((53,), 1 / 53))
    assert found.isfinite().all()
