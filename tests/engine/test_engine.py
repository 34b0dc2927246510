"""The engine reproduces the plain model: distributions, hypotheses and log-probabilities."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.decoding import BeamSearch, Greedy, MinimumLength, search
from translume.engine import EngineError, build_engine, self_test
from translume.errors import StaleStateError

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(width=3, nbest=3)], ids=["greedy", "beam"])
def test_a_search_gives_the_same_hypotheses_with_engine_and_plain_model(built, sources, strategy):
    source, mask = sources(5, 2, 19, 3)
    limits = torch.tensor([37, 5, 3, 41])
    found = [
        search(each.step, each.start(source, mask), bos=1, eos=2, strategy=strategy, limits=limits,
               rules=[MinimumLength(4)])
        for each in built
    ]  # fmt: skip
    for plain, fast in zip(*found, strict=True):
        assert [each.tokens for each in fast] == [each.tokens for each in plain]
        for one, other in zip(fast, plain, strict=True):
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


@settings(max_examples=6)
@given(data=st.data(), steps=st.integers(1, 6))
@torch.no_grad()
def test_rows_that_are_kept_repeated_or_reordered_continue_as_in_the_plain_model(built, sources, data, steps):
    """Select groups of equal size in order, as a search does, and arbitrary rows."""
    model, engine = built
    source, mask = sources(5, 2, 7, 3, 1, seed=steps)
    state, owner = engine.start(source, mask), torch.arange(5)
    prefix, width = torch.ones(5, 0, dtype=torch.long), 1
    for _ in range(steps):
        ids = data.draw(st.lists(st.integers(0, 16), min_size=len(owner), max_size=len(owner)))
        prefix = torch.cat([prefix, torch.tensor(ids)[:, None]], 1)
        belief, state = engine.step(prefix, state)
        wanted, _ = model.step(prefix, model.start(source[owner], mask[owner]))
        torch.testing.assert_close(belief.log_probs(), wanted.log_probs(), **CLOSE)
        count = len(owner) // width
        stay = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(sorted))
        wider = width if width > 1 else data.draw(st.integers(1, 3))
        origins = data.draw(st.lists(st.integers(0, width - 1), min_size=len(stay) * wider, max_size=len(stay) * wider))
        rows = [stay[place // wider] * width + origin for place, origin in enumerate(origins)]
        if data.draw(st.integers(0, 3)) == 0:
            rows = data.draw(st.lists(st.integers(0, len(owner) - 1), min_size=1, max_size=7))
        rows = torch.tensor(rows)
        state, owner, prefix = state.select(rows), owner[rows], prefix[rows]
        width = state.width


def test_a_state_used_twice_is_stale(make, sources):
    engine = build_engine(make())
    first = engine.start(*sources(5, 2))
    prefix = torch.ones(2, 1, dtype=torch.long)
    _, second = engine.step(prefix, first)
    second.select(torch.tensor([1]))
    uses = {"step": lambda: engine.step(prefix, first), "select": lambda: second.select(torch.tensor([0]))}
    for use in uses.values():
        with pytest.raises(StaleStateError) as caught:
            use()
        assert str(caught.value) == "this engine state was used already; only the newest state may be used"


def test_a_wrong_number_of_rows_is_refused(built, sources):
    _, engine = built
    with pytest.raises(ValueError, match=r"^found 1 rows, expected those of the state: 2$"):
        engine.step(torch.ones(1, 1, dtype=torch.long), engine.start(*sources(5, 2)))


def test_a_step_without_rows_gives_an_empty_distribution(make, sources):
    for changes in ({}, {"width": 32, "attention_heads": 2, "feed_forward": 16}):
        engine = build_engine(make(**changes))
        _, state = engine.step(torch.ones(2, 1, dtype=torch.long), engine.start(*sources(5, 2)))
        belief, state = engine.step(torch.ones(0, 2, dtype=torch.long), state.select(torch.empty(0, dtype=torch.long)))
        assert (belief.log_probs().shape, state.sentences, state.position) == ((0, 19), 0, 2)


def test_the_model_is_not_changed(make, sources):
    model = make(tie="target")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine = build_engine(model, "int8")
    engine.step(torch.ones(2, 1, dtype=torch.long), engine.start(*sources(5, 2)))
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("dtype", ["fp32", "int8", "bf16"])
def test_the_self_test_accepts_an_engine(make, dtype):
    model = make(width=64, attention_heads=2, feed_forward=144)
    findings = self_test(build_engine(model, dtype), model)
    assert findings.agrees
    assert findings.difference < {"fp32": 1e-4, "int8": 0.5, "bf16": 0.3}[dtype]
    assert isinstance(findings.alone_equals_batched, bool)
    assert self_test(build_engine(model, dtype), model, alone=False).alone_equals_batched is None


def test_the_self_test_rejects_an_engine_of_other_weights(make):
    model, other = make(), make()
    with torch.no_grad():
        next(iter(other.decoder.stack)).feed_forward.outer.weight.mul_(-1)
    engine = build_engine(other)
    findings = self_test(engine, model)
    assert not findings.agrees
    assert findings.difference > 1e-3


def test_unsupported_dtypes_and_devices_are_refused_by_name(make):
    with pytest.raises(EngineError) as caught:
        build_engine(make(), "int4")
    assert str(caught.value) == "engine: dtype: found 'int4'; did you mean 'int8'?"
    with pytest.raises(EngineError) as caught:
        build_engine(make().to("meta"))
    assert str(caught.value) == "engine: found a model on meta, expected one on the CPU"
