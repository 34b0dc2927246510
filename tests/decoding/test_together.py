"""Searches that step together find what each finds alone, whenever one began and whoever is beside it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.belief import Logits
from translume.config import DecodingSettings
from translume.config.decoding import STRATEGIES
from translume.decoding import (
    BeamSearch,
    Best,
    Boundaries,
    ConstrainedBeam,
    Constraints,
    Ensemble,
    ForbidTokens,
    Fusion,
    Greedy,
    Phrase,
    RepetitionPenalty,
    Search,
    SearchError,
    StepOf,
    advance,
    reshaped,
    search,
    strategy_from,
)
from translume.errors import SettingsError

BOS, EOS = 0, 1
KEYS = torch.tensor([11, 5, 2**62, 7, 13])
few = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 10**6)
every = pytest.mark.parametrize("name", [*sorted(STRATEGIES), "constrained"])
# For each of five sentences the step at which it may begin, its limit, and by it who begins together with whom.
begins = st.lists(st.integers(0, 5), min_size=5, max_size=5)
limits5 = st.lists(st.integers(1, 4), min_size=5, max_size=5)


class Joint:
    """A stepper over a toy's step that reads several searches' rows in one call of it, as far as all are as long."""

    def __init__(self, toy):
        self.toy, self.sizes = toy, []

    def start(self, source, mask):
        return self.toy.start(source[:, 0].tolist())

    def step(self, prefix, state):
        return self.toy(prefix, state)

    def step_together(self, readings):
        self.sizes.append(len(readings))
        return [self.toy(*each) for each in readings]


def strategy_of(name, sentences, limits):
    """The strategy for some of the five sentences; of `constrained`, each must hold a token of its own."""
    if name == "constrained":
        apart = Boundaries(begins=torch.ones(5, dtype=torch.bool), ends=torch.ones(5, dtype=torch.bool))
        wanted = [[(Phrase(ids=(2 + number % 3,)),)] for number in sentences]
        return ConstrainedBeam(
            beam=BeamSearch(width=4, nbest=2), constraints=Constraints.of(wanted, apart), limits=limits, eos=EOS
        )
    for options in ({"nbest": 3}, {}):
        try:
            return strategy_from(DecodingSettings(strategy=name, beam=4, samples=4, **options), KEYS[sentences])
        except SettingsError:
            continue
    raise AssertionError(name)


def nearly(found, wanted):
    """The same targets; torch's own logarithms round by how many rows there are."""
    for one, other in zip(found, wanted, strict=True):
        assert [(each.tokens, each.finished_by) for each in one] == [(each.tokens, each.finished_by) for each in other]
        for mine, alone in zip(one, other, strict=True):
            assert (mine.log_prob, mine.score) == pytest.approx((alone.log_prob, alone.score), abs=1e-5)
            assert mine.log_probs == pytest.approx(alone.log_probs, abs=1e-5)


def scheduled(begins, begun):
    """What is found for each sentence where those that may begin do so together, between two steps of the others.

    begun: makes the search of some sentences.
    """
    waiting = sorted(range(len(begins)), key=lambda number: begins[number])
    running, found, steps = [], {}, 0
    while waiting or running:
        if new := [number for number in waiting if begins[number] <= steps]:
            waiting = [number for number in waiting if number not in new]
            one = begun(new)
            running.append((one, Best(one.strategy, len(new)), new))
        for (_, best, numbers), beam in zip(running, advance([each[0] for each in running]), strict=True):
            best.see(beam)
            for place in beam.sentences[beam.finished].tolist():
                found[numbers[place]] = best.of(place)
        running = [each for each in running if not each[0].over]
        steps += 1
    return [found[number] for number in range(len(begins))]


@every
@few
@given(seeds, limits5, begins, st.sampled_from([1.0, 0.7]), st.booleans())
def test_whenever_a_sentence_begins_the_same_is_found(toy, name, seed, limits, begins, temperature, rules):
    step = Joint(toy(seed, sentences=5))
    held = [ForbidTokens((BOS,)), RepetitionPenalty(1.3)] if rules else [ForbidTokens((BOS,))]

    def arguments(numbers):
        own = torch.tensor([limits[number] for number in numbers])
        words = {"bos": BOS, "eos": EOS, "strategy": strategy_of(name, numbers, own), "limits": own, "rules": held}
        return (reshaped(StepOf(step), temperature=temperature), step.toy.start(numbers)), words

    whole, words = arguments([0, 1, 2, 3, 4])
    wanted = search(*whole, **words)

    def begun(numbers):
        which, how = arguments(numbers)
        return Search(*which, **how)

    nearly(scheduled(begins, begun), wanted)


@few
@given(seeds, begins)
def test_ensembles_and_language_models_go_together_too(toy, seed, begins):
    one, other, language = (toy(seed + number, sentences=5) for number in range(3))

    class Language:
        def start(self, count):
            return language.start([0] * count)

        def step(self, prefix, state):
            return language(prefix, state)

    members, fusion = [Joint(one), Joint(other)], Fusion(Language(), 0.3)
    step = fusion.over(StepOf(Ensemble(members)))
    limits, strategy = torch.full((5,), 4), BeamSearch(width=3, nbest=2)

    def start(numbers):
        source = torch.tensor(numbers)[:, None]
        return fusion.start(Ensemble(members).start(source, source >= 0), len(numbers))

    words = {"bos": BOS, "eos": EOS, "strategy": strategy, "rules": [ForbidTokens((BOS,))]}
    wanted = search(step, start([*range(5)]), limits=limits, **words)
    nearly(scheduled(begins, lambda numbers: Search(step, start(numbers), limits=limits[numbers], **words)), wanted)


def test_equal_steps_are_one_call_and_others_are_not(toy):
    shared, own = Joint(toy(3)), Joint(toy(4))
    words = {"bos": BOS, "eos": EOS, "limits": torch.tensor([4, 4, 4]), "rules": [ForbidTokens((BOS, EOS))]}
    searches = [
        Search(reshaped(StepOf(stepper), temperature=heat), stepper.toy.start(), strategy=strategy, **words)
        for stepper, heat, strategy in (
            (shared, 1.0, Greedy()),
            (own, 1.0, Greedy()),
            (shared, 1.0, BeamSearch(width=2)),
            (shared, 0.5, Greedy()),
            (shared, 0.5, BeamSearch(width=3)),
        )
    ]
    advance(searches)
    assert (shared.sizes, own.sizes) == ([2, 2], [])
    advance(searches)
    assert shared.sizes == [2, 2, 2, 2]


def test_a_search_that_finds_nothing_does_not_concern_the_others(toy):
    class Silent:
        def __call__(self, prefix, state):
            return Logits(torch.full((prefix.size(0), 5), float("nan"))), state

    step = toy(5)
    words = {"bos": BOS, "eos": EOS, "strategy": Greedy(), "limits": torch.tensor([4, 4, 4])}
    bad, good = Search(Silent(), step.start(), **words), Search(step, step.start(), **words)
    error, beam = advance([bad, good])
    assert isinstance(error, SearchError)
    assert beam.tokens.size(2) == 1
