"""Sampling: targets are drawn with their probabilities."""

import math
from collections import Counter

import pytest
import torch
from tests.decoding.searching import BOS, EOS, KEYS, Prefer, run, steps_of

from translume.config import DecodingSettings
from translume.decoding import ForbidTokens, LengthPenalty, MinimumLength, Sampling, Truncation, reshaped, strategy_from


def tempered(step, limit, change, sentence=0):
    """The probability of every target when `change` is applied to each next-token distribution [V]."""
    live, ended = {(): 1.0}, {}
    for length in range(limit):
        grown = {}
        for tokens, mass in live.items():
            place = sum(id * step.size ** (length - 1 - i) for i, id in enumerate(tokens))
            chances = change(step.logits[length][sentence, place].double().softmax(-1), tokens)
            for id, chance in enumerate((chances / chances.sum()).tolist()):
                (ended if id == EOS or length == limit - 1 else grown)[(*tokens, id)] = mass * chance
        live = grown
    return {tokens: mass for tokens, mass in ended.items() if mass}


def cut(probabilities, truncation, temperature=1.0):
    chances = probabilities.log().div(temperature).log_softmax(-1)
    return chances.exp() * truncation.kept(chances.float()[None])[0]


def zeroed(probabilities, ids):
    return probabilities.index_fill(0, torch.tensor(ids, dtype=torch.long), 0.0)


@pytest.mark.parametrize(
    ("options", "temperature"),
    [
        ({}, 1.0),
        ({}, 0.6),
        ({"top_k": 2}, 0.8),
        ({"top_k": 4, "min_p": 0.3}, 1.0),
        ({"top_p": 0.7}, 1.0),
        ({"epsilon": 0.15}, 1.3),
        ({"eta": 0.3}, 1.0),
        ({"top_k": 4, "top_p": 0.9, "min_p": 0.1, "epsilon": 0.05, "eta": 0.05}, 1.0),
    ],
)
def test_every_target_is_drawn_with_its_probability(toy, follows_distribution, options, temperature):
    step, truncation = toy(5, longest=3), Truncation(**options)
    strategy = Sampling(keys=KEYS, width=6000, nbest=6000, seed=7, temperature=temperature, truncation=truncation)
    rules = [ForbidTokens((BOS,)), MinimumLength(1)]
    for sentence, found in enumerate(run(step, strategy, [3, 3, 3], rules)):
        wanted = tempered(
            step,
            3,
            lambda p, tokens: cut(zeroed(p, [BOS] if tokens else [BOS, EOS]), truncation, temperature),
            sentence,
        )
        counts = Counter(h.tokens for h in found)
        assert sum(counts.values()) == 6000
        assert counts.keys() <= wanted.keys()
        assert follows_distribution([counts[tokens] for tokens in wanted], list(wanted.values()))


def test_draws_of_different_seeds_steps_and_chains_are_independent(toy, follows_distribution):
    step = toy(9, longest=2)
    wanted = tempered(step, 2, lambda p, tokens: p)
    drawn = Counter()
    for seed in range(300):
        strategy = Sampling(keys=KEYS[:1], width=2, nbest=2, seed=seed)
        (found,) = run(step, strategy, [2], state=step.start([0]))
        drawn.update([tuple(h.tokens for h in found)])
    pairs = {}  # targets are returned in order of score
    for one, p in wanted.items():
        for other, q in wanted.items():
            key = tuple(sorted((one, other), key=lambda ids: -step.log_prob(0, ids) / len(ids)))
            pairs[key] = pairs.get(key, 0.0) + p * q
    assert follows_distribution([drawn[pair] for pair in pairs], list(pairs.values()))


def test_a_bias_changes_draws_and_scores_but_not_the_log_probability(toy, follows_distribution):
    step = toy(1, longest=1)

    strategy = Sampling(keys=KEYS, width=5000, nbest=5000, length_penalty=LengthPenalty(exponent=0.0))
    for sentence, found in enumerate(run(step, strategy, [1, 1, 1], [Prefer(3, 1.5)])):
        chances = (step.logits[0][sentence, 0].double() + torch.tensor([0.0, 0, 0, 1.5, 0])).softmax(-1)
        counts = Counter(h.tokens[0] for h in found)
        assert follows_distribution([counts[id] for id in range(5)], chances)
        for h in {h.tokens: h for h in found}.values():
            assert h.log_prob == pytest.approx(step.log_prob(sentence, h.tokens), abs=1e-5)
            assert h.score == pytest.approx(h.log_prob + 1.5 * (h.tokens[0] == 3), abs=1e-5)


def test_temperatures_of_the_distribution_and_of_the_draw_multiply(toy, follows_distribution):
    step = toy(4, longest=2)
    strategy = Sampling(keys=KEYS, width=5000, nbest=5000, temperature=0.5)
    found = run(reshaped(step, temperature=3.0), strategy, [2] * 3, (), step.start())
    wanted = tempered(step, 2, lambda p, tokens: cut(p, Truncation(), 1.5))
    counts = Counter(h.tokens for h in found[0])
    assert follows_distribution([counts[tokens] for tokens in wanted], list(wanted.values()))
    assert found[0][0].log_prob == pytest.approx(step.log_prob(0, found[0][0].tokens), abs=1e-5)


def test_sampling_at_low_temperature_equals_greedy_search(toy):
    for seed in range(9):
        step = toy(seed)
        cold = run(step, Sampling(keys=KEYS, temperature=1e-6), [4, 3, 2])
        one = run(step, Sampling(keys=KEYS, truncation=Truncation(top_k=1)), [4, 3, 2])
        greedy = run(step, strategy_from(DecodingSettings(strategy="greedy")), [4, 3, 2])
        assert [h.tokens for (h,) in cold] == [h.tokens for (h,) in one] == [h.tokens for (h,) in greedy]


def test_a_sample_does_not_depend_on_the_number_of_samples(toy):
    step = toy(2)
    step.logits = [logits.index_fill(-1, torch.tensor([EOS]), -math.inf) for logits in step.logits]
    few = {h.tokens for h in run(step, Sampling(keys=KEYS, width=3, nbest=3, seed=4), [4, 4, 4])[1]}
    many = {h.tokens for h in run(step, Sampling(keys=KEYS, width=50, nbest=50, seed=4), [4, 4, 4])[1]}
    assert few <= many


def test_different_seeds_and_keys_give_different_draws(toy):
    step = toy(2, sharpness=0.1)

    def found(seed, keys):
        strategy = Sampling(keys=torch.tensor(keys), width=30, nbest=30, seed=seed)
        return [h.tokens for h in run(step, strategy, [4, 4], state=step.start([0, 0]))[0]]

    assert found(1, [7, 8]) == found(1, [7, 9])
    assert found(1, [7, 8]) != found(2, [7, 8])
    assert found(1, [7, 8]) != found(1, [8, 7])


def test_repeated_samples_are_all_counted(toy):
    step = toy(2, longest=1)
    (found, *_) = run(step, Sampling(keys=KEYS, width=40, nbest=40), [1, 1, 1])
    assert len(found) == 40
    assert len({h.tokens for h in found}) <= 5


def test_a_search_ends_when_its_last_chain_ends(toy):
    step = toy(6)
    strategy = Sampling(keys=KEYS, width=3)
    beams = [*steps_of(step, strategy, [4, 4, 4])]
    ended = Counter(ending.sentence for beam in beams for ending in beam.ended)
    assert ended == {0: 3, 1: 3, 2: 3}
    assert step.rows[0] == 3
    assert step.rows[1:] == [3 * len(beam.sentences) for beam in beams[1:]]
