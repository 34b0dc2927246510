"""Beam search and greedy search on a toy step whose targets can be enumerated."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding.searching import BOS, EOS, EmptyState, Prefer, fixed, limits3, penalties, run, seeds, steps_of

from translume.belief import Logits
from translume.decoding import (
    BeamSearch,
    ForbidTokens,
    ForcedPrefix,
    Greedy,
    LengthPenalty,
    MinimumLength,
    SearchError,
    search,
)


def length_normalised(penalty):
    if penalty.form == "power":
        return lambda log_prob, length: log_prob / length**penalty.exponent
    return lambda log_prob, length: log_prob / ((5 + length) / 6) ** penalty.exponent


@given(seeds, penalties, limits3, st.integers(1, 6))
def test_exhaustive_beam_finds_the_best_targets(toy, seed, penalty, limits, nbest):
    step = toy(seed)
    strategy = BeamSearch(width=5**4, nbest=nbest, length_penalty=penalty)
    for sentence, found in enumerate(run(step, strategy, limits)):
        best = step.complete(sentence, limits[sentence], length_normalised(penalty))[:nbest]
        assert [h.score for h in found] == pytest.approx([score for score, _ in best], abs=1e-5)
        assert [h.tokens for h in found] == [tokens for _, tokens in best]


@given(seeds, penalties, limits3, st.sampled_from(["optimal", "first"]))
def test_greedy_equals_a_beam_of_one(toy, seed, penalty, limits, stop):
    greedy, beam = toy(seed), toy(seed)
    one = run(greedy, Greedy(length_penalty=penalty), limits)
    assert one == run(beam, BeamSearch(width=1, length_penalty=penalty, stop=stop), limits)
    assert greedy.rows == beam.rows


@given(seeds, limits3)
def test_greedy_takes_the_likeliest_token_at_every_step(toy, seed, limits):
    step = toy(seed)
    for sentence, (found,) in enumerate(run(step, Greedy(), limits)):
        tokens = ()
        while EOS not in tokens and len(tokens) < limits[sentence]:
            tokens += (max(range(5), key=lambda id: step.log_prob(sentence, (*tokens, id))),)
        assert found.tokens == tokens


@given(seeds, limits3, st.integers(1, 4))
def test_a_step_receives_width_rows_for_each_unfinished_sentence(toy, seed, limits, width):
    step = toy(seed)
    beams = [*steps_of(step, BeamSearch(width=width), limits)]
    assert step.rows[0] == 3
    assert step.rows[1:] == [len(beam.sentences) * width for beam in beams[1:]]
    assert len(beams) == len(step.rows) <= max(limits)
    for before, after in itertools.pairwise(beams):
        assert after.sentences.tolist() == before.sentences[~before.finished].tolist()
    assert sorted(s for beam in beams for s in beam.sentences[beam.finished].tolist()) == [0, 1, 2]


@given(seeds, limits3)
def test_beams_are_not_changed_after_they_are_yielded_and_follow_their_origins(toy, seed, limits):
    step, seen = toy(seed), []
    for beam in steps_of(step, BeamSearch(width=3), limits):
        seen.append((beam, beam.tokens.clone()))
    for t, (beam, copy) in enumerate(seen):
        assert torch.equal(beam.tokens, copy)
        assert beam.tokens.shape == (len(beam.sentences), beam.width, t + 1)
        assert (beam.score.diff(dim=1).nan_to_num(0.0) <= 0).all()
        for i, sentence in enumerate(beam.sentences.tolist()):
            for k in range(beam.width):
                tokens = beam.tokens[i, k].tolist()
                if beam.score[i, k] == -math.inf:
                    continue
                assert beam.log_prob[i, k].item() == pytest.approx(step.log_prob(sentence, tokens), abs=1e-5)
                if t:
                    parents = dict(zip(seen[t - 1][0].sentences.tolist(), seen[t - 1][0].tokens.tolist(), strict=True))
                    assert tokens[:-1] == parents[sentence][beam.origin[i, k]]


def test_greedy_selects_no_rows_until_a_sentence_finishes(toy):
    step = toy(7, longest=4)
    step.logits = [logits.index_fill(-1, torch.tensor([EOS]), -9.0) for logits in step.logits]
    state = step.start()
    run(step, Greedy(), [4, 2, 4], state=state)
    assert [rows.tolist() for rows in state.selections] == [[0, 2]]


def test_an_empty_batch_takes_no_step(toy):
    assert search(None, None, bos=BOS, eos=EOS, strategy=Greedy(), limits=torch.tensor([], dtype=torch.long)) == []


def test_a_limit_below_one_is_refused(toy):
    with pytest.raises(ValueError, match=r"^a limit is 0 tokens, expected at least 1$"):
        run(toy(1), Greedy(), [2, 0, 1])


def test_a_prefix_longer_than_the_limit_is_refused(toy):
    with pytest.raises(SearchError) as error:
        run(toy(3), Greedy(), [2, 3, 4], [ForcedPrefix([[2, 2], [2, 2, 3, 3], []])])
    assert str(error.value) == "sentence 2, token 4: a prefix of 4 tokens, expected at most the limit of 3"


@given(seeds, st.integers(2, 30))
def test_a_beam_wider_than_the_number_of_targets_returns_only_possible_ones(toy, seed, width):
    step = toy(seed)
    step.logits[0][:, :, 3:] = -math.inf
    step.logits[1][:, :, 2:] = -math.inf
    step.logits[1][:, :, 0] = -math.inf  # after the first token only eos
    for sentence, found in enumerate(run(step, BeamSearch(width=width, nbest=width), [3, 3, 3])):
        assert {h.tokens for h in found} <= {(EOS,), (0, EOS), (2, EOS)}
        best = max(step.complete(sentence, 3, lambda log_prob, length: log_prob / length))
        assert found[0].tokens == best[1]


def test_a_minimum_length_above_the_limit_ends_at_the_limit(toy):
    for limit, (found,) in zip([1, 2, 3], run(toy(5), Greedy(), [1, 2, 3], [MinimumLength(9)]), strict=True):
        assert found.finished_by == "length"
        assert len(found.tokens) == limit


def test_a_minimum_length_that_forbids_the_only_possible_token_raises(toy):
    step = toy(5)
    step.logits[0][:] = torch.tensor([-math.inf, 0.0, -math.inf, -math.inf, -math.inf])
    with pytest.raises(SearchError, match=r"^sentence 1, token 1: every next token is impossible or forbidden"):
        run(step, BeamSearch(width=7), [3, 3, 3], [MinimumLength(1)])


def test_a_prefix_that_ends_with_eos_is_returned_with_its_score(toy):
    step = toy(11)
    forced = [[2, 3, EOS], [EOS], [4, 4, 4, 4]]
    for sentence, (found,) in enumerate(run(step, BeamSearch(width=3), [4, 4, 4], [ForcedPrefix(forced)])):
        assert found.tokens == tuple(forced[sentence])
        assert found.log_prob == pytest.approx(step.log_prob(sentence, found.tokens), abs=1e-5)


def test_a_search_longer_than_its_first_chunk_of_columns():
    def count(prefix, state):
        logits = torch.zeros(prefix.size(0), 103)
        logits[torch.arange(prefix.size(0)), prefix.size(1) + 1] = 30.0
        return Logits(logits), state

    limits = torch.tensor([97, 70])
    beam = search(count, EmptyState(), bos=BOS, eos=EOS, strategy=BeamSearch(width=2), limits=limits)
    greedy = search(count, EmptyState(), bos=BOS, eos=EOS, strategy=Greedy(), limits=limits)
    assert [each[0].tokens for each in beam] == [tuple(range(2, 2 + n)) for n in (97, 70)]
    assert beam == greedy


def reference_search(step, sentence, limit, strategy, score):
    """Beam search implemented again on lists: the finished (score, tokens), best first."""
    live, ended = [(0.0, ())], []
    for length in range(1, limit + 1):
        grown = [
            (-step.log_prob(sentence, (*tokens, id)), place, id, (*tokens, id))
            for place, (_, tokens) in enumerate(live)
            for id in range(step.size)
        ]
        best = sorted(grown)[: 2 * strategy.width]
        ended += [(score(-cost, length), ids) for cost, _, id, ids in best[: strategy.width] if id == EOS]
        live = [(-cost, ids) for cost, _, id, ids in best if id != EOS][: strategy.width]
        if length == limit:
            ended += [(score(total, length), ids) for total, ids in live]
        if strategy.stop == "first" and len(ended) >= strategy.width:
            break
    return sorted(ended, key=lambda each: -each[0])[: strategy.nbest]


@given(seeds, limits3, penalties, st.integers(2, 6), st.sampled_from(["optimal", "first"]), st.data())
def test_results_equal_the_reference_implementation(toy, seed, limits, penalty, width, stop, data):
    step = toy(seed)
    nbest = data.draw(st.integers(1, width))
    strategy = BeamSearch(width=width, nbest=nbest, length_penalty=penalty, stop=stop)
    for sentence, found in enumerate(run(step, strategy, limits)):
        wanted = reference_search(step, sentence, limits[sentence], strategy, length_normalised(penalty))
        assert [h.tokens for h in found] == [tokens for _, tokens in wanted]
        assert [h.score for h in found] == pytest.approx([score for score, _ in wanted], abs=1e-5)


def test_ties_are_broken_by_hypothesis_and_then_by_id(toy):
    step = fixed(toy(1), *[[0.2] * 5] * 4)
    strategy = BeamSearch(width=4, nbest=4, length_penalty=LengthPenalty(exponent=0.0))
    for found in run(step, strategy, [2, 2, 2], [ForbidTokens((EOS,))]):
        assert [h.tokens for h in found] == [(0, 0), (0, 2), (0, 3), (0, 4)]


def test_an_end_among_the_2k_but_not_the_k_best_is_dropped(toy):
    step = fixed(toy(1), [0.4, 0.15, 0.3, 0.1, 0.05], [0.0, 1.0, 0.0, 0.0, 0.0], *[[0.2] * 5] * 2)
    strategy = BeamSearch(width=2, nbest=2, length_penalty=LengthPenalty(exponent=0.0))
    for found in run(step, strategy, [4, 4, 4]):
        assert [h.tokens for h in found] == [(0, EOS), (2, EOS)]
        assert [h.log_prob for h in found] == pytest.approx([math.log(0.4), math.log(0.3)])


def test_a_bias_changes_the_score_and_not_the_log_probability(toy):
    step = fixed(toy(1), *[[0.1, 0.2, 0.3, 0.2, 0.2]] * 4)

    for strategy in (Greedy(), BeamSearch(width=2)):
        for (found,) in run(step, strategy, [4, 4, 4], [Prefer(EOS, 1.0)]):
            assert found.tokens == (EOS,)
            assert found.log_prob == pytest.approx(math.log(0.2))
            assert found.score == pytest.approx(math.log(0.2) + 1.0)


def test_a_consumer_may_stop_after_any_beam(toy):
    step = toy(2)
    first = next(steps_of(step, BeamSearch(width=3), [4, 4, 4]))
    assert first.tokens.shape == (3, 3, 1)
    assert len(step.rows) == 1


def test_a_rule_without_tokens_returns_no_bias(toy):
    assert ForbidTokens(())(torch.zeros(2, 1), None) is None
