"""Counter-based random numbers: uniform along each counter and independent across counters and seeds."""

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
def test_numbers_are_uniform_along_every_counter(along, seed, follows_distribution):
    found = along(seed)
    assert found.dtype == torch.float64
    assert ((found > 0) & (found < 1)).all()
    assert follows_distribution((found * 97).long().bincount(minlength=97), torch.full((97,), 1 / 97))
    assert follows_distribution(
        (found * 2**20 % 64).long().bincount(minlength=64), torch.full((64,), 1 / 64)
    )  # low bits, too


@pytest.mark.parametrize("along", ALONG.values(), ids=ALONG)
def test_successive_numbers_and_streams_of_different_seeds_are_independent(along, follows_distribution):
    one, other = along(0), along(1)
    for left, right in ((one[:-1:2], one[1::2]), (one, other), (one[:-1], other[1:])):
        cells = (left * 11).long() * 11 + (right * 11).long()
        assert follows_distribution(cells.bincount(minlength=121), torch.full((121,), 1 / 121))


def test_permuted_counters_give_different_numbers():
    grid = [uniforms(seed, *each).item() for seed in range(3) for each in itertools.product(range(7), repeat=3)]
    assert len(set(grid)) == len(grid) == 3 * 7**3


@given(words, words, words, st.integers(0, 2**64))
def test_a_number_depends_only_on_its_own_counters(key, place, step, seed):
    alone = uniforms(seed, key, place, step)
    keys = torch.tensor([5, key, -3])[:, None]
    many = uniforms(seed, keys, torch.tensor([place, 9]), step)
    assert many.shape == (3, 2)
    assert many[1, 0] == alone
    assert 0 < alone < 1


def test_splitmix64_matches_its_published_output():
    # The generator of Steele, Lea and Flood seeded with 0, as in Java's SplittableRandom: its first output.
    wanted = 0xE220A8397B1DCDAF
    assert uniforms(0).item() == ((wanted >> 12) + 0.5) / 2**52


def test_gumbels_follow_the_gumbel_distribution(follows_distribution):
    found = gumbels(3, RANGE)
    shares = torch.exp(-torch.exp(-found))  # their distribution function, which must be uniform
    assert follows_distribution((shares * 53).long().bincount(minlength=53), torch.full((53,), 1 / 53))
    assert found.isfinite().all()
