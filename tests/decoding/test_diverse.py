"""Diverse beam search, compared with a reference implementation on lists."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding.searching import EOS, EmptyState, limits3, penalties, run, seeds

from translume.belief import Logits
from translume.config import DecodingSettings
from translume.decoding import BeamSearch, DiverseBeam, Greedy, LengthPenalty, search, strategy_from

stops = st.sampled_from(["optimal", "first"])
patiences = st.sampled_from([0.5, 1.0, 2.0])


def is_done(strategy, ended):
    if strategy.group.width == 1:
        return ended > 0
    return strategy.group.stop == "first" and ended >= strategy.group.patience * strategy.group.width


def reference_search(step, sentence, limit, strategy):
    """Diverse beam search on lists: the finished (score, tokens) of all groups, best first."""
    each, score = strategy.group.width, strategy.length_penalty.divisor
    live = [[(0.0, ())] for _ in range(strategy.groups)]
    ended = [[] for _ in live]
    for length in range(1, limit + 1):
        taken = Counter()
        for number, group in enumerate(live):
            grown = []
            for place, (total, tokens) in enumerate(group):
                before = step.log_prob(sentence, tokens)
                for id in range(step.size):
                    own = step.log_prob(sentence, (*tokens, id)) - before - strategy.diversity * taken[id]
                    grown.append((-(total + own), place, id, (*tokens, id)))
            best = sorted(grown)[: 2 * each]
            ended[number] += [(-cost / score(float(length)), ids) for cost, _, id, ids in best[:each] if id == EOS]
            live[number] = [(-cost, ids) for cost, _, id, ids in best if id != EOS][:each]
            taken.update(id for _, _, id, _ in best[:each])
        if length == limit:
            for number, group in enumerate(live):
                ended[number] += [(total / score(float(length)), ids) for total, ids in group]
        if all(is_done(strategy, len(done)) or not group for done, group in zip(ended, live, strict=True)):
            break
    found = {}
    for done in ended:
        for value, ids in sorted(done, reverse=True)[: min(each, strategy.nbest)]:
            found[ids] = max(value, found.get(ids, -math.inf))
    return sorted(((value, ids) for ids, value in found.items()), reverse=True)[: strategy.nbest]


@given(data=st.data())
def test_results_equal_the_reference_implementation(toy, data):
    each, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    penalty, stop, patience = data.draw(penalties), data.draw(stops), data.draw(patiences)
    nbest = data.draw(st.integers(1, each * groups))
    group = BeamSearch(width=each, nbest=min(nbest, each), length_penalty=penalty, stop=stop, patience=patience)
    strategy = DiverseBeam(
        group=group, groups=groups, nbest=nbest, diversity=data.draw(st.sampled_from([0.0, 0.3, 1.7, 20.0]))
    )
    step, limits = toy(data.draw(seeds)), data.draw(limits3)
    for sentence, found in enumerate(run(step, strategy, limits)):
        wanted = reference_search(step, sentence, limits[sentence], strategy)
        assert [h.tokens for h in found] == [tokens for _, tokens in wanted]
        assert [h.score for h in found] == pytest.approx([score for score, _ in wanted], rel=1e-6, abs=1e-5)
        for h in found:
            assert h.log_prob == pytest.approx(step.log_prob(sentence, h.tokens), abs=1e-5)


@given(seeds, limits3, penalties, stops, st.integers(2, 5), st.integers(1, 2), patiences)
def test_one_group_equals_beam_search_bit_for_bit(toy, seed, limits, penalty, stop, width, nbest, patience):
    one, other = toy(seed), toy(seed)
    beam = BeamSearch(width=width, nbest=nbest, length_penalty=penalty, stop=stop, patience=patience)
    assert run(one, DiverseBeam(group=beam, groups=1, nbest=nbest), limits) == run(other, beam, limits)
    assert one.rows == other.rows


@given(seeds, limits3, st.integers(1, 3), st.integers(1, 3))
def test_all_groups_share_one_step(toy, seed, limits, each, groups):
    step = toy(seed)
    run(step, DiverseBeam(group=BeamSearch(width=each), groups=groups), limits)
    assert len(step.rows) <= max(limits)
    assert step.rows[0] == 3
    assert all(rows % (each * groups) == 0 for rows in step.rows[1:])


def fixed_step(prefix, state):
    row = [0.0, 0.0, 0.5, 0.3, 0.2] if prefix.size(1) == 1 else [0.0, 1.0, 0.0, 0.0, 0.0]
    return Logits(torch.tensor(row).log().expand(prefix.size(0), -1).clone()), state


def diverse_results(diversity):
    strategy = DiverseBeam(
        group=BeamSearch(width=1, length_penalty=LengthPenalty(exponent=0.0)), groups=3, diversity=diversity, nbest=3
    )
    (found,) = search(fixed_step, EmptyState(), bos=0, eos=1, strategy=strategy, limits=torch.tensor([3]))
    return found


def test_the_diversity_penalty_worked_by_hand():
    # Token 2 costs the second group 0.5·e^-1 = 0.184, and token 3 costs the third 0.3·e^-1 = 0.110, so 3 and 4 win.
    # All then end, which costs the second group one penalty and the third two.
    found = diverse_results(1.0)
    assert [h.tokens for h in found] == [(2, 1), (3, 1), (4, 1)]
    assert [h.log_prob for h in found] == pytest.approx([math.log(0.5), math.log(0.3), math.log(0.2)], abs=1e-6)
    assert [h.score for h in found] == pytest.approx([math.log(0.5), math.log(0.3) - 1, math.log(0.2) - 2], abs=1e-6)


def test_a_target_found_by_several_groups_is_returned_once():
    assert [h.tokens for h in diverse_results(0.0)] == [(2, 1)]


def test_a_group_without_possible_tokens_does_not_affect_the_others():
    def narrow(prefix, state):
        row = [-math.inf, 0.0, 1.0] if prefix.size(1) == 1 else [-math.inf, 1.0, -math.inf]
        return Logits(torch.tensor(row).expand(prefix.size(0), -1).clone()), state

    strategy = DiverseBeam(group=BeamSearch(width=3, nbest=3), groups=2, nbest=6)
    (found,) = search(narrow, EmptyState(), bos=0, eos=1, strategy=strategy, limits=torch.tensor([4]))
    assert {h.tokens for h in found} == {(1,), (2, 1)}


def test_settings_split_the_beam_into_groups():
    strategy = strategy_from(DecodingSettings(strategy="diverse", beam=6, groups=3, nbest=4, diversity=0.2))
    assert isinstance(strategy, DiverseBeam)
    assert (strategy.width, strategy.groups, strategy.group.width, strategy.group.nbest) == (6, 3, 2, 2)
    assert (strategy.nbest, strategy.diversity) == (4, 0.2)
    alone = strategy_from(DecodingSettings(strategy="diverse", beam=6))
    assert (alone.groups, alone.width) == (6, 6)
    assert strategy_from(DecodingSettings(strategy="diverse", beam=1)) == Greedy()
