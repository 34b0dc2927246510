"""Stochastic beam search: targets drawn without replacement, with the probabilities of sequential draws."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding import searching
from tests.decoding.searching import BOS, EOS, limits3, run, seeds, steps_of

from translume.decoding import ForbidTokens, StochasticBeam

ROUNDS = 4000


def rounds(step, width, temperature=1.0, rules=(), count=ROUNDS, limit=2):
    """Searches of sentence 0 with `count` different keys, in one batch."""
    strategy = StochasticBeam(
        keys=torch.arange(count) * 7919, width=width, nbest=width, seed=5, temperature=temperature
    )
    return run(step, strategy, [limit] * count, rules, step.start([0] * count))


def targets(step, limit=2, temperature=1.0, forbidden=()):
    """All targets of sentence 0 with their probabilities, for draws from p ** (1/T) without the forbidden tokens."""
    live, ended = {(): 1.0}, {}
    for length in range(limit):
        grown = {}
        for tokens, mass in live.items():
            place = sum(id * step.size ** (length - 1 - i) for i, id in enumerate(tokens))
            logits = step.logits[length][0, place].double() / temperature
            logits[list(forbidden)] = -math.inf
            for id, chance in enumerate(logits.softmax(-1).tolist()):
                (ended if id == EOS or length == limit - 1 else grown)[(*tokens, id)] = mass * chance
        live = grown
    return {tokens: mass for tokens, mass in ended.items() if mass}


@given(seeds, st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_a_beam_as_wide_as_the_number_of_targets_returns_each_once(toy, seed, limits):
    step = toy(seed, size=4, longest=3)
    strategy = StochasticBeam(keys=torch.tensor([3, 4, 5]), width=4**3, nbest=4**3, seed=seed)
    for sentence, found in enumerate(run(step, strategy, limits)):
        wanted = step.complete(sentence, limits[sentence])
        assert sorted(h.tokens for h in found) == sorted(tokens for _, tokens in wanted)
        assert len(found) == len(wanted)


@given(seeds, st.integers(1, 6), limits3)
def test_targets_are_distinct_and_log_probabilities_are_not_perturbed(toy, seed, width, limits):
    step = toy(seed, sharpness=2.0)
    strategy = StochasticBeam(keys=torch.tensor([3, 4, 5]), width=width, nbest=width, seed=seed)
    for sentence, found in enumerate(run(step, strategy, limits)):
        assert len(found) == min(width, len(step.complete(sentence, limits[sentence])))
        assert len({h.tokens for h in found}) == len(found)
        for h in found:
            assert h.log_prob == pytest.approx(step.log_prob(sentence, h.tokens), abs=1e-4)


@pytest.mark.parametrize(("temperature", "forbidden"), [(1.0, ()), (0.6, ()), (2.0, (BOS,))])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_ordered_samples_follow_sequential_draws_without_replacement(
    toy, follows_distribution, width, temperature, forbidden
):
    step = toy(8, size=3, longest=2)
    chances = targets(step, temperature=temperature, forbidden=forbidden)
    found = rounds(step, width, temperature, [ForbidTokens(forbidden)])
    drawn = Counter(tuple(h.tokens for h in each) for each in found)
    wanted = {}
    for order in itertools.permutations(chances, width):
        left, chance = 1.0, 1.0
        for tokens in order:
            chance *= chances[tokens] / left
            left -= chances[tokens]
        wanted[order] = chance
    assert sum(wanted.values()) == pytest.approx(1.0)
    assert follows_distribution([drawn[order] for order in wanted], list(wanted.values()))


def test_inclusion_probabilities_match_enumeration_for_longer_targets(toy, follows_distribution):
    step = toy(3, size=4, longest=3)
    chances = targets(step, limit=3)
    found = rounds(step, 2, count=8000, limit=3)
    first = Counter(each[0].tokens for each in found)
    assert follows_distribution([first[tokens] for tokens in chances], list(chances.values()))
    second = Counter(each[1].tokens for each in found)
    wanted = {
        tokens: sum(q * p / (1 - q) for other, q in chances.items() if other != tokens) for tokens, p in chances.items()
    }
    assert follows_distribution([second[tokens] for tokens in wanted], list(wanted.values()))


def test_scores_are_gumbel_perturbed_log_probabilities(toy, follows_distribution):
    step = toy(8, size=3, longest=2)
    found = rounds(step, 9)
    for tokens, chance in targets(step).items():
        scores = torch.tensor([next(h.score for h in each if h.tokens == tokens) for each in found])
        shares = torch.exp(
            -torch.exp(-(scores.double() - math.log(chance)))
        )  # their distribution function, which must be uniform
        assert follows_distribution(
            (shares * 23).long().clamp(max=22).bincount(minlength=23), torch.full((23,), 1 / 23)
        )


def test_a_narrow_beam_returns_the_first_of_a_wider_one(toy):
    step = toy(4, sharpness=2.0)

    def found(width):
        strategy = StochasticBeam(keys=torch.tensor([3, 4, 5]), width=width, nbest=width)
        return [h.tokens for h in run(step, strategy, [1, 1, 1])[1]]

    assert found(5)[:2] == found(2)


def test_results_do_not_depend_on_when_the_search_stops(toy):
    class NeverDone(StochasticBeam):
        done = searching.NeverDone.done

    for seed in range(12):
        step, options = toy(seed), {"keys": torch.tensor([3, 4, 5]), "width": 4, "nbest": 2, "seed": seed}
        assert run(step, StochasticBeam(**options), [4, 4, 4]) == run(step, NeverDone(**options), [4, 4, 4])


def test_a_beam_orders_hypotheses_by_perturbed_total(toy):
    step = toy(4)
    strategy = StochasticBeam(keys=torch.tensor([3, 4, 5]), width=3)
    for beam in steps_of(step, strategy, [4, 4, 4]):
        assert (beam.total.diff(dim=1).nan_to_num(0.0) <= 0).all()
        assert beam.carried.shape == beam.total.shape
