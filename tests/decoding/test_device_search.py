"""Searches on a device, here the CPU, find what the decoding loop finds, in fixed shapes and without reading back."""

import copy
import functools
import gc
import logging
import math
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.searching import beams, lists_of_rules, samplings
from torch.utils._python_dispatch import TorchDispatchMode

from translume.belief import exact_topk
from translume.checkpoint import build_model
from translume.config import (
    AdaptiveSettings,
    CopySettings,
    MixtureSettings,
    ModelSettings,
    ProjectedSettings,
    SigmoidSettings,
    SoftmaxSettings,
)
from translume.decoding import (
    BeamSearch,
    Coverage,
    DiverseBeam,
    ForbidFirst,
    ForbidTokens,
    ForcedPrefix,
    Greedy,
    MinimumLength,
    NoRepeatNgram,
    OnlyTokens,
    PromptedState,
    PromptedStep,
    RepetitionPenalty,
    Sampling,
    SearchError,
    StablePrefix,
    Truncation,
    best_of,
    decode,
    device_search,
    search,
)
from translume.decoding.device_search import SearchSizes, doubled, slots_for
from translume.decoding.device_step import SlotBeams, StepSettings, UnsupportedSearchError, best_of_rows
from translume.model.fixed_decoder import FixedDecoder
from translume.translator import device_searcher
from translume.translator.device_searcher import DeviceSearcher

BOS, EOS, SOURCE, TARGET = 1, 2, 17, 523
LENGTHS = (5, 2, 19, 3, 7)
VARIANTS = {
    "plain": {},
    "learned": {"positions": "learned", "norm": "post", "head": SoftmaxSettings(tie="target"), "embedding_norm": True},
    "rotary": {"positions": "rotary", "normalization": "rms", "activation": "swiglu", "bias": False},
    "relative": {"positions": "relative", "relative_buckets": 8, "relative_max_distance": 12, "head_width": 3},
    "none": {"positions": "none", "norm": "post", "activation": "gelu"},
    "ssru": {"decoder_mixing": "ssru"},
    "projected": {"head": ProjectedSettings()},
    "mixture": {"head": MixtureSettings(tie="none")},
}


@functools.cache
def make(name="plain", dtype=torch.float64, **changes):
    """A tiny network with random biases and gains. In fp64, rounding does not change the order of candidates."""
    values = {
        "width": 22, "feed_forward": 13, "encoder_layers": 1, "decoder_layers": 2, "attention_heads": 11,
        "dropout": 0.1, "max_positions": 79, "head": SoftmaxSettings(tie="none"),
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.inference_mode(mode=False):
        torch.manual_seed(7)
        model = build_model(ModelSettings(**{**values, **VARIANTS[name], **changes}), SOURCE, TARGET).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
            if getattr(model.head, "bias", None) is not None:
                model.head.bias[EOS] += 3.0
        return model.to(dtype)


@functools.cache
def searcher_of(name="plain", dtype=torch.float64):
    return DeviceSearcher(make(name, dtype))


def sources(seed=0, lengths=LENGTHS):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return torch.randint(3, SOURCE, mask.shape, generator=generator), mask


def prompts_for(count, size):
    tags = torch.arange(size - 1) + 11 * torch.arange(1, count + 1)[:, None]
    return torch.cat([torch.full((count, 1), BOS), tags], 1)


@torch.inference_mode()
def begin(searcher, words, state, prompts=None, running=None):
    prompts = prompts_for(state.memory.size(0), 1) if prompts is None else prompts
    return searcher.complete_search(state, prompts=prompts, eos=EOS, running=running, **words)


def run(search, numbers, steps=8):
    done = []
    while search.live:
        done += search.run(steps)
    assert sorted(done) == sorted(numbers)
    return [search.hypotheses(number) for number in numbers]


@torch.inference_mode()
def on_device(searcher, words, source, mask, prompts=None, steps=8):
    whole, numbers = begin(searcher, words, searcher.start(source, mask), prompts)
    found = run(whole, numbers, steps)
    whole.close()
    return found


@torch.inference_mode()
def by_loop(model, words, source, mask, prompts=None):
    state, step = model.start(source, mask), model.step
    if prompts is not None and prompts.size(1) > 1:
        step, state = PromptedStep(step), PromptedState(state, prompts)
    return search(step, state, bos=BOS, eos=EOS, **words)


def near(one, other, tolerance):
    return all(math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in zip(one, other, strict=True))


def assert_same(found, expected, tolerance=1e-5):
    for own, wanted in zip(found, expected, strict=True):
        assert [(each.tokens, each.finished_by) for each in own] == [(each.tokens, each.finished_by) for each in wanted]
        for each, other in zip(own, wanted, strict=True):
            assert near(each.log_probs, other.log_probs, tolerance)
            sums, wanted_sums = ([one.log_prob, one.score, one.terms.total] for one in (each, other))
            assert near(sums, wanted_sums, tolerance)
            assert (each.terms.divisor, each.terms.coverage) == (other.terms.divisor, 0.0)


limits_of_five = st.lists(st.integers(1, 13), min_size=5, max_size=5).map(torch.tensor)


@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(VARIANTS)),
    strategy=beams() | samplings(),
    limits=limits_of_five,
    rules=lists_of_rules(
        st.builds(ForbidFirst, st.lists(st.integers(0, TARGET - 1), unique=True, max_size=9).map(tuple))
    ),
    prompt=st.integers(1, 4),
    seed=st.integers(0, 999),
    steps=st.sampled_from([1, 4, 8]),
)
def test_a_search_on_the_device_finds_what_the_decoding_loop_finds(name, strategy, limits, rules, prompt, seed, steps):
    words = {"strategy": strategy, "limits": limits, "rules": rules}
    source, mask = sources(seed)
    found = on_device(searcher_of(name), words, source, mask, prompts_for(5, prompt), steps)
    try:
        assert_same(found, by_loop(make(name), words, source, mask, prompts_for(5, prompt)))
    except SearchError:  # nothing is allowed
        assert None in found


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(width=5, nbest=5)])
def test_a_search_in_fp32_finds_what_the_decoding_loop_finds(strategy):
    words = {"strategy": strategy, "limits": torch.tensor([3, 17, 1, 13, 12]), "rules": [ForbidTokens((0, 1))]}
    found = on_device(searcher_of("plain", torch.float32), words, *sources())
    assert_same(found, by_loop(make("plain", torch.float32), words, *sources()))


def test_a_search_in_bf16_sums_log_probabilities_in_fp32():
    """Attention may round otherwise than in the loop, so only the first tokens are sure to be the same."""
    words = {"strategy": Greedy(), "limits": torch.tensor([1] * 5), "rules": []}
    found = on_device(searcher_of("plain", torch.bfloat16), words, *sources())
    assert_same(found, by_loop(make("plain", torch.bfloat16), words, *sources()), tolerance=0.01)
    logarithm = torch.tensor(found[0][0].log_prob)
    assert logarithm != logarithm.bfloat16()


@settings(max_examples=60)
@given(
    rows=st.integers(1, 3), size=st.sampled_from([1, 2, 63, 127, 128, 1151, 1280, 1409]), count=st.integers(1, 11),
    values=st.integers(1, 40), seed=st.integers(0, 999),
)  # fmt: skip
def test_the_best_of_rows_are_ordered_by_value_and_then_by_id(rows, size, count, values, seed):
    scores = torch.randint(values, (rows, size), generator=torch.Generator().manual_seed(seed)).float()
    scores[:, ::3] = -math.inf
    count = min(count, size)
    found, ids = best_of_rows(scores, count)
    wanted, wanted_ids = exact_topk(scores, count)
    assert torch.equal(found, wanted)
    assert torch.equal(ids, wanted_ids)


@settings(max_examples=5)
@given(strategy=beams(), seed=st.integers(0, 99))
def test_ties_between_hypotheses_and_tokens_are_ordered_as_in_the_decoding_loop(strategy, seed):
    """The logits do not depend on the prefix, so that products cannot be rounded differently."""
    model = copy.deepcopy(make())
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.randint(3, (TARGET,), generator=torch.Generator().manual_seed(seed)))
    words = {"strategy": strategy, "limits": torch.tensor([2, 3, 7, 1, 5]), "rules": [ForbidTokens((5, 400))]}
    assert_same(on_device(DeviceSearcher(model), words, *sources()), by_loop(model, words, *sources()))


MIXED = [Greedy(), BeamSearch(width=3, nbest=2)]


@pytest.mark.parametrize(
    ("strategy", "slots"),
    [
        *((MIXED[0], 5), (MIXED[1], 1), (MIXED[1], 2)),
        (Sampling(keys=torch.tensor([3, 1, 4, 1, 5]), width=2, nbest=2), 2),
    ],
)
def test_sentences_that_wait_for_a_slot_have_the_same_results(monkeypatch, strategy, slots):
    monkeypatch.setattr(device_searcher, "MAX_SLOTS", slots)
    words = {"strategy": strategy, "limits": torch.tensor([3, 13, 7, 2, 11]), "rules": []}
    searcher = DeviceSearcher(make())
    whole, numbers = begin(searcher, words, searcher.start(*sources()))
    assert (whole.sizes.slots, whole.live, whole.waiting) == (slots, 5, 5)
    whole.run(1)
    assert whole.waiting == 5 - slots
    assert_same(run(whole, numbers), by_loop(make(), words, *sources()))


@settings(max_examples=6)
@given(
    strategy=st.sampled_from(MIXED),
    waits=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    prompt=st.integers(1, 3),
    removed=st.integers(0, 4),
    most=st.sampled_from([2, 512]),
    name=st.sampled_from(["plain", "rotary", "ssru"]),
)
def test_a_sentence_that_enters_a_running_search_has_the_same_result(strategy, waits, prompt, removed, most, name):
    """Each sentence enters some steps after the one before; one is removed before the last enters."""
    searcher, (source, mask), limits = DeviceSearcher(make(name)), sources(3), torch.tensor([7, 13, 5, 11, 3])
    prompts = prompts_for(5, prompt)
    words = {"strategy": strategy, "rules": [MinimumLength(3), NoRepeatNgram(3)]}
    found, running, numbers = {}, None, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_searcher, "MAX_SLOTS", most)
        for sentence, wait in enumerate(waits):
            if sentence == 4 and removed != 4:
                running.remove(numbers[removed])
                found.pop(numbers[removed], None)
            one = slice(sentence, sentence + 1)
            state = searcher.start(source[one, : LENGTHS[sentence]], mask[one, : LENGTHS[sentence]])
            own = {**words, "limits": limits[one]}
            running, (numbers[sentence],) = begin(searcher, own, state, prompts[one], running)
            for _ in range(wait):
                found |= {number: running.hypotheses(number) for number in running.run(3)}
        while running.live:
            found |= {number: running.hypotheses(number) for number in running.run(3)}
    expected = by_loop(make(name), {**words, "limits": limits}, source, mask, prompts)
    kept = [sentence for sentence in range(5) if sentence != removed or sentence == 4]
    assert found.keys() == {numbers[sentence] for sentence in kept}
    assert_same([found[numbers[sentence]] for sentence in kept], [expected[sentence] for sentence in kept])


def test_a_running_search_grows_with_its_sentences():
    searcher, words = DeviceSearcher(make(max_positions=211)), {"strategy": BeamSearch(width=2), "rules": []}
    first = sources(1, (3,))
    running, numbers = begin(searcher, {**words, "limits": torch.tensor([23])}, searcher.start(*first))
    assert running.sizes == SearchSizes(slots=1, source=64, target=64)
    running.run(5)
    second = sources(2, (71, 5, 67))
    _, more = begin(searcher, {**words, "limits": torch.tensor([7, 101, 3])}, searcher.start(*second), running=running)
    assert running.sizes == SearchSizes(slots=4, source=128, target=128)
    found = run(running, [*numbers, *more])
    model = make(max_positions=211)
    assert_same(found[:1], by_loop(model, {**words, "limits": torch.tensor([23])}, *first))
    assert_same(found[1:], by_loop(model, {**words, "limits": torch.tensor([7, 101, 3])}, *second))


def test_the_memory_decides_how_many_sentences_share_a_step(monkeypatch):
    words = {"strategy": Greedy(), "limits": torch.tensor([3, 7, 2, 5, 4]), "rules": []}
    made, room, whole = [], [3], FixedDecoder.__init__

    def limited(decoder, model, *, slots, **sizes):
        made.append(slots)
        if slots > room[0]:
            raise torch.OutOfMemoryError
        whole(decoder, model, slots=slots, **sizes)

    monkeypatch.setattr(FixedDecoder, "__init__", limited)
    for most, wanted in ((3, [16, 8, 4, 2, 16]), (1, [16, 8, 4, 2, 1, 16])):  # it tries to grow when they enter
        made.clear()
        room[0] = most
        assert_same(on_device(DeviceSearcher(make()), words, *sources()), by_loop(make(), words, *sources()))
        assert made == wanted
    room[0] = 0
    assert begin(DeviceSearcher(make()), words, make().start(*sources())) is None
    room[0] = 99
    monkeypatch.setattr(device_searcher, "CPU_BYTES", 1)
    assert begin(DeviceSearcher(make()), words, make().start(*sources()))[0].sizes.slots == 1


def test_a_closed_search_is_used_again_with_the_same_settings_only():
    searcher, limits = DeviceSearcher(make()), torch.tensor([9, 5, 13, 7, 11])
    words = {"strategy": BeamSearch(width=3), "limits": limits, "rules": [ForbidTokens((0, 1))]}
    first, numbers = begin(searcher, words, searcher.start(*sources()))
    run(first, numbers)
    first.close()
    other = {**words, "strategy": BeamSearch(width=2)}
    assert begin(searcher, other, searcher.start(*sources()))[0] is not first
    again, numbers = begin(searcher, words, searcher.start(*sources(1)))
    assert again is first
    assert_same(run(again, numbers), by_loop(make(), words, *sources(1)))
    again.close()
    searcher.release_memory()
    assert begin(searcher, words, searcher.start(*sources()))[0] is not first


def test_a_search_does_not_keep_the_weights_of_a_forgotten_model():
    model = copy.deepcopy(make())
    searcher, kept = DeviceSearcher(model), weakref.ref(model.head.bias)
    on_device(searcher, {"strategy": Greedy(), "limits": torch.tensor([3] * 5), "rules": []}, *sources())
    del model, searcher
    gc.collect()
    assert kept() is None


def test_threads_share_a_searcher():
    searcher = searcher_of()
    words = {"strategy": BeamSearch(width=3, nbest=3), "limits": torch.tensor([9, 5, 13, 7, 11]), "rules": []}
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda seed: on_device(searcher, words, *sources(seed)), range(4))]
    for seed, each in enumerate(found):
        assert_same(each, by_loop(make(), words, *sources(seed)))


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(width=3, nbest=3)])
@torch.inference_mode()
def test_the_stable_prefix_is_that_of_the_decoding_loop(strategy):
    searcher, prompts = searcher_of(), prompts_for(5, 2)
    words = {"strategy": strategy, "limits": torch.tensor([13, 7, 5, 11, 12]), "rules": [MinimumLength(5)]}
    state = PromptedState(searcher.start(*sources()), prompts)
    said, known = [], {number: [] for number in range(5)}
    stable = StablePrefix(lambda number, ids: known.__setitem__(number, list(ids)), range(5))

    def watched():
        for beam in decode(PromptedStep(searcher.step), state, bos=BOS, eos=EOS, **words):
            stable(beam)
            said.append(dict(known))
            yield beam

    best_of(watched(), strategy, 5)
    whole, numbers = begin(searcher, words, searcher.start(*sources()), prompts)
    assert [whole.stable_prefix(number, every=False) for number in numbers] == [[]] * 5
    certain = []
    for expected in said:
        whole.run(1)
        assert [whole.stable_prefix(number, every=False) for number in numbers] == [expected[each] for each in numbers]
        certain += [(number, whole.stable_prefix(number, every=True)) for number in numbers]
    while whole.live:
        whole.run(8)
    found = [whole.hypotheses(number) for number in numbers]
    for number, prefix in certain:  # whichever of the hypotheses is chosen
        assert all(list(each.tokens[: len(prefix)]) == prefix for each in found[number])


def test_a_nan_fails_its_sentence_alone(monkeypatch):
    monkeypatch.setattr(device_searcher, "MAX_SLOTS", 1)
    model, limits = make(), torch.tensor([9, 5, 13, 7, 11])
    for strategy in (*MIXED, Sampling(keys=torch.arange(5), width=2, truncation=Truncation(top_p=0.9))):
        searcher, words = DeviceSearcher(model), {"strategy": strategy, "limits": limits, "rules": [MinimumLength(3)]}
        state = searcher.start(*sources())
        broken = torch.zeros(5, 1, 1, 1, dtype=torch.float64)
        broken[1] = math.nan
        state = replace(state, cross=tuple(replace(each, values=each.values + broken) for each in state.cross))
        found = run(*begin(searcher, words, state))
        expected = by_loop(model, words, *sources())
        assert found[1] is None
        assert_same([found[0], *found[2:]], [expected[0], *expected[2:]])


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("strategy", MIXED)
def test_a_nan_at_a_late_place_is_not_read_by_the_next_sentence_in_the_slot(monkeypatch, strategy, removed):
    """Nor that of a sentence that is removed before the host knows of it."""
    monkeypatch.setattr(device_searcher, "MAX_SLOTS", 1)
    model = copy.deepcopy(make("learned"))
    with torch.no_grad():
        model.decoder.embedding.positions.table[6] = math.nan
    searcher, words = DeviceSearcher(model), {"strategy": strategy, "rules": [MinimumLength(13)]}
    source, mask = sources()
    state = searcher.start(source[:2], mask[:2])
    whole, numbers = begin(searcher, {**words, "limits": torch.tensor([13, 5])}, state)
    whole.run(8)
    if removed:
        whole.remove(numbers[0])
    while whole.live:
        whole.run(8)
    assert removed or whole.hypotheses(numbers[0]) is None
    expected = by_loop(model, {**words, "limits": torch.tensor([5])}, source[1:2], mask[1:2])
    assert_same([whole.hypotheses(numbers[1])], expected)
    whole.close()


def test_a_sentence_without_an_allowed_token_has_no_hypotheses():
    words = {
        "strategy": BeamSearch(width=3),
        "limits": torch.tensor([9] * 5),
        "rules": [OnlyTokens(()), MinimumLength(2)],
    }
    assert on_device(searcher_of(), words, *sources()) == [None] * 5
    with pytest.raises(SearchError, match="every next token is impossible or forbidden"):
        by_loop(make(), words, *sources())


@pytest.mark.parametrize(("strategy", "rules", "reason"), [
    (DiverseBeam(group=BeamSearch(width=2), groups=2), (), "the strategy DiverseBeam"),
    (BeamSearch(width=3, coverage=Coverage(weight=0.2)), (), "decoding.coverage_penalty"),
    (Greedy(), [ForcedPrefix([[3]] * 5)], "the rule ForcedPrefix"),
    (Greedy(), [RepetitionPenalty(0.5)], "the rule RepetitionPenalty"),
    (Greedy(), [NoRepeatNgram(2), NoRepeatNgram(3)], "two rules NoRepeatNgram"),
    (Greedy(), [ForbidTokens((EOS,))], "a rule that forbids EOS"),
])  # fmt: skip
def test_a_search_that_the_device_does_not_support_is_left_to_the_loop(strategy, rules, reason):
    searcher, words = searcher_of(), {"strategy": strategy, "limits": torch.tensor([9] * 5), "rules": rules}
    assert begin(searcher, words, searcher.start(*sources())) is None
    with pytest.raises(UnsupportedSearchError, match=f"^{reason}$"):
        searcher.settings_of(strategy, rules, eos=EOS, prompt=1)


@pytest.mark.parametrize(("head", "reason"), [
    (CopySettings(tie="none"), "the head is a CopyHead"),
    (SigmoidSettings(tie="none"), "the head is a SigmoidHead"),
    (AdaptiveSettings(tie="target"), "the target embedding is not one table with all tokens of the head"),
])  # fmt: skip
def test_a_head_that_has_no_logits_is_left_to_the_loop(head, reason):
    model = build_model(ModelSettings(width=8, encoder_layers=1, decoder_layers=1, head=head), SOURCE, TARGET).eval()
    searcher = DeviceSearcher(model)
    with pytest.raises(UnsupportedSearchError, match=f"^{reason}$"):
        searcher.settings_of(Greedy(), (), eos=EOS, prompt=1)
    words = {"strategy": Greedy(), "limits": torch.tensor([9] * 5), "rules": []}
    assert begin(searcher, words, searcher.start(*sources())) is None


def test_targets_that_the_model_cannot_read_and_models_in_training_are_left_to_the_loop():
    searcher, words = searcher_of(), {"strategy": Greedy(), "rules": []}
    limits = torch.tensor([9] * 4 + [80])
    assert begin(searcher, {**words, "limits": limits}, searcher.start(*sources())) is None
    assert begin(searcher, {**words, "limits": limits - 1}, searcher.start(*sources())) is not None
    trained = DeviceSearcher(copy.deepcopy(make()).train())
    assert begin(trained, {**words, "limits": torch.tensor([9] * 5)}, trained.start(*sources())) is None


VIEWS = {
    "view", "t", "transpose", "detach", "expand", "expand_as", "split", "split_with_sizes", "unbind", "slice", "select",
    "unsqueeze", "alias", "permute", "flatten", "unflatten", "chunk", "view_as", "squeeze", "narrow", "mT", "unfold",
}  # fmt: skip
READS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "_to_cpu", "cpu", "masked_select", "unique"}


class Counted(TorchDispatchMode):
    """Counts the operations in its block by name."""

    def __enter__(self):
        self.calls = Counter()
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    @property
    def reads(self):
        return {name: count for name, count in self.calls.items() if name in READS}

    @property
    def operations(self):
        return sum(count for name, count in self.calls.items() if name not in VIEWS)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative"])
@pytest.mark.parametrize(("strategy", "most"), [
    (Greedy(), 225),
    (BeamSearch(width=5, nbest=2), 250),
    (Sampling(keys=torch.arange(5), width=2), 275),
    (Sampling(keys=torch.arange(5), width=2, truncation=Truncation(top_k=50, top_p=0.9)), 290),
])  # fmt: skip
@torch.inference_mode()
def test_a_step_of_six_layers_takes_few_operations_and_reads_nothing_back(strategy, most, positions):
    settings = ModelSettings(
        width=24, feed_forward=13, encoder_layers=1, decoder_layers=6, attention_heads=3, positions=positions,
        max_positions=79, head=SoftmaxSettings(tie="none"),
    )  # fmt: skip
    searcher = DeviceSearcher(build_model(settings, SOURCE, 1301).eval())
    words = {"strategy": strategy, "limits": torch.tensor([31] * 5), "rules": [ForbidTokens((0, 1)), MinimumLength(31)]}
    whole, _ = begin(searcher, words, searcher.start(*sources()))
    whole.run(2)
    with Counted() as counted:
        whole.step()
    assert counted.calls["scaled_dot_product_attention"] == 12
    assert counted.reads == {}
    assert 150 <= counted.operations <= most
    with Counted() as again:
        whole.step()
    assert again.calls == counted.calls


WITHOUT_READS = [
    (Greedy(), []),
    (BeamSearch(width=5, nbest=3, stop="first"), [MinimumLength(3), ForbidTokens((0, 3)), ForbidFirst((5,))]),
    (BeamSearch(width=2), [NoRepeatNgram(2), RepetitionPenalty(1.2)]),
    (Sampling(keys=torch.zeros(4, dtype=torch.long), truncation=Truncation(top_p=0.9, eta=0.01)), []),
    (Sampling(keys=torch.zeros(4, dtype=torch.long), width=2, truncation=Truncation(top_k=5)), []),
]


@pytest.mark.parametrize(
    ("name", "strategy", "rules"),
    [
        *(("plain", *each) for each in WITHOUT_READS),
        *((name, *WITHOUT_READS[number]) for number, name in enumerate(["rotary", "relative", "ssru"], start=1)),
    ],
)
def test_a_step_needs_no_number_from_its_device(name, strategy, rules):
    nowhere = torch.device("meta")  # without data: every read, and every use of two devices, is an error there
    model = copy.deepcopy(make(name, torch.float32)).to(nowhere)
    words = StepSettings.from_strategy(strategy, rules, eos=EOS, prompt=2, vocabulary=TARGET)
    slots = torch.zeros(3, dtype=torch.long, device=nowhere)
    with torch.inference_mode():
        state = model.start(slots[:, None].expand(-1, 7), torch.ones(3, 7, dtype=torch.bool, device=nowhere))
        decoder = FixedDecoder(model, slots=4, width=words.width, source=8, target=16)
        beams = SlotBeams(words, decoder, 4, 16, nowhere)
        decoder.enter(slots, state, slice(0, 3), slots[:, None].expand(-1, 2))
        for _ in range(2):
            beams.step(16)
        floats, integers = beams.results(slots[:2], 16)
    assert floats.shape == (2, words.nbest, 3 + 16)
    assert integers.shape == (2, words.nbest, 2 + 16)


class Recorder:
    """A capture whose replay runs the function again, as a graph on a GPU does."""

    def __init__(self, fails=False):
        self.fails, self.calls = fails, []

    def warm_up(self, function):
        self.calls.append("warm up")
        function()

    def __call__(self, function):
        self.calls.append("capture")
        if self.fails:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        return lambda: (self.calls.append("replay"), function())


@pytest.mark.parametrize("fails", [False, True])
def test_steps_are_captured_at_their_second_time_and_a_failure_is_noted_once(caplog, fails):
    device_search._note_failure.cache_clear()
    captures = []
    searcher = DeviceSearcher(make(), lambda: captures.append(Recorder(fails)) or captures[-1])
    words = {"strategy": Greedy(), "limits": torch.tensor([45, 9, 31, 5, 3]), "rules": [MinimumLength(45)]}
    with caplog.at_level(logging.WARNING):
        for seed in range(3):
            assert_same(on_device(searcher, words, *sources(seed)), by_loop(make(), words, *sources(seed)))
    noted = "decoding without CUDA graphs, which is slower: operation not permitted when stream is capturing"
    assert [record.getMessage() for record in caplog.records] == ([noted] if fails else [])
    encoding, stepping = ([call for call in each.calls if call != "replay"] for each in captures)
    assert encoding == ["warm up", "capture"]
    # Up to 32 places of a target are read at first, then 64. After a failure nothing is captured.
    assert stepping == ["warm up", "capture"] * (1 if fails else 2)
    assert all(("replay" in each.calls) != fails for each in captures)


@settings(max_examples=5)
@given(lengths=st.lists(st.integers(1, 79), min_size=1, max_size=17), name=st.sampled_from(["plain", "relative"]))
def test_a_captured_encoder_returns_what_the_model_returns(lengths, name):
    """A table of 79 positions is shorter than the padded length of longer sources; more than 16 are not captured."""
    model, source, mask = make(name), *sources(5, lengths)
    searcher = DeviceSearcher(model, Recorder)
    with torch.inference_mode():
        wanted = model.start(source, mask)
        for _ in range(3):
            found = searcher.start(source, mask)
        count, length = mask.shape
        padded = 64 if length <= 64 else 79 if name == "plain" else 128
        assert found.memory_mask.shape[1] == (length if count > 16 else padded)
        assert torch.equal(found.memory_mask[:, :length], mask)
        assert torch.allclose(found.memory[:, :length][mask], wanted.memory[mask])
        for own, other in zip(found.cross, wanted.cross, strict=True):
            for part, expected in zip(own.read(length), other.read(length), strict=True):
                assert torch.allclose(part.transpose(1, 2)[mask], expected.transpose(1, 2)[mask])


@given(length=st.integers(1, 5000), least=st.sampled_from([32, 64]))
def test_padded_lengths_are_few(length, least):
    padded = doubled(length, least)
    assert padded >= length
    assert padded == least or padded < 2 * length
    assert (padded // least).bit_count() == 1


def test_numbers_of_slots_are_few():
    assert sorted({slots_for(count, 512) for count in range(1, 2000)}) == [1, 4, 16, 64, 256, 512]
    assert [slots_for(9, 1), slots_for(9, 5), slots_for(4, 512), slots_for(5, 512)] == [1, 5, 4, 16]
