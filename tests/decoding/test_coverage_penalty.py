"""The coverage penalty: its scores, its effect on ranking, and exact stopping with it."""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding.searching import BOS, EOS, NeverDone, limits3, penalties, run, seeds, steps_of

from translume.belief import Logits
from translume.config import DecodingSettings
from translume.decoding import (
    BeamSearch,
    Coverage,
    DiverseBeam,
    ForbidTokens,
    Greedy,
    LengthPenalty,
    search,
    strategy_from,
)

weights = st.sampled_from([0.1, 0.7, 3.0])
LENGTHS = (7, 5, 3)


@dataclass(frozen=True)
class AttentionToyState:
    state: object
    attention: torch.Tensor

    def select(self, rows):
        return AttentionToyState(self.state.select(rows), self.attention[rows])


class AttentionToy:
    """A toy whose states give attention over sources of 7, 5 and 3 tokens, drawn once per sentence and prefix."""

    def __init__(self, toy, seed, **options):
        self.toy = toy(seed, **options)
        generator = torch.Generator().manual_seed(seed + 1)
        drawn = [torch.randn(3, self.toy.size**t, 7, generator=generator) * 3 for t in range(self.toy.longest)]
        self.padding = torch.arange(7) >= torch.tensor(LENGTHS)[:, None]
        self.looks = [scores.masked_fill(self.padding[:, None], -math.inf).softmax(-1) for scores in drawn]

    def start(self, sentences=(0, 1, 2)):
        sentences = list(sentences)
        return AttentionToyState(self.toy.start(sentences), self.padding[sentences].float())

    def __call__(self, prefix, state):
        belief, after = self.toy(prefix, state.state)
        place = after.read - 1000 * (prefix.size(1) - 1)
        return belief, AttentionToyState(after, self.looks[prefix.size(1) - 1][after.sentences, place])

    def covered(self, sentence, tokens):
        total = 0.0
        for source in range(LENGTHS[sentence]):
            read = 0.0
            for t in range(len(tokens)):
                place = sum(id * self.toy.size ** (t - 1 - i) for i, id in enumerate(tokens[:t]))
                read += self.looks[t][sentence, place, source].item()
            total += math.log(min(read, 1.0))
        return total

    def complete(self, sentence, limit, penalty, weight):
        """All possible targets, best first, as (score, tokens)."""
        found = [
            (
                self.toy.log_prob(sentence, ids) / penalty.divisor(float(length))
                + weight * self.covered(sentence, ids),
                ids,
            )
            for length in range(1, limit + 1)
            for ids in itertools.product(range(self.toy.size), repeat=length)
            if EOS not in ids[:-1] and (ids[-1] == EOS or length == limit)
        ]
        return sorted(found, reverse=True)


@given(seeds, penalties, limits3, weights, st.integers(1, 4))
def test_exhaustive_beam_finds_the_best_targets_with_coverage(toy, seed, penalty, limits, weight, nbest):
    step = AttentionToy(toy, seed, size=4)
    strategy = BeamSearch(width=4**4, nbest=nbest, length_penalty=penalty, coverage=Coverage(weight=weight))
    for sentence, found in enumerate(run(step, strategy, limits)):
        best = step.complete(sentence, limits[sentence], penalty, weight)[:nbest]
        assert [h.score for h in found] == pytest.approx([score for score, _ in best], abs=1e-4)
        assert [h.tokens for h in found] == [tokens for _, tokens in best]


@given(seeds, penalties, limits3, weights, st.integers(2, 4), st.integers(1, 2))
def test_optimal_stop_equals_a_search_that_never_stops_early(toy, seed, penalty, limits, weight, width, nbest):
    options = {"width": width, "nbest": nbest, "length_penalty": penalty, "coverage": Coverage(weight=weight)}
    assert run(AttentionToy(toy, seed), BeamSearch(**options, stop="optimal"), limits) == run(
        AttentionToy(toy, seed), NeverDone(**options), limits
    )


@given(seeds, limits3, weights, st.integers(1, 4), st.booleans())
def test_scores_are_the_sum_of_the_terms_of_each_hypothesis(toy, seed, limits, weight, width, diverse):
    step, coverage = AttentionToy(toy, seed), Coverage(weight=weight)
    group = BeamSearch(width=width, nbest=width, coverage=coverage)
    strategy = DiverseBeam(group=group, groups=2, nbest=2 * width) if diverse else group
    for sentence, found in enumerate(run(step, strategy, limits)):
        for h in found:
            terms = h.terms
            assert h.score == pytest.approx(terms.total / terms.divisor + terms.coverage, abs=1e-5)
            assert terms.divisor == len(h.tokens)
            assert terms.coverage == pytest.approx(weight * step.covered(sentence, h.tokens), abs=1e-4)
            assert terms.coverage <= 0
            assert diverse or terms.total == pytest.approx(h.log_prob, abs=1e-5)


@given(seeds, limits3, weights)
def test_beams_report_the_coverage_of_live_hypotheses(toy, seed, limits, weight):
    step = AttentionToy(toy, seed)
    strategy = BeamSearch(width=3, coverage=Coverage(weight=weight))
    for beam in steps_of(step, strategy, limits):
        for place, sentence in enumerate(beam.sentences.tolist()):
            for k in range(3):
                if beam.total[place, k] == -math.inf:
                    continue
                tokens = beam.tokens[place, k].tolist()
                covered = weight * step.covered(sentence, tokens)
                assert beam.coverage[place, k].item() == pytest.approx(covered, abs=1e-4)
                score = beam.total[place, k].item() / len(tokens) + covered
                assert beam.score[place, k].item() == pytest.approx(score, abs=1e-4)


@given(seeds, st.lists(st.integers(0, 2), min_size=1, max_size=7), limits3, weights)
def test_results_do_not_depend_on_other_sentences_or_padding(toy, seed, sentences, limits, weight):
    step, strategy = AttentionToy(toy, seed), BeamSearch(width=3, nbest=3, coverage=Coverage(weight=weight))
    rules = [ForbidTokens((BOS,))]
    together = run(step, strategy, [limits[s] for s in sentences], rules, step.start(sentences))
    for sentence, found in zip(sentences, together, strict=True):
        (alone,) = run(step, strategy, [limits[sentence]], rules, step.start([sentence]))
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in alone], abs=1e-5)


@given(seeds, limits3, weights)
def test_greedy_equals_a_beam_of_one_with_coverage(toy, seed, limits, weight):
    coverage = Coverage(weight=weight)
    greedy = run(AttentionToy(toy, seed), Greedy(coverage=coverage), limits)
    assert greedy == run(AttentionToy(toy, seed), BeamSearch(width=1, coverage=coverage), limits)


def test_the_penalty_worked_by_hand():
    read = torch.tensor([[0.25, 1.75, 1.0, 1.0], [0.5, 0.5, 1.0, 1.0]])  # the last column is padding
    expected = [0.2 * math.log(0.25), 0.2 * 2 * math.log(0.5)]
    assert Coverage(weight=0.2).score(read).tolist() == pytest.approx(expected, abs=1e-6)


@dataclass(frozen=True)
class Fixed:
    attention: torch.Tensor

    def select(self, rows):
        return Fixed(self.attention[rows])


def short_or_whole(prefix, state):
    """ "1" after 0.6, or "2 1" after 0.4. "1" at once reads only the first of two tokens; "2 1" reads both."""
    first = prefix.size(1) == 1
    row = [0.0, 0.6, 0.4] if first else [0.0, 1.0, 0.0]
    logits = torch.tensor(row).log().expand(prefix.size(0), -1).clone()
    looked = torch.tensor([0.75, 0.25] if first else [0.0, 1.0])
    return Logits(logits), Fixed(looked.expand(prefix.size(0), -1))


def test_coverage_changes_the_ranking_worked_by_hand():
    plain = BeamSearch(width=2, nbest=2, length_penalty=LengthPenalty(exponent=0.0))

    def found(strategy):
        start = Fixed(torch.zeros(1, 2))
        (hypotheses,) = search(short_or_whole, start, bos=0, eos=1, strategy=strategy, limits=torch.tensor([2]))
        return [(h.tokens, h.score) for h in hypotheses]

    without = found(plain)
    assert [tokens for tokens, _ in without] == [(1,), (2, 1)]
    assert [score for _, score in without] == pytest.approx([math.log(0.6), math.log(0.4)])
    # Coverage: 0.75 and 0.25 for "1", 0.75 and 1.25 for "2 1".
    covered = found(replace(plain, coverage=Coverage(weight=0.5)))
    assert [tokens for tokens, _ in covered] == [(2, 1), (1,)]
    short = math.log(0.6) + 0.5 * (math.log(0.75) + math.log(0.25))
    whole = math.log(0.4) + 0.5 * math.log(0.75)
    assert [score for _, score in covered] == pytest.approx([whole, short], abs=1e-6)


def test_an_unread_token_gives_a_large_but_finite_penalty():
    def without_attention_to_second(prefix, state):
        belief, _ = short_or_whole(prefix, state)
        return belief, Fixed(torch.tensor([[1.0, 0.0]]).expand(prefix.size(0), -1))

    strategy = BeamSearch(width=2, nbest=2, coverage=Coverage(weight=1.0))
    (found,) = search(
        without_attention_to_second, Fixed(torch.zeros(1, 2)), bos=0, eos=1, strategy=strategy, limits=torch.tensor([2])
    )
    assert [h.tokens for h in found] == [(2, 1), (1,)]
    assert all(-100 < h.terms.coverage < -80 for h in found)


def test_a_step_without_attention_raises_value_error(toy):
    step = toy(1)
    with pytest.raises(ValueError, match=r"^the coverage penalty needs attention, which the states of this step "):
        run(step, BeamSearch(coverage=Coverage(weight=0.1)), [2, 2, 2], (), step.start())


@pytest.mark.parametrize("name", ["greedy", "beam", "diverse"])
def test_strategies_have_coverage_only_with_a_penalty_setting(name):
    assert strategy_from(DecodingSettings(strategy=name)).coverage is None
    assert strategy_from(DecodingSettings(strategy=name, coverage_penalty=0.3)).coverage == Coverage(weight=0.3)
