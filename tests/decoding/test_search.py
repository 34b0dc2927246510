"""Beam search and greedy search on a toy step whose targets can be enumerated."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.belief import Bias, Logits
from translume.decoding import (
    BeamSearch,
    ForbidTokens,
    ForcedPrefix,
    Greedy,
    LengthPenalty,
    MinimumLength,
    SearchError,
    decode,
    search,
)

BOS, EOS = 0, 1
few = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 10**6)
penalties = st.builds(
    LengthPenalty,
    form=st.sampled_from(["power", "gnmt"]),
    exponent=st.sampled_from([-1.0, -0.5, 0.0, 0.6, 1.0, 2.0]),
)
limits3 = st.lists(st.integers(1, 4), min_size=3, max_size=3)


def run(step, strategy, limits, rules=(), state=None):
    state = step.start() if state is None else state
    return search(step, state, bos=BOS, eos=EOS, strategy=strategy, limits=torch.tensor(limits), rules=rules)


def length_normalised(penalty):
    if penalty.form == "power":
        return lambda log_prob, length: log_prob / length**penalty.exponent
    return lambda log_prob, length: log_prob / ((5 + length) / 6) ** penalty.exponent


def assert_close(found, wanted):
    assert [h.tokens for h in found] == [h.tokens for h in wanted]
    assert [h.finished_by for h in found] == [h.finished_by for h in wanted]
    assert [h.log_prob for h in found] == pytest.approx([h.log_prob for h in wanted], abs=1e-5)
    assert [h.score for h in found] == pytest.approx([h.score for h in wanted], abs=1e-5)


@few
@given(seeds, penalties, limits3, st.integers(1, 6))
def test_exhaustive_beam_finds_the_best_targets(toy, seed, penalty, limits, nbest):
    step = toy(seed)
    strategy = BeamSearch(width=5**4, nbest=nbest, length_penalty=penalty)
    for sentence, found in enumerate(run(step, strategy, limits)):
        best = step.complete(sentence, limits[sentence], length_normalised(penalty))[:nbest]
        assert [h.score for h in found] == pytest.approx([score for score, _ in best], abs=1e-5)
        assert [h.tokens for h in found] == [tokens for _, tokens in best]


@few
@given(seeds, penalties, limits3, st.integers(2, 4), st.integers(1, 2))
def test_optimal_stop_equals_a_search_that_never_stops_early(toy, seed, penalty, limits, width, nbest):
    class NeverDone(BeamSearch):
        def done(self, standing):
            return torch.zeros_like(standing.limits, dtype=torch.bool)

    wanted = run(toy(seed), NeverDone(width=width, nbest=nbest, length_penalty=penalty), limits)
    found = run(toy(seed), BeamSearch(width=width, nbest=nbest, length_penalty=penalty), limits)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other)


@few
@given(seeds, penalties, limits3, st.integers(2, 4))
def test_stop_first_never_scores_better_than_optimal(toy, seed, penalty, limits, width):
    first = run(toy(seed), BeamSearch(width=width, length_penalty=penalty, stop="first"), limits)
    optimal = run(toy(seed), BeamSearch(width=width, length_penalty=penalty), limits)
    for one, other in zip(first, optimal, strict=True):
        assert one[0].score <= other[0].score + 1e-6


@few
@given(seeds, penalties, limits3, st.sampled_from(["optimal", "first"]))
def test_greedy_equals_a_beam_of_one(toy, seed, penalty, limits, stop):
    greedy, beam = toy(seed), toy(seed)
    one = run(greedy, Greedy(length_penalty=penalty), limits)
    assert one == run(beam, BeamSearch(width=1, length_penalty=penalty, stop=stop), limits)
    assert greedy.rows == beam.rows


@few
@given(seeds, limits3)
def test_greedy_takes_the_likeliest_token_at_every_step(toy, seed, limits):
    step = toy(seed)
    for sentence, (found,) in enumerate(run(step, Greedy(), limits)):
        tokens = ()
        while EOS not in tokens and len(tokens) < limits[sentence]:
            tokens += (max(range(5), key=lambda id: step.log_prob(sentence, (*tokens, id))),)
        assert found.tokens == tokens


@few
@given(seeds, limits3, st.integers(1, 6), st.sampled_from(["optimal", "first"]))
def test_hypotheses_are_distinct_and_carry_their_own_log_probability(toy, seed, limits, width, stop):
    step = toy(seed)
    rules = [ForbidTokens((BOS,)), MinimumLength(1), ForcedPrefix([[], [2], [3]])]
    strategy = BeamSearch(width=width, nbest=width, stop=stop)
    for sentence, found in enumerate(run(step, strategy, limits, rules)):
        assert 1 <= len(found) <= width
        assert len({h.tokens for h in found}) == len(found)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        for h in found:
            assert math.isfinite(h.score)
            assert h.log_prob == pytest.approx(step.log_prob(sentence, h.tokens), abs=1e-5)
            assert h.score == pytest.approx(h.log_prob / len(h.tokens), abs=1e-6)
            assert EOS not in h.tokens[:-1]
            assert (h.tokens[-1] == EOS) == (h.finished_by == "eos")
            assert h.finished_by == "eos" or len(h.tokens) == limits[sentence]
            assert BOS not in h.tokens
            assert h.tokens[: min(sentence, 1)] == ((), (2,), (3,))[sentence]


@few
@given(seeds, st.lists(st.integers(0, 2), min_size=1, max_size=7), limits3, st.integers(1, 4), penalties)
def test_results_do_not_depend_on_other_sentences_in_the_batch(toy, seed, sentences, limits, width, penalty):
    step, strategy = toy(seed), BeamSearch(width=width, nbest=width, length_penalty=penalty)
    rules = [ForbidTokens((BOS,))]
    together = run(step, strategy, [limits[s] for s in sentences], rules, step.start(sentences))
    for sentence, found in zip(sentences, together, strict=True):
        assert_close(found, run(step, strategy, [limits[sentence]], rules, step.start([sentence]))[0])


@few
@given(seeds, limits3, st.integers(1, 4))
def test_a_step_receives_width_rows_for_each_unfinished_sentence(toy, seed, limits, width):
    step = toy(seed)
    beams = list(
        decode(
            step,
            step.start(),
            bos=BOS,
            eos=EOS,
            strategy=BeamSearch(width=width),
            limits=torch.tensor(limits),
        )
    )
    assert step.rows[0] == 3
    assert step.rows[1:] == [len(beam.sentences) * width for beam in beams[1:]]
    assert len(beams) == len(step.rows) <= max(limits)
    for before, after in itertools.pairwise(beams):
        assert after.sentences.tolist() == before.sentences[~before.finished].tolist()
    assert sorted(s for beam in beams for s in beam.sentences[beam.finished].tolist()) == [0, 1, 2]


@few
@given(seeds, limits3)
def test_beams_are_not_changed_after_they_are_yielded_and_follow_their_origins(toy, seed, limits):
    step, seen = toy(seed), []
    for beam in decode(step, step.start(), bos=BOS, eos=EOS, strategy=BeamSearch(width=3), limits=torch.tensor(limits)):
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


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(width=2)])
def test_a_nan_raises_with_sentence_and_token(toy, strategy):
    step = toy(3)
    step.logits = [logits.index_fill(-1, torch.tensor([EOS]), -9.0) for logits in step.logits]
    step.logits[1][1] = math.nan
    with pytest.raises(SearchError) as error:
        run(step, strategy, [4, 4, 4])
    row = strategy.width
    wanted = f"sentence 2, token 2: the head's logits of row {row} hold a NaN, an infinity or no finite number"
    assert str(error.value) == wanted
    assert (error.value.sentence, error.value.token) == (1, 2)


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(width=2)])
def test_an_error_in_one_line_is_raised_if_every_token_is_forbidden(toy, strategy):
    with pytest.raises(SearchError) as error:
        run(toy(3), strategy, [4, 4, 4], [ForbidTokens((2,)), ForcedPrefix([[3], [3, 2], []])])
    assert str(error.value) == (
        "sentence 2, token 2: every next token is impossible or forbidden, "
        "expected one that is neither (rules: ForbidTokens, ForcedPrefix)"
    )


def test_a_prefix_longer_than_the_limit_is_refused(toy):
    with pytest.raises(SearchError) as error:
        run(toy(3), Greedy(), [2, 3, 4], [ForcedPrefix([[2, 2], [2, 2, 3, 3], []])])
    assert str(error.value) == "sentence 2, token 4: a prefix of 4 tokens, expected at most the limit of 3"


@few
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
    class SelectionCounter:
        def select(self, rows):
            return self

    def count(prefix, state):
        logits = torch.zeros(prefix.size(0), 103)
        logits[torch.arange(prefix.size(0)), prefix.size(1) + 1] = 30.0
        return Logits(logits), state

    limits = torch.tensor([97, 70])
    beam = search(count, SelectionCounter(), bos=BOS, eos=EOS, strategy=BeamSearch(width=2), limits=limits)
    greedy = search(count, SelectionCounter(), bos=BOS, eos=EOS, strategy=Greedy(), limits=limits)
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


@few
@given(seeds, limits3, penalties, st.integers(2, 6), st.sampled_from(["optimal", "first"]), st.data())
def test_results_equal_the_reference_implementation(toy, seed, limits, penalty, width, stop, data):
    step = toy(seed)
    nbest = data.draw(st.integers(1, width))
    strategy = BeamSearch(width=width, nbest=nbest, length_penalty=penalty, stop=stop)
    for sentence, found in enumerate(run(step, strategy, limits)):
        wanted = reference_search(step, sentence, limits[sentence], strategy, length_normalised(penalty))
        assert [h.tokens for h in found] == [tokens for _, tokens in wanted]
        assert [h.score for h in found] == pytest.approx([score for score, _ in wanted], abs=1e-5)


def fixed(step, *probabilities):
    """Set the probabilities after every prefix of length t to the t-th of `probabilities`."""
    for logits, row in zip(step.logits, probabilities, strict=True):
        logits[:] = torch.tensor(row).log()
    return step


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

    def prefer(prefix, context):
        rows = torch.arange(prefix.size(0))
        return Bias(rows, torch.full_like(rows, EOS), torch.full(rows.shape, 1.0))

    for strategy in (Greedy(), BeamSearch(width=2)):
        for (found,) in run(step, strategy, [4, 4, 4], [prefer]):
            assert found.tokens == (EOS,)
            assert found.log_prob == pytest.approx(math.log(0.2))
            assert found.score == pytest.approx(math.log(0.2) + 1.0)


def test_a_consumer_may_stop_after_any_beam(toy):
    step = toy(2)
    arguments = {"bos": BOS, "eos": EOS, "strategy": BeamSearch(width=3), "limits": torch.tensor([4, 4, 4])}
    first = next(decode(step, step.start(), **arguments))
    assert first.tokens.shape == (3, 3, 1)
    assert len(step.rows) == 1


def test_a_rule_without_tokens_returns_no_bias(toy):
    assert ForbidTokens(())(torch.zeros(2, 1), None) is None


def test_nbest_above_the_width_raises_value_error():
    with pytest.raises(ValueError, match=r"^nbest is 3, expected 1 to the width, 2$"):
        BeamSearch(width=2, nbest=3)
