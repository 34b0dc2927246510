"""When beam search stops: patience, and optimal stopping with rules that raise scores."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding.searching import EOS, NeverDone, Prefer, fixed, limits3, penalties, run, seeds

from translume.decoding import BeamSearch, LengthPenalty


@given(seeds, penalties, limits3, st.integers(2, 4), st.integers(1, 2), st.sampled_from([0.0, 0.4, 2.5]))
def test_optimal_stop_is_exact_also_with_rules_that_raise_scores(toy, seed, penalty, limits, width, nbest, lift):
    rules = [Prefer(3, lift), Prefer(2, -1.0)] if lift else []
    options = {"width": width, "nbest": nbest, "length_penalty": penalty}
    stopping = BeamSearch(**options, stop="optimal")
    assert run(toy(seed), stopping, limits, rules) == run(toy(seed), NeverDone(**options), limits, rules)


def test_search_continues_while_a_rule_can_still_raise_a_score_worked_by_hand(toy):
    step = fixed(toy(1, longest=3), [0.0, 0.6, 0.4, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0])
    strategy = BeamSearch(width=2, length_penalty=LengthPenalty(exponent=0.0), stop="optimal")
    (found, *_) = run(step, strategy, [3, 3, 3])
    assert (found[0].tokens, found[0].score) == ((EOS,), pytest.approx(math.log(0.6)))
    (found, *_) = run(step, strategy, [3, 3, 3], [Prefer(3, 1.5)])
    assert (found[0].tokens, found[0].score) == ((2, 3, EOS), pytest.approx(math.log(0.4 * 0.5) + 1.5))
    assert found[0].log_prob == pytest.approx(math.log(0.4 * 0.5))


@given(seeds, limits3, st.integers(2, 4), st.sampled_from([0.5, 1.0, 1.5, 3.0]))
def test_patience_waits_for_its_number_of_finished_hypotheses(toy, seed, limits, width, patience):
    step, ends = toy(seed), []

    class Recorder(BeamSearch):
        def done(self, standing):
            done = super().done(standing)
            ends.append((standing.ended, done))
            return done

    run(step, Recorder(width=width, stop="first", patience=patience), limits)
    for ended, done in ends:
        assert torch.equal(done, ended >= patience * width)


@given(seeds, penalties, limits3, st.integers(2, 4))
def test_more_patience_never_scores_worse_and_enough_of_it_is_optimal(toy, seed, penalty, limits, width):
    def best(**options):
        strategy = BeamSearch(width=width, length_penalty=penalty, **options)
        return [found[0].score for found in run(toy(seed), strategy, limits)]

    scores = [best(stop="first", patience=patience) for patience in (0.5, 1.0, 2.0, 100.0)]
    for less, more in itertools.pairwise(scores):
        assert all(one <= other + 1e-6 for one, other in zip(less, more, strict=True))
    assert scores[-1] == pytest.approx(best(stop="optimal"))
