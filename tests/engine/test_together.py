"""Searches that step together through the engine read what each reads alone: bit for bit where rows are independent."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.decoding import BeamSearch, Best, Greedy, MinimumLength, Search, StepOf, advance, search
from translume.engine import Choice, Engine, native
from translume.engine.packing import packed_as
from translume.model import StaleStateError

LENGTHS = (5, 2, 19, 3, 7)
LIMITS = torch.tensor([37, 5, 3, 41, 12])
STRATEGIES = {"greedy": Greedy(), "beam": BeamSearch(width=3, nbest=3)}


def words(numbers, strategy):
    return {"bos": 1, "eos": 2, "strategy": strategy, "limits": LIMITS[numbers], "rules": [MinimumLength(4)]}


def scheduled(step, start, begins, strategy, *, compact=False):
    """The hypotheses of each sentence; those that may begin after as many steps of the others begin together.

    compact: whether states are made smaller wherever they may be.
    """
    waiting, running, found, steps = [*range(len(begins))], [], {}, 0
    while waiting or running:
        if new := [number for number in waiting if begins[number] <= steps]:
            waiting = [number for number in waiting if number not in new]
            running.append((Search(step, start(new), **words(new, strategy)), Best(strategy, len(new)), new))
        for (one, best, numbers), beam in zip(running, advance([each[0] for each in running]), strict=True):
            best.see(beam)
            if compact:
                one.compact()
            for place in beam.sentences[beam.finished].tolist():
                found[numbers[place]] = best.of(place)
        running = [each for each in running if not each[0].over]
        steps += 1
    return [found[number] for number in range(len(begins))]


def start_of(stepper, sources, seed):
    source, mask = sources(*LENGTHS, seed=seed)
    return lambda numbers: stepper.start(source[numbers], mask[numbers])


names, begins = st.sampled_from([*STRATEGIES]), st.lists(st.sampled_from([0, 1, 4, 33]), min_size=5, max_size=5)


@settings(max_examples=3)
@given(name=names, begins=begins, seed=st.integers(0, 99), compact=st.booleans())
def test_whenever_sentences_begin_the_plain_model_s_hypotheses_are_found(built, sources, name, begins, seed, compact):
    model, engine = built
    strategy = STRATEGIES[name]
    everybody = [*range(5)]
    wanted = search(model.step, start_of(model, sources, seed)(everybody), **words(everybody, strategy))
    found = scheduled(StepOf(engine), start_of(engine, sources, seed), begins, strategy, compact=compact)
    for plain, fast in zip(wanted, found, strict=True):
        assert [each.tokens for each in fast] == [each.tokens for each in plain]
        for one, other in zip(fast, plain, strict=True):
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@settings(max_examples=3)
@given(name=names, begins=begins, seed=st.integers(0, 99), compact=st.booleans())
def test_by_the_kernels_every_number_is_the_same_bit_for_bit(fresh, whole, sources, dtype, name, begins, seed, compact):
    if dtype == "int8" and not native.kernels().int8:
        pytest.skip("this processor has no products of bytes")
    model, engine = fresh(whole, dtype)
    engine.head = packed_as("native", model.head.weight, model.head.bias)
    for layer, own in zip(engine.model.decoder.stack, model.decoder.stack, strict=True):
        plain = own.cross_attention.key_value
        layer.cross_attention.key_value = packed_as("native", plain.weight, plain.bias)
    strategy, start = STRATEGIES[name], start_of(engine, sources, seed)
    alone = [search(engine.step, start([number]), **words([number], strategy))[0] for number in range(5)]
    assert scheduled(StepOf(engine), start, begins, strategy, compact=compact) == alone


@torch.no_grad()
def test_linear_maps_take_the_rows_of_all_searches_in_one_call(fresh, whole, sources, monkeypatch):
    _, engine = fresh(whole)
    start, sizes, read = start_of(engine, sources, 1), [], engine.decoder.read
    monkeypatch.setattr(engine.decoder, "read", lambda x, segments: sizes.append(len(x)) or read(x, segments))
    first, second = torch.ones(3, 1, dtype=torch.long), torch.ones(2, 1, dtype=torch.long)
    (_, one), (_, other) = engine.step_together([(first, start([0, 1, 2])), (second, start([3, 4]))])
    engine.step_together([(torch.ones(3, 2, dtype=torch.long), one), (torch.ones(2, 2, dtype=torch.long), other)])
    assert sizes == [5, 5]


@torch.no_grad()
def test_a_compact_state_holds_those_that_are_left_and_the_one_before_it_is_stale(fresh, whole, sources):
    _, engine = fresh(whole)
    state = start_of(engine, sources, 2)([*range(5)])
    _, state = engine.step(torch.ones(5, 1, dtype=torch.long), state)
    left = state.select(torch.tensor([1, 4]))
    held = left.buffers.past.numel()
    small = left.compacted()
    assert (small.buffers.past.size(1), small.sentences) == (2, 2)
    assert small.buffers.past.numel() * 5 == held * 2
    with pytest.raises(StaleStateError):
        left.check()


def test_what_reads_unread_tokens_of_several_places_reads_them_one_search_after_another(make, sources):
    engine = Engine(make(), Choice())
    start = start_of(engine, sources, 3)
    prefix = torch.tensor([[1, 4, 6]])
    (one, _), (other, _) = engine.step_together([(prefix, start([0])), (prefix[:, :1], start([1]))])
    torch.testing.assert_close(one.log_probs(), engine.step(prefix, start([0]))[0].log_probs())
    torch.testing.assert_close(other.log_probs(), engine.step(prefix[:, :1], start([1]))[0].log_probs())
