"""Shallow fusion: a language model changes the ranking and not the reported log-probability."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding import searching
from tests.decoding.searching import BOS, EOS, fixed, limits3, seeds

from translume.belief import Logits
from translume.decoding import BeamSearch, ForcedPrefix, Fusion, Greedy, LengthPenalty, Sampling, reshaped
from translume.errors import SettingsError

weights = st.sampled_from([0.1, 0.6, 2.0])


@dataclass(frozen=True)
class ReadCount:
    """The number of tokens that the language model has read of each row, selected together with the rows."""

    last: torch.Tensor

    def select(self, rows):
        return ReadCount(self.last[rows])


class Bigrams:
    """p(token | previous token), drawn once."""

    def __init__(self, seed=0, size=5, table=None):
        drawn = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) * 2
        self.table = drawn.log_softmax(-1) if table is None else torch.tensor(table).log()

    def start(self, count):
        return ReadCount(torch.full((count,), BOS))

    def step(self, prefix, state):
        if prefix.size(1) > 1:
            assert torch.equal(prefix[:, -2], state.last), "the language model has read another prefix"
        return Logits(self.table[prefix[:, -1]]), ReadCount(prefix[:, -1])

    def log_prob(self, tokens):
        return sum(self.table[one, other].item() for one, other in itertools.pairwise((BOS, *tokens)))


def run(toy, fusion, strategy, limits, rules=(), **shape):
    return searching.run(fusion.over(reshaped(toy, **shape)), strategy, limits, rules, fusion.start(toy.start(), 3))


@given(seeds, limits3, weights, st.sampled_from([0.0, 1.0]))
def test_the_best_targets_by_both_models_are_found_and_log_prob_is_the_translators(toy, seed, limits, weight, exponent):
    step, bigrams = toy(seed, size=4), Bigrams(seed + 1, size=4)
    strategy = BeamSearch(width=4**4, nbest=3, length_penalty=LengthPenalty(exponent=exponent))
    for sentence, found in enumerate(run(step, Fusion(bigrams, weight), strategy, limits)):
        every = sorted(
            (
                ((step.log_prob(sentence, ids) + weight * bigrams.log_prob(ids)) / len(ids) ** exponent, ids)
                for _, ids in step.complete(sentence, limits[sentence])
            ),
            reverse=True,
        )
        assert [h.tokens for h in found] == [ids for _, ids in every[:3]]
        assert [h.score for h in found] == pytest.approx([score for score, _ in every[:3]], abs=1e-4)
        for h in found:
            assert h.log_prob == pytest.approx(step.log_prob(sentence, h.tokens), abs=1e-4)
            lm = weight * bigrams.log_prob(h.tokens)
            assert h.terms.total == pytest.approx(h.log_prob + lm, abs=1e-4)


def test_fusion_changes_the_ranking_worked_by_hand(toy):
    step = fixed(toy(1), [0.0, 0.0, 0.5, 0.3, 0.2], [0.0, 1.0, 0.0, 0.0, 0.0], [0.2] * 5, [0.2] * 5)
    # p · p_lm of the first token: 0.5·0.1, 0.3·0.7 and 0.2·0.2. Each then ends, with a bigram probability of 0.5.
    table = [[0.0, 0.0, 0.1, 0.7, 0.2], *[[0.125, 0.5, 0.125, 0.125, 0.125]] * 4]
    strategy = BeamSearch(width=3, nbest=3, length_penalty=LengthPenalty(exponent=0.0))
    (found, *_) = run(step, Fusion(Bigrams(table=table), 1.0), strategy, [2, 2, 2])
    assert [h.tokens for h in found] == [(3, EOS), (2, EOS), (4, EOS)]
    assert [h.log_prob for h in found] == pytest.approx([math.log(0.3), math.log(0.5), math.log(0.2)])
    assert [h.score for h in found] == pytest.approx([math.log(p * 0.5) for p in (0.3 * 0.7, 0.5 * 0.1, 0.2 * 0.2)])
    # With half the weight, √p_lm counts: 0.5·√0.1 = 0.158, 0.3·√0.7 = 0.251, 0.2·√0.2 = 0.089. With a tenth of it, 2
    # stays.
    for weight, first in ((0.5, 3), (0.1, 2)):
        (found, *_) = run(step, Fusion(Bigrams(table=table), weight), Greedy(), [2, 2, 2])
        assert found[0].tokens == (first, EOS)


@given(seeds, limits3, weights, st.sampled_from([{"temperature": 0.5}, {"unsmooth": 0.2}]))
def test_reshaped_distributions_under_fusion_keep_the_log_probability(toy, seed, limits, weight, shape):
    step = toy(seed)
    for strategy in (BeamSearch(width=3, nbest=3), Sampling(keys=torch.tensor([1, 2, 3]), width=3, nbest=3)):
        for sentence, found in enumerate(run(step, Fusion(Bigrams(seed), weight), strategy, limits, **shape)):
            for h in found:
                assert h.log_prob == pytest.approx(step.log_prob(sentence, h.tokens), abs=1e-4)


def test_samples_are_proportional_to_the_product_of_both(toy, follows_distribution):
    step, bigrams = toy(5), Bigrams(6)
    strategy = Sampling(keys=torch.tensor([1, 2, 3]), width=5000, nbest=5000)
    found = run(step, Fusion(bigrams, 0.7), strategy, [1, 1, 1])
    for sentence, hypotheses in enumerate(found):
        counts = torch.tensor([h.tokens[0] for h in hypotheses]).bincount(minlength=5)
        joint = step.logits[0][sentence, 0].log_softmax(-1) + 0.7 * bigrams.table[BOS]
        assert follows_distribution(counts, joint.softmax(-1))


def test_a_token_impossible_for_the_language_model_can_still_be_forced(toy):
    table = [[0.0, 0.5, 0.5, 0.0, 0.0], *[[0.2] * 5] * 4]
    found = run(
        toy(3), Fusion(Bigrams(table=table), 1.0), BeamSearch(width=2), [4, 4, 4], [ForcedPrefix([[3], [2], []])]
    )
    assert found[0][0].tokens[0] == 3
    assert all(math.isfinite(h.score) for each in found for h in each)


def test_a_different_vocabulary_is_refused(toy):
    with pytest.raises(ValueError, match=r"^the language model has 7 tokens, expected the translator's 5$"):
        run(toy(1), Fusion(Bigrams(size=7), 1.0), Greedy(), [2, 2, 2])


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan])
def test_a_weight_of_zero_or_less_is_refused(weight):
    with pytest.raises(SettingsError, match=r"^the weight of a language model is .*, expected a number above 0$"):
        Fusion(Bigrams(), weight)
