"""Stable prefixes: every reported prefix begins the final result and is reported at the earliest possible step."""

from itertools import takewhile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding import searching
from tests.decoding.searching import BOS, EOS, EmptyState, Prefer, build_strategy, limits3, seeds

from translume.belief import Logits
from translume.config.decoding import STRATEGIES
from translume.decoding import BeamSearch, BestHypotheses, ForbidTokens, Greedy, LengthPenalty, StablePrefix, decode

every = pytest.mark.parametrize("name", sorted(STRATEGIES))
knobs = st.sampled_from(
    [
        {},
        {"length_penalty": 0.0},
        {"length_penalty": -1.0},
        {"stop": "first"},
        {"stop": "first", "patience": 0.5},
        {"groups": 2},
    ]
)


def run(step, strategy, limits, *, sentences=(0, 1, 2), rules=(), reranked=False):
    """Return (results, reported [(sentence, ids)], [(beam, number of reports so far)] after each step)."""
    told, steps = [], []

    beams = searching.steps_of(step, strategy, limits, rules)
    watch = StablePrefix(lambda number, ids: told.append((number, tuple(ids))), sentences, reranked=reranked)
    best = BestHypotheses(strategy, 3)
    for beam in beams:
        watch(beam)
        best.add(beam)
        steps.append((beam, len(told)))
    return [best.hypotheses(number) for number in range(3)], told, steps


def common_prefix(sequences):
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False))]


@every
@given(seeds, limits3, knobs, st.booleans())
def test_reported_prefixes_begin_the_first_hypothesis_and_the_last_is_complete(toy, name, seed, limits, options, lift):
    strategy, rules = build_strategy(name, **options), [ForbidTokens((BOS,)), *([Prefer(3, 0.5)] if lift else [])]
    found, told, _ = run(toy(seed, sharpness=2.0), strategy, limits, rules=rules)
    assert found == searching.run(toy(seed, sharpness=2.0), strategy, limits, rules)
    for number in range(3):
        first = found[number][0].tokens
        parts = [ids for sentence, ids in told if sentence == number]
        assert all(first[: len(ids)] == ids for ids in parts)
        assert [len(ids) for ids in parts] == sorted({len(ids) for ids in parts})
        assert parts[-1] == first


@every
@given(seeds, limits3)
def test_with_later_reranking_only_a_prefix_common_to_all_hypotheses_is_reported(toy, name, seed, limits):
    found, told, _ = run(
        toy(seed, sharpness=3.0), build_strategy(name), limits, rules=[ForbidTokens((BOS,))], reranked=True
    )
    for number, ids in told:
        assert all(each.tokens[: len(ids)] == ids for each in found[number])


@given(seeds, limits3, st.integers(2, 4), st.integers(1, 2))
def test_reports_are_the_longest_common_prefix_of_all_possible_winners(toy, seed, limits, width, nbest):
    """After every step, the report is exactly the common prefix of the live hypotheses and the best finished one."""
    strategy = BeamSearch(width=width, nbest=nbest, length_penalty=LengthPenalty(exponent=0.6))
    _, told, steps = run(toy(seed, sharpness=3.0), strategy, limits)
    ended = {0: [], 1: [], 2: []}
    for beam, count in steps:
        for ending in beam.ended:
            ended[ending.sentence].append(ending.hypothesis)
        for place, number in enumerate(beam.sentences.tolist()):
            live = beam.tokens[place][~beam.total[place].isneginf()].tolist()
            best = sorted(ended[number], key=lambda each: -each.score)[:1]
            left = [list(each.tokens) for each in best] + ([] if bool(beam.finished[place]) else live)
            parts = [ids for sentence, ids in told[:count] if sentence == number]
            assert list(parts[-1] if parts else ()) == common_prefix(left)


@given(seeds, limits3)
def test_greedy_search_reports_every_token_at_once(toy, seed, limits):
    found, told, _ = run(toy(seed), Greedy(), limits)
    for number in range(3):
        tokens = found[number][0].tokens
        assert [ids for sentence, ids in told if sentence == number] == [
            tokens[:length] for length in range(1, len(tokens) + 1)
        ]


@given(seeds, limits3, st.sets(st.integers(0, 2)))
def test_only_the_selected_sentences_are_reported(toy, seed, limits, sentences):
    _, told, _ = run(toy(seed), BeamSearch(width=3), limits, sentences=sentences)
    assert {number for number, _ in told} == sentences


def test_reports_worked_by_hand():
    """Tokens 2 and 3, then eos. Both live hypotheses begin with 2 after two steps."""

    class FixedDistributions:
        """Token 2 is likelier than 3 after bos; then 2 and 3 are almost equally likely; then the target ends."""

        def __call__(self, prefix, state):
            rows = torch.tensor([[0.0, 0.0, 0.9, 0.1], [0.0, 0.0, 0.49, 0.51], [0.0, 1.0, 0.0, 0.0]])
            return Logits(rows[prefix.size(1) - 1].log().expand(prefix.size(0), -1)), state

    told = []
    beams = decode(
        FixedDistributions(), EmptyState(), bos=BOS, eos=EOS, strategy=BeamSearch(width=2), limits=torch.tensor([9])
    )
    watch = StablePrefix(lambda number, ids: told.append(list(ids)), [0])
    for beam in beams:
        watch(beam)
    assert told == [[2], [2, 3, 1]]
