"""Lexically constrained beam search: phrase automata, allocation of banks, and met constraints."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.searching import BOS, EOS, limits3, seeds

from translume.decoding import (
    BeamSearch,
    Boundaries,
    ConstrainedBeam,
    Constraints,
    ForbidTokens,
    ForcedPrefix,
    LengthPenalty,
    Phrase,
    search,
)
from translume.decoding.constrained_beam import allocated

SPACE = 2
SIZE, LONGEST = 5, 4
NO_WORDS = Boundaries(begins=torch.ones(SIZE, dtype=torch.bool), ends=torch.ones(SIZE, dtype=torch.bool))


def holds(tokens, phrase, boundaries=NO_WORDS):
    """Count non-overlapping occurrences of a phrase in tokens, at word boundaries where the phrase requires them."""
    begins, ends = boundaries.begins.tolist(), boundaries.ends.tolist()
    tokens = [token for token in tokens if token != EOS]
    count = place = 0
    while place + len(phrase.ids) <= len(tokens):
        end = place + len(phrase.ids)
        before = not phrase.apart_before or place == 0 or begins[phrase.ids[0]] or ends[tokens[place - 1]]
        after = not phrase.apart_after or end == len(tokens) or begins[tokens[end]]
        if tuple(tokens[place:end]) == phrase.ids and before and after:
            count, place = count + 1, end
        else:
            place += 1
    return count


def meets(tokens, wanted, boundaries=NO_WORDS):
    return all(
        sum(holds(tokens, phrase, boundaries) for phrase in set(phrases)) >= times
        for phrases, times in Counter(map(tuple, wanted)).items()
    )


def cost(wanted, boundaries):
    begins = boundaries.begins.tolist()
    return sum(min(len(p.ids) + (p.apart_before and not begins[p.ids[0]]) for p in phrases) for phrases in wanted)


def run(step, beam, wanted, limits, rules=(), boundaries=NO_WORDS):
    constraints = Constraints.from_phrases(wanted, boundaries)
    strategy = ConstrainedBeam(beam=beam, constraints=constraints, limits=torch.tensor(limits), eos=EOS)
    start = step.start(list(range(len(wanted))))
    return search(step, start, bos=BOS, eos=EOS, strategy=strategy, limits=torch.tensor(limits), rules=rules)


@st.composite
def worlds(draw, alternatives=2):
    """Word boundaries, and constraints of two sentences that fit within the length limits."""
    flags = st.lists(st.booleans(), min_size=SIZE - 3, max_size=SIZE - 3)
    begins, ends = (torch.tensor([True, True, True, *draw(flags)]) for _ in range(2))
    boundaries = Boundaries(begins=begins, ends=ends, space=SPACE)
    limits = draw(st.lists(st.integers(1, LONGEST), min_size=2, max_size=2))
    wanted = []
    for limit in limits:
        each = []
        for _ in range(draw(st.integers(0, 3))):
            phrases = []
            for _ in range(draw(st.integers(1, alternatives))):
                ids = tuple(draw(st.lists(st.integers(2, SIZE - 1), min_size=1, max_size=2)))
                before = not begins[ids[0]] or draw(st.booleans())
                phrases.append(Phrase(ids, before, not ends[ids[-1]] and draw(st.booleans())))
            times = 2 if len(phrases) == 1 and draw(st.booleans()) else 1
            if cost([*each, *[phrases] * times], boundaries) <= limit:
                each += [phrases] * times
        wanted.append(each)
    return boundaries, limits, wanted


@settings(deadline=None, max_examples=60)
@given(seeds, worlds(), st.integers(1, 5))
def test_feasible_constraints_are_met_and_scores_are_the_models_own(toy, seed, world, width):
    boundaries, limits, wanted = world
    step = toy(seed, sharpness=3.0, sentences=2)
    found = run(step, BeamSearch(width=width, nbest=width), wanted, limits, [ForbidTokens((BOS,))], boundaries)
    for sentence, hypotheses in enumerate(found):
        assert hypotheses
        assert len({h.tokens for h in hypotheses}) == len(hypotheses)
        for h in hypotheses:
            assert meets(h.tokens, wanted[sentence], boundaries)
            assert len(h.tokens) <= limits[sentence]
            assert h.log_prob == pytest.approx(step.log_prob(sentence, h.tokens), abs=1e-4)
            assert h.score == pytest.approx(h.log_prob / len(h.tokens), abs=1e-5)


@pytest.mark.parametrize(
    ("ends", "limit", "wanted", "width"),
    [
        # The only candidate that can still meet the constraints may be one that ends. Its place must go to another
        # such candidate.
        ([True, True, True, False, True], 4, [[Phrase((3, 4), apart_before=True)]], 2),
        # Here all constraints are met, unless the next token continues the last word. EOS does not continue
        # it.
        ([True, True, True, False, False], 3, [[Phrase((2,))], [Phrase((3,), apart_before=True, apart_after=True)]], 1),
    ],
)
def test_candidates_that_can_still_meet_all_constraints_take_precedence(toy, ends, limit, wanted, width):
    begins = torch.tensor([True, True, True, False, False])
    boundaries = Boundaries(begins=begins, ends=torch.tensor(ends), space=SPACE)
    for seed in range(40):
        step = toy(seed, sharpness=3.0, sentences=1)
        beam = BeamSearch(width=width, nbest=width)
        (found,) = run(step, beam, [wanted], [limit], [ForbidTokens((BOS,))], boundaries)
        assert all(meets(each.tokens, wanted, boundaries) for each in found), seed


@given(seeds, worlds(), st.sampled_from([0.0, 1.0]))
def test_exhaustive_beam_finds_the_best_target_that_meets_all_constraints(toy, seed, world, exponent):
    boundaries, limits, wanted = world
    step = toy(seed, sentences=2)
    beam = BeamSearch(width=SIZE**LONGEST, length_penalty=LengthPenalty(exponent=exponent))
    found = run(step, beam, wanted, limits, [ForbidTokens((BOS,))], boundaries)
    for sentence, (best,) in enumerate(found):
        every = step.complete(sentence, limits[sentence], lambda log_prob, length: log_prob / length**exponent)
        score, _ = next(
            each for each in every if BOS not in each[1] and meets(each[1], wanted[sentence], boundaries)
        )  # fmt: skip
        assert best.score == pytest.approx(score, abs=1e-5)


@given(seeds, limits3, st.integers(1, 5), st.integers(1, 2))
def test_without_constraints_equals_beam_search(toy, seed, limits, width, nbest):
    beam = BeamSearch(width=width, nbest=min(nbest, width))
    rules = [ForbidTokens((BOS,)), ForcedPrefix([[], [2], [3]])]
    plain = search(
        toy(seed), toy(seed).start(), bos=BOS, eos=EOS, strategy=beam, limits=torch.tensor(limits), rules=rules
    )
    assert run(toy(seed), beam, [[], [], []], limits, rules) == plain
    beside = run(toy(seed), beam, [[], [[Phrase((2,))]], []], limits, rules)
    assert [beside[0], beside[2]] == [plain[0], plain[2]]


@given(seeds, worlds(), st.integers(1, 4))
def test_results_do_not_depend_on_other_sentences_in_the_batch(toy, seed, world, width):
    boundaries, limits, wanted = world
    together = run(toy(seed, sentences=2), BeamSearch(width=width), wanted, limits, (), boundaries)
    alone = run(toy(seed, sentences=2), BeamSearch(width=width), wanted[:1], limits[:1], (), boundaries)
    assert [h.tokens for h in together[0]] == [h.tokens for h in alone[0]]


def progress_of(tokens, wanted, boundaries=NO_WORDS):
    """(needed, proposals) of one sentence before the first and after each of `tokens`."""
    constraints = Constraints.from_phrases([wanted], boundaries)
    progress, found = constraints.start(), []
    for token in (None, *tokens):
        if token is not None:
            progress = constraints.advance(progress, torch.tensor([[token]]))
        proposals = [each for each in constraints.proposals(progress).flatten().tolist() if each >= 0]
        found.append((constraints.needed(progress).item(), proposals))
    return found


@pytest.mark.parametrize(
    ("phrases", "tokens", "needed"),
    [
        ([(2, 2, 3)], (2, 2, 2, 3), [3, 2, 1, 1, 0]),  # falls back to its longest prefix that still matches
        ([(2, 3, 2, 4)], (2, 3, 2, 3, 2, 4), [4, 3, 2, 1, 2, 1, 0]),
        ([(2, 3, 4)], (2, 3, 2, 4, 2, 3, 4), [3, 2, 1, 2, 3, 2, 1, 0]),  # abandoned and restarted
        ([(2, 3), (2, 4)], (2, 3, 2, 4), [4, 3, 2, 1, 0]),  # a shared prefix counts for one of them
        ([(2, 3), (3, 4)], (2, 3, 4), [4, 3, 1, 0]),  # overlapping phrases may share tokens
        ([(2, 3), (2, 3)], (2, 3, 4, 2, 3), [4, 3, 2, 2, 1, 0]),  # a repeated constraint must be met twice
        ([(2, 2), (2, 2)], (2, 2, 2, 2), [4, 3, 2, 1, 0]),  # and its occurrences must not overlap
    ],
)
def test_progress_worked_by_hand(phrases, tokens, needed):
    found = progress_of(tokens, [[Phrase(ids)] for ids in phrases])
    assert [each for each, _ in found] == needed


def test_proposals_are_the_next_token_of_every_unmet_phrase():
    wanted = [[Phrase((2, 3, 4))], [Phrase((4,)), Phrase((3, 2))]]
    assert [each for _, each in progress_of((2, 3, 4), wanted)] == [[2, 4, 3], [3, 4, 3], [4, 4, 2], []]


def test_continuing_a_word_undoes_a_phrase_that_ended_in_it():
    mann, schaft = 3, 4
    words = Boundaries(begins=torch.tensor([1, 1, 1, 1, 0]).bool(), ends=torch.tensor([1, 1, 1, 0, 0]).bool())
    man = [Phrase((mann,), True, True)]
    assert [each for each, _ in progress_of((mann, schaft, mann, mann), [man], words)] == [1, 0, 1, 0, 0]
    both = progress_of((mann, mann, schaft), [man, [Phrase((mann, schaft), True, True)]], words)
    # After the first "mann", "schaft" would undo the match, so the proposal starts another word.
    assert both == [(3, [mann, mann]), (2, [mann]), (1, [schaft]), (0, [])]


def test_a_phrase_at_a_word_start_needs_a_preceding_space():
    letters = Boundaries(
        begins=torch.tensor([1, 1, 1, 0, 0]).bool(), ends=torch.tensor([1, 1, 1, 0, 0]).bool(), space=SPACE
    )
    found = progress_of((4, 3, SPACE, 3, 3, SPACE), [[Phrase((3,), True, True)]], letters)
    assert [each for each, _ in found] == [1, 2, 2, 1, 0, 2, 1]
    assert [each for _, each in found] == [[3], [SPACE], [SPACE], [3], [], [SPACE], [3]]


@given(worlds(), st.lists(st.integers(2, SIZE - 1), max_size=6))
def test_needed_is_zero_iff_all_constraints_are_met_and_proposals_reduce_it(world, tokens):
    boundaries, _, wanted = world
    for each in wanted:
        constraints = Constraints.from_phrases([each], boundaries)
        progress = constraints.start()
        for place, token in enumerate((*tokens, None)):
            needed = constraints.needed(progress).item()
            single = all(len(phrases) == 1 for phrases in each)
            if single or max(Counter(map(tuple, each)).values(), default=1) == 1:
                assert (needed == 0) == meets(tokens[:place], each, boundaries)
            proposals = [token for token in constraints.proposals(progress).flatten().tolist() if token >= 0]
            after = [
                constraints.needed(constraints.advance(progress, torch.tensor([[one]]))).item() for one in proposals
            ]
            assert not needed or min(after) < needed
            if token is not None:
                progress = constraints.advance(progress, torch.tensor([[token]]))


def test_banks_are_allocated_in_turn_starting_with_the_most_constraints_met():
    total = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0]])
    met = torch.tensor([[0, 0, 0, 0, 1, 2, 2]])
    never = torch.zeros_like(met, dtype=torch.bool)
    for width, wanted in ((1, [5]), (2, [4, 5]), (3, [0, 4, 5]), (4, [0, 4, 5, 6]), (5, [0, 1, 4, 5, 6])):
        assert (allocated(total, met, never, width) == 1).nonzero()[:, 1].tolist() == wanted


def test_an_ending_candidate_uses_a_turn_of_its_bank_but_no_place():
    total = torch.tensor([[-1.0, -2.0, -3.0, -4.0]])
    met = torch.tensor([[1, 1, 0, 0]])
    ends = torch.tensor([[True, False, False, False]])
    assert allocated(total, met, ends, 2).tolist() == [[0, 1, 1, 2]]
    ends = torch.tensor([[False, True, False, False]])  # its turn is the third
    assert allocated(total, met, ends, 2).tolist() == [[1, 2, 1, 2]]


def test_impossible_candidates_get_no_place():
    total = torch.tensor([[-1.0, -torch.inf, -3.0]])
    never = torch.zeros(1, 3, dtype=torch.bool)
    assert allocated(total, torch.tensor([[0, 5, 0]]), never, 3).tolist() == [[1, 2, 1]]


@pytest.mark.parametrize("width", [4, 5])
def test_as_many_constraints_as_possible_are_met_when_a_phrase_is_forbidden(toy, width):
    wanted = [[[Phrase((2, 3))], [Phrase((4,))]]] * 3
    found = run(toy(3), BeamSearch(width=width), wanted, [4, 3, 4], [ForbidTokens((BOS, 3))])
    for (best,) in found:
        assert 4 in best.tokens
        assert 3 not in best.tokens


@pytest.mark.parametrize("width", [1, 3])
def test_a_forced_prefix_that_ends_with_eos_is_returned_unchanged(toy, width):
    found = run(toy(3), BeamSearch(width=width), [[[Phrase((4,))]]], [4], [ForcedPrefix([[2, EOS]])])
    assert [h.tokens for h in found[0]] == [(2, EOS)]


def test_more_alternatives_never_lower_the_score(toy):
    for one, other in itertools.product((2, 3, 4), repeat=2):
        (either,), (single,) = (
            run(toy(5), BeamSearch(width=SIZE**LONGEST), [[phrases]], [4])[0]
            for phrases in ([Phrase((one, one)), Phrase((other,))], [Phrase((one, one))])
        )
        assert either.score >= single.score - 1e-6


def test_an_empty_phrase_is_refused():
    with pytest.raises(ValueError, match=r"^a phrase has no tokens$"):
        Constraints.from_phrases([[[Phrase(())]]], NO_WORDS)
