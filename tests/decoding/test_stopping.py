"""When beam search stops: patience, and optimal stopping with rules that raise scores."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.belief import Bias
from translume.config import DecodingSettings
from translume.decoding import BeamSearch, DiverseBeam, ForbidTokens, LengthPenalty, search, strategy_from
from translume.errors import SettingsError

BOS, EOS = 0, 1
few = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 10**6)
limits3 = st.lists(st.integers(1, 4), min_size=3, max_size=3)
penalties = st.builds(
    LengthPenalty, form=st.sampled_from(["power", "gnmt"]), exponent=st.sampled_from([0.0, 0.6, 1.0, -0.5])
)


def run(step, strategy, limits, rules=()):
    return search(step, step.start(), bos=BOS, eos=EOS, strategy=strategy, limits=torch.tensor(limits), rules=rules)


class PreferToken:
    """Adds `lift` to the score of one token, and reports that upper bound."""

    def __init__(self, token, lift):
        self.token, self.lift = token, lift

    def __call__(self, prefix, context):
        rows = torch.arange(prefix.size(0))
        return Bias(rows, torch.full_like(rows, self.token), torch.full(rows.shape, self.lift))


class NeverDone(BeamSearch):
    def done(self, standing):
        return torch.zeros_like(standing.limits, dtype=torch.bool)


@few
@given(seeds, penalties, limits3, st.integers(2, 4), st.integers(1, 2), st.sampled_from([0.4, 2.5]))
def test_optimal_stop_is_exact_with_rules_that_raise_scores(toy, seed, penalty, limits, width, nbest, lift):
    rules, options = (
        [PreferToken(3, lift), PreferToken(2, -1.0)],
        {"width": width, "nbest": nbest, "length_penalty": penalty},
    )
    assert run(toy(seed), BeamSearch(**options), limits, rules) == run(toy(seed), NeverDone(**options), limits, rules)


def test_search_continues_while_a_rule_can_still_raise_a_score_worked_by_hand(toy):
    step = toy(1, longest=3)
    for logits, row in zip(
        step.logits, [[0.0, 0.6, 0.4, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]], strict=True
    ):
        logits[:] = torch.tensor(row).log()
    strategy = BeamSearch(width=2, length_penalty=LengthPenalty(exponent=0.0))
    (found, *_) = run(step, strategy, [3, 3, 3])
    assert (found[0].tokens, found[0].score) == ((EOS,), pytest.approx(math.log(0.6)))
    (found, *_) = run(step, strategy, [3, 3, 3], [PreferToken(3, 1.5)])
    assert (found[0].tokens, found[0].score) == ((2, 3, EOS), pytest.approx(math.log(0.4 * 0.5) + 1.5))
    assert found[0].log_prob == pytest.approx(math.log(0.4 * 0.5))


@few
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


@few
@given(seeds, limits3, st.integers(2, 4))
def test_more_patience_never_scores_worse_and_enough_of_it_is_optimal(toy, seed, limits, width):
    def best(**options):
        return [found[0].score for found in run(toy(seed), BeamSearch(width=width, **options), limits)]

    scores = [best(stop="first", patience=patience) for patience in (0.5, 1.0, 2.0, 100.0)]
    for less, more in itertools.pairwise(scores):
        assert all(one <= other + 1e-6 for one, other in zip(less, more, strict=True))
    assert scores[-1] == pytest.approx(best())


@few
@given(seeds, limits3, st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.5, 1.0, 2.0]))
def test_hypotheses_are_distinct_and_finished_by_is_correct(toy, seed, limits, each, groups, patience):
    step = toy(seed)
    group = BeamSearch(width=each, nbest=each, stop="first", patience=patience)
    strategies = [group, DiverseBeam(group=group, groups=groups, nbest=each * groups, diversity=0.3)]
    for strategy in strategies:
        for limit, found in zip(limits, run(step, strategy, limits, [ForbidTokens((BOS,))]), strict=True):
            assert 1 <= len(found) <= strategy.nbest
            assert len({h.tokens for h in found}) == len(found)
            for h in found:
                assert (h.finished_by == "eos") == (h.tokens[-1] == EOS)
                assert h.finished_by == "eos" or len(h.tokens) == limit
                assert EOS not in h.tokens[:-1]


def test_patience_without_stop_first_is_refused_in_one_line():
    with pytest.raises(SettingsError) as error:
        strategy_from(DecodingSettings(patience=2.0))
    assert str(error.value) == ("decoding.patience: found 2.0 with stop = 'optimal', expected stop = 'first'")
    assert strategy_from(DecodingSettings(patience=2.0, stop="first")).patience == 2.0
