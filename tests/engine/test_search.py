"""The search in the kernels equals the decoding loop with the same engine, bit for bit."""

import copy
import functools
import gc
import math
import random
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.decoding.searching import beams, lists_of_rules, samplings

from translume.checkpoint import build_model, unique_tensors
from translume.config import CopySettings, ModelSettings, SampledSettings, SoftmaxSettings
from translume.decoding import (
    BannedPhrases,
    BeamSearch,
    Coverage,
    DiverseBeam,
    ForbidTokens,
    Greedy,
    LengthPenalty,
    MinimumLength,
    NoRepeatNgram,
    PromptedState,
    PromptedStep,
    RepetitionPenalty,
    Sampling,
    SearchError,
    Spellings,
    TextPrefix,
    search,
)
from translume.engine import Draft, Engine, build_engine
from translume.engine.network import Network
from translume.errors import ModelFolderError, SettingsError, StaleStateError
from translume.kernels.loading import has_kernels, kernels
from translume.translator.alignment import cross_attention

LENGTHS = (5, 2, 19, 3, 7)
WIDE = {"width": 32, "attention_heads": 2, "feed_forward": 48, "encoder_layers": 1, "decoder_layers": 2}
pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")

LETTERS = random.Random(5)
SPELLED = [b"", b"", b"", *("".join(LETTERS.choices("ab é", k=LETTERS.randint(1, 4))).encode() for _ in range(520))]
SPELLINGS = Spellings(SPELLED)


@functools.cache
def banned(*phrases):
    return BannedPhrases(SPELLED, phrases, str.isalpha)


TEXT_RULES = [
    st.sampled_from([("a",), ("ab", "é"), ("a b", "ba", "bbé")]).map(lambda phrases: banned(*phrases)),
    st.builds(
        TextPrefix,
        st.just(SPELLINGS),
        st.text("ab é", min_size=1, max_size=12).map(str.encode),
        st.lists(st.booleans(), min_size=5, max_size=5),
    ),
]


@pytest.fixture(scope="module")
def large_vocabulary():
    """A network with a vocabulary of several blocks and many tokens of equal weights, and an engine of it."""
    torch.manual_seed(11)
    head = SoftmaxSettings(tie="none")
    model = build_model(ModelSettings(**WIDE, dropout=0.0, max_positions=79, head=head), 17, 523).eval()
    with torch.no_grad():
        model.head.weight.mul_(3.0)
        model.head.weight[300:511] = model.head.weight[3:214]
        model.head.bias[300:511] = model.head.bias[3:214]
    return model, build_engine(model)


@pytest.fixture(scope="module")
def copying():
    """A network that copies source tokens, some of which are not target tokens and some the same one, and an engine."""
    torch.manual_seed(13)
    head = CopySettings(tie="none")
    model = build_model(ModelSettings(**WIDE, dropout=0.0, max_positions=79, head=head), 17, 523).eval()
    with torch.no_grad():
        model.head.softmax.weight.mul_(3.0)
        model.head.query.weight.mul_(3.0)
        model.head.gate.weight.normal_()
        model.head.gate.bias.zero_()
        model.head.copied[:] = torch.tensor([-1, -1, 2, 522, 5, 5, -1, 300, 128, 127, 6, 7, 3, 3, 4, 200, -1])
    return model, build_engine(model)


@pytest.fixture(scope="module", params=["softmax", "copy"])
def searched(request):
    """A network with a linear head and one with a copy head, each with an engine."""
    return request.getfixturevalue({"softmax": "large_vocabulary", "copy": "copying"}[request.param])


def search_options(strategy, limits, rules=()):
    return {"bos": 1, "eos": 2, "strategy": strategy, "limits": torch.tensor(limits), "rules": list(rules)}


def complete_search(engine, state, *, bos, running=None, prompts=None, **words):
    prompts = torch.full((state.sentences, 1), bos) if prompts is None else prompts
    return engine.complete_search(state, prompts=prompts, running=running, **words)


def kernel_search(engine, state, words, steps=1 << 30):
    whole, numbers = complete_search(engine, state, **words)
    done = []
    while whole.live:
        done += whole.run(steps)
    assert sorted(done) == list(numbers)
    return [whole.hypotheses(number) for number in numbers]


limits_of_five = st.lists(st.integers(1, 71), min_size=5, max_size=5)


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@settings(max_examples=3)
@given(strategy=beams(), limits=limits_of_five, seed=st.integers(0, 99), steps=st.sampled_from([1, 7, 99]))
def test_the_kernels_search_equals_the_decoding_loop(fresh, whole, sources, dtype, strategy, limits, seed, steps):
    if dtype == "int8" and not kernels().int8:
        pytest.skip("this processor has no int8 products")
    _, engine = fresh(whole, dtype)
    words = search_options(strategy, limits, [ForbidTokens((0, 1)), MinimumLength(4)])
    source, mask = sources(*LENGTHS, seed=seed)
    wanted = search(engine.step, engine.start(source, mask), **words)
    assert kernel_search(engine, engine.start(source, mask), words, steps) == wanted


@settings(max_examples=10)
@given(
    strategy=beams(),
    limits=limits_of_five,
    seed=st.integers(0, 999),
    forbidden=st.sets(st.integers(3, 522), max_size=3),
    shortest=st.integers(0, 9),
)
def test_ties_are_ordered_as_in_the_decoding_loop(
    large_vocabulary, sources, strategy, limits, seed, forbidden, shortest
):
    _, engine = large_vocabulary
    words = search_options(strategy, limits, [ForbidTokens(tuple(forbidden)), MinimumLength(shortest)])
    source, mask = sources(*LENGTHS, seed=seed)
    wanted = search(engine.step, engine.start(source, mask), **words)
    assert kernel_search(engine, engine.start(source, mask), words) == wanted


@settings(max_examples=25)
@given(
    strategy=beams(coverages=(None, Coverage(weight=0.2), Coverage(weight=3.0))) | samplings(),
    limits=limits_of_five,
    seed=st.integers(0, 999),
    rules=lists_of_rules(*TEXT_RULES),
    short=st.booleans(),
)
def test_every_rule_has_the_same_effect_as_in_the_decoding_loop(
    searched, sources, strategy, limits, seed, rules, short
):
    _, engine = searched
    start = engine.start if strategy.coverage is None else engine.start_with_attention
    words = search_options(strategy, limits, rules)
    source, mask = sources(*((5, 2, 9, 3, 7) if short else LENGTHS), seed=seed)
    whole = complete_search(engine, start(source, mask), **words)
    found = [None] if whole is None else kernel_search(engine, start(source, mask), words, 9)
    try:
        assert found == search(engine.step, start(source, mask), **words)
    except SearchError:  # a prefix is too long, or nothing is allowed
        assert None in found


@settings(max_examples=10)
@given(strategy=beams(), seed=st.integers(0, 99), some=st.sets(st.integers(0, 4), min_size=1))
def test_a_sentence_has_the_same_result_alone_and_in_a_batch(searched, sources, strategy, seed, some):
    assume(len(some) > 1)
    _, engine = searched
    source, mask = sources(*LENGTHS, seed=seed)
    chosen, limits = torch.tensor(sorted(some)), [23, 41, 5, 71, 12]
    words = search_options(strategy, [limits[number] for number in chosen.tolist()])
    together = kernel_search(engine, engine.start(source[chosen], mask[chosen]), words)
    for number, found in zip(chosen.tolist(), together, strict=True):
        alone = engine.start(
            source[number : number + 1, : LENGTHS[number]], mask[number : number + 1, : LENGTHS[number]]
        )
        assert kernel_search(engine, alone, search_options(strategy, [limits[number]])) == [found]


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@settings(max_examples=2)
@given(strategy=beams(), seed=st.integers(0, 99))
def test_the_decoding_loop_gives_the_same_result_alone_and_in_a_batch(fresh, whole, sources, dtype, strategy, seed):
    if dtype == "int8" and not kernels().int8:
        pytest.skip("this processor has no int8 products")
    _, engine = fresh(whole, dtype)
    source, mask = sources(*LENGTHS, seed=seed)
    limits = [13, 17, 5, 11, 7]
    together = search(engine.step, engine.start(source, mask), **search_options(strategy, limits))
    for number, found in enumerate(together):
        alone = engine.start(source[number : number + 1], mask[number : number + 1])
        assert search(engine.step, alone, **search_options(strategy, limits[number : number + 1])) == [found]


@settings(max_examples=8)
@given(
    strategy=beams(),
    seed=st.integers(0, 99),
    waits=st.lists(st.integers(0, 9), min_size=5, max_size=5),
    prompt=st.integers(0, 3),
    removed=st.integers(0, 4),
)
def test_a_sentence_that_enters_a_running_search_has_the_same_result(
    searched, sources, strategy, seed, waits, prompt, removed
):
    """Each sentence enters some steps after the one before; one is removed before the last enters."""
    _, engine = searched
    (source, mask), limits = sources(*LENGTHS, seed=seed), [23, 41, 5, 71, 12]
    prompts = torch.cat([torch.ones(5, 1, dtype=torch.long), source[:, :1].expand(-1, prompt)], 1)
    found, running = {}, None

    def options_of(number):
        rules = [NoRepeatNgram(3), banned("ba", "é"), TextPrefix(SPELLINGS, b"ab a", [number % 2 == 0])]
        return search_options(strategy, limits[number : number + 1], rules)

    def run(steps):
        found.update({number: running.hypotheses(number) for number in running.run(steps)})

    for number, wait in enumerate(waits):
        options = options_of(number)
        state = engine.start(source[number : number + 1], mask[number : number + 1])
        words = {"running": running, "prompts": prompts[number : number + 1], **options}
        running, numbers = complete_search(engine, state, **words)
        assert list(numbers) == [number]
        if number == 4 and removed not in found:
            running.remove(removed)
        run(wait)
    while running.live:
        run(7)
    for number, each in found.items():
        options = options_of(number)
        state = PromptedState(engine.start(source[number : number + 1], mask[number : number + 1]),
                              prompts[number : number + 1])  # fmt: skip
        assert search(PromptedStep(engine.step), state, **options) == [each]
    assert {*found, removed} == set(range(5))


@pytest.fixture(scope="module")
def drafts(searched):
    """The network itself, and ones with less and less similar weights, of which the last reads no copies."""
    drafts = [searched[1]]
    for noise in (0.01, 0.1, 1.0):
        similar = copy.deepcopy(searched[0])
        torch.manual_seed(3)
        with torch.no_grad():
            for weight in similar.parameters():
                weight.add_(noise * weight.std(unbiased=False) * torch.randn_like(weight))
        drafts.append(build_engine(similar))
    return [Draft(each._searched, each.start) for each in drafts]


@settings(max_examples=40)
@given(
    strategy=st.just(Greedy()) | samplings().map(lambda many: replace(many, keys=many.keys[:1], width=1, nbest=1)),
    number=st.integers(0, 3),
    count=st.integers(1, 9),
    limit=st.integers(1, 71),
    length=st.integers(1, 19),
    seed=st.integers(0, 999),
    rules=lists_of_rules(*TEXT_RULES),
    prompt=st.lists(st.integers(3, 522), max_size=3),
    steps=st.sampled_from([1, 7, 99]),
)
def test_a_draft_changes_nothing(
    searched, drafts, sources, strategy, number, count, limit, length, seed, rules, prompt, steps
):
    _, engine = searched
    source, mask = sources(length, seed=seed)
    prompts, words = torch.tensor([[1, *prompt]]), search_options(strategy, [limit], rules)
    begin = functools.partial(replace(drafts[number], count=count).begin, source.numpy(), mask.numpy())
    results = []
    for draft in (None, begin):
        begun = complete_search(engine, engine.start(source, mask), prompts=prompts, draft=draft, **words)
        assume(begun is not None)
        search, (place,) = begun
        while search.live:
            search.run(steps)
        results.append(search.hypotheses(place))
    assert results[0] == results[1]


def test_a_step_checks_all_tokens_of_a_good_draft(large_vocabulary, sources):
    _, engine = large_vocabulary
    source, mask = sources(7)
    begin = functools.partial(Draft(engine._searched, engine.start, 4).begin, source.numpy(), mask.numpy())
    running, (number,) = complete_search(
        engine, engine.start(source, mask), draft=begin, **search_options(Greedy(), [31])
    )
    steps = 0
    while running.live:
        running.run(1)
        steps += 1
    ((best, *_),) = [running.hypotheses(number)]
    assert len(best.tokens) > 5
    assert steps == math.ceil(len(best.tokens) / 5)


def test_a_sentence_with_a_draft_is_searched_with_others(large_vocabulary, sources):
    _, engine = large_vocabulary
    words, running, every = search_options(Greedy(), [23]), None, {}
    for seed in (3, 5):
        source, mask = sources(9, seed=seed)
        begin = functools.partial(Draft(engine._searched, engine.start).begin, source.numpy(), mask.numpy())
        running, (number,) = complete_search(engine, engine.start(source, mask), running=running, draft=begin, **words)
        every[number] = search(engine.step, engine.start(source, mask), **words)[0]
        running.run(2)
    while running.live:
        running.run(1)
    assert {number: running.hypotheses(number) for number in every} == every


def test_a_cache_that_grows_keeps_live_sentences_only(large_vocabulary, sources):
    _, engine = large_vocabulary
    words = search_options(BeamSearch(width=3), [11, 71, 5, 67, 2])
    running, _ = complete_search(engine, engine.start(*sources(*LENGTHS, seed=3)), **words)
    (entry,) = running._entries
    capacity, live = entry.cache.past.shape[3], running.live
    while running.live and entry.cache.past.shape[3] == capacity:
        live = running.live
        running.run(1)
    assert 0 < live < 5
    assert entry.cache.past.shape[1] == entry.cache.cross.shape[1] == live


def test_copies_have_the_probabilities_of_the_plain_model(copying, sources):
    model, engine = copying
    source, mask = sources(*LENGTHS)
    target = torch.randint(523, (5, 3), generator=torch.Generator().manual_seed(5))
    found, _ = engine.step(target, engine.start(source, mask))
    wanted, _ = model.step(target, model.start(source, mask))
    without, _ = engine.step(target, replace(engine.start(source, mask), context=None))
    torch.testing.assert_close(found.log_probs(), wanted.log_probs(), atol=1e-4, rtol=1e-5)
    assert float((found.log_probs() - without.log_probs()).abs().max()) > 0.5


def test_a_nan_in_the_memory_ends_the_search_of_its_sentence_only(copying, sources):
    _, engine = copying
    source, mask = sources(*LENGTHS)
    words = search_options(BeamSearch(width=3), [7] * 5)
    state = engine.start(source, mask)
    wanted = kernel_search(engine, state, words)
    state = engine.start(source, mask)
    with torch.inference_mode():
        state.context.kept[2][3] = math.nan
    assert kernel_search(engine, state, words) == [*wanted[:3], None, wanted[4]]


def test_a_head_that_copies_unknown_tokens_is_refused():
    model = build_model(ModelSettings(**WIDE, head=CopySettings(tie="none")), 5, 7).eval()
    model.head.copied[3] = 7
    with pytest.raises(SettingsError, match=r"^the head copies token 7 of a vocabulary of 7$"):
        build_engine(model)


@pytest.mark.parametrize(("name", "shape"), [
    ("decoder.layers.1.feed_forward.outer.weight", (32, 47)), ("encoder.layers.0.around_attention.norm.weight", (33,)),
    ("decoder.embedding.table.weight", (523, 31)), ("head.weight", (523, 33)), ("head.bias", (522,)),
    ("decoder.layers.0.cross_attention.key_value.bias", (63,)), ("decoder.embedding.positions.table", (80, 32)),
])  # fmt: skip
def test_weights_that_do_not_fit_the_settings_are_refused_by_name(name, shape):
    settings = ModelSettings(**WIDE, positions="learned", max_positions=79, head=SoftmaxSettings(tie="none"))
    model = build_model(settings, 17, 523)
    weights = {key: each.detach().numpy() for key, each in model.state_dict().items()}
    wanted = weights[name].shape
    for changed, message in (
        ({name: np.zeros(shape, np.float32)}, f"w: {name} is {list(shape)}, expected {list(wanted)} by the settings"),
        ({}, f"w: lacks {name}, which a model of these settings has"),
        (
            {name: weights[name], "head.gate.bias": np.zeros(1, np.float32)},
            "w: holds head.gate.bias, which a model of these settings does not have",
        ),
    ):
        others = {key: each for key, each in weights.items() if key != name}
        with pytest.raises(ModelFolderError) as caught:
            Engine(Network(settings=settings, weights=others | changed, place="w"), "fp32", lambda: model)
        assert str(caught.value) == message


@pytest.mark.parametrize("changes", [
    {"head": SoftmaxSettings(tie="all")}, {"head": SoftmaxSettings(tie="embeddings")},
    {"head": SampledSettings(tie="target")}, {"freeze_pretrained": True, "pretrained_source": "v.txt"},
    {"decoder_mixing": "ssru", "positions": "relative"},
])  # fmt: skip
def test_no_weight_of_a_model_is_refused_under_any_of_its_names(changes):
    shared = changes.get("head", SoftmaxSettings(tie="none")).tie in ("all", "embeddings")
    settings = ModelSettings(**{"head": SoftmaxSettings(tie="none"), **WIDE, **changes})
    model = build_model(settings, 17, 17 if shared else 19)
    build_engine(model)
    weights = {name: each.numpy() for name, each in unique_tensors(model).items()}
    Engine(Network(settings=settings, weights=weights), "fp32", lambda: model)


def test_sources_read_in_one_call_have_the_keys_and_values_of_several_calls(large_vocabulary, sources):
    _, engine = large_vocabulary
    source, mask = sources(5, 1, 19, 3)
    found = engine.start(source, mask).cache
    kernels, engine._sources = engine._sources, None
    wanted = engine.start(source, mask).cache
    engine._sources = kernels
    read = np.broadcast_to(mask[:, None, :, None].numpy(), wanted.cross[0].shape)
    np.testing.assert_allclose(found.cross * read, wanted.cross * read, atol=1e-5, rtol=1e-5)
    assert not (found.cross * ~read).any()
    assert np.array_equal(found.source_bias, wanted.source_bias)
    alone = engine.start(source[3:, :3], mask[3:, :3]).cache
    assert np.array_equal(alone.cross[:, 0, :, :3], found.cross[:, 3, :, :3])


def test_no_sources_and_those_that_begin_later_or_have_unknown_ids_are_read_in_steps(large_vocabulary, sources):
    _, engine = large_vocabulary
    source, mask = sources(5, 4)

    def read(*tensors):
        return engine._sources.read(*(each.numpy() for each in tensors))

    assert read(source, mask) is not None
    assert read(source, mask.flip(1)) is None
    for number in (-1, 17):
        source[1, 2] = number
        assert read(source, mask) is None
        with pytest.raises(IndexError, match=rf"^found token {number}, expected one of 17$"):
            engine.start(source, mask)
    assert read(*sources(80)) is None
    nothing = torch.zeros(0, 3, dtype=torch.long)
    assert read(nothing, nothing.bool()) is None
    assert engine.start(nothing, nothing.bool()).cache.cross.size == 0


def test_an_idle_search_does_not_keep_the_weights_of_an_engine(large_vocabulary, sources):
    engine = build_engine(large_vocabulary[0])
    found, numbers = complete_search(engine, engine.start(*sources(3)), **search_options(Greedy(), [2]))
    found.remove(numbers[0])
    found.close()
    weights = weakref.ref(engine.decoder)
    gc.disable()  # the garbage collector would find a cycle, but late
    try:
        del engine, found
        assert weights() is None
    finally:
        gc.enable()


def test_searches_in_several_threads_share_the_weights_and_give_the_same_results(large_vocabulary, sources):
    _, engine = large_vocabulary
    source, mask = sources(*LENGTHS)
    rules = [BannedPhrases(SPELLED, ("a b",), str.isalpha), NoRepeatNgram(2), RepetitionPenalty(1.2)]
    limits = [41, 17, 3, 29, 1]
    searches = [
        search_options(Greedy(), limits),
        search_options(BeamSearch(width=3), limits, rules),
        search_options(BeamSearch(width=2, coverage=Coverage(weight=0.2)), limits),
        search_options(Sampling(keys=torch.arange(5), seed=3), limits, rules),
    ]

    def run(words):
        covered = isinstance(words["strategy"], BeamSearch) and words["strategy"].coverage is not None
        start = engine.start_with_attention if covered else engine.start
        return kernel_search(engine, start(source, mask), words, steps=5)

    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(run, searches * 2))
    assert together == [run(words) for words in searches] * 2


def test_the_engine_reports_the_attention_of_the_plain_model(large_vocabulary, sources):
    model, engine = large_vocabulary
    source, mask = sources(5, 3)
    prefix = torch.tensor([[1, 7, 9], [1, 4, 4]])
    wanted = model.step(prefix, model.start_with_attention(source, mask))[1]
    found = engine.step(prefix, engine.start_with_attention(source, mask))[1]
    torch.testing.assert_close(found.attention[:, :5], wanted.attention, atol=1e-5, rtol=1e-4)
    rows = torch.tensor([0, 0, 1, 1])
    assert found.select(rows).attention.equal(found.attention[rows])


@pytest.mark.parametrize("changes", [
    {"decoder_layers": 3, "norm": "post"}, {"decoder_layers": 2, "positions": "relative", "embedding_norm": True},
    {"decoder_layers": 2, "decoder_mixing": "ssru", "segments": 2}, {"decoder_layers": 1, "positions": "rotary"},
])  # fmt: skip
def test_the_engine_aligns_whole_targets_as_the_plain_model(make, sources, changes):
    """By the second to last layer or the only one."""
    model = make(**WIDE | changes)
    source, mask = sources(19, 1, 7)
    target = torch.randint(1, 11, (3, 40))
    wanted = cross_attention(model, source, mask, target).detach().numpy()
    found = build_engine(model).cross_attention(source.numpy(), mask.numpy(), target.numpy())
    np.testing.assert_allclose(found[:, :, :19], wanted, rtol=1e-4, atol=1e-6)


def test_the_attention_of_pooled_segments_has_a_column_for_each_segment(make, sources):
    """Columns of padding are full from the start, so that they count as covered."""
    model = make(**WIDE, segments=2, segment_pooling="sum")
    engine = build_engine(model)
    source, mask = sources(11, 3)
    wanted = model.step(torch.tensor([[1, 7]] * 2), model.start_with_attention(source, mask))[1].attention
    started = engine.start_with_attention(source, mask)
    found = engine.step(torch.tensor([[1, 7]] * 2), started)[1].attention
    count = wanted.size(1)
    assert 1 < count < 11
    assert started.attention[:, :count].equal(model.start_with_attention(source, mask).attention)
    torch.testing.assert_close(found[:, :count], wanted, atol=1e-5, rtol=1e-4)


def test_unsupported_searches_are_left_to_the_decoding_loop(large_vocabulary, sources):
    _, engine = large_vocabulary
    state = engine.start(*sources(3))
    for strategy in (
        BeamSearch(width=2, coverage=Coverage(weight=0.2)),
        DiverseBeam(group=BeamSearch(width=2), groups=2),
        BeamSearch(width=1),
        BeamSearch(width=262),
    ):
        assert complete_search(engine, state, **search_options(strategy, [5])) is None
    assert complete_search(engine, state, **search_options(Greedy(), [5], [ForbidTokens((2,))])) is None
    for rules in (
        [lambda prefix, context: None],
        [NoRepeatNgram(2), NoRepeatNgram(3)],
        [RepetitionPenalty(0.5)],
        [TextPrefix(SPELLINGS, b"ababab", [True])],
    ):
        assert complete_search(engine, state, **search_options(Greedy(), [1], rules)) is None


def test_searches_out_of_bounds_are_left_to_the_decoding_loop(large_vocabulary, sources):
    _, engine = large_vocabulary

    def left(state, limits, engine=engine):
        return complete_search(engine, state, **search_options(Greedy(), limits)) is None

    state = engine.start(*sources(3, 2))
    assert not left(state, [79, 1])
    for limits in ([79, 80], [0, 5], [5], [5, 5, 5]):
        assert left(state, limits)
    assert left(engine.start(*sources(3, 2, 5)).select(torch.tensor([0, 2])), [5, 5])
    assert left(engine.start(*sources(3, 2)).select(torch.tensor([0, 0, 1, 1])), [5, 5])
    engine.step(torch.ones(2, 1, dtype=torch.long), state)
    with pytest.raises(StaleStateError, match="only the newest state may be used"):
        complete_search(engine, state, **search_options(Greedy(), [5, 5]))


@pytest.mark.parametrize("beam", [{}, {"nbest": 3, "stop": "first"}], ids=["greedy", "beam"])
def test_a_hypothesis_with_an_infinite_score_is_found(large_vocabulary, sources, beam):
    _, engine = large_vocabulary
    steep = LengthPenalty(exponent=-40.0)
    strategy = BeamSearch(width=3, length_penalty=steep, **beam) if beam else Greedy(length_penalty=steep)
    words = search_options(strategy, [13, 41], [MinimumLength(99)])
    wanted = search(engine.step, engine.start(*sources(3, 2)), **words)
    assert {hypothesis.score for found in wanted for hypothesis in found} == {-math.inf}
    assert kernel_search(engine, engine.start(*sources(3, 2)), words) == wanted


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(width=3)], ids=["greedy", "beam"])
def test_the_kernels_return_nothing_where_the_loop_raises_an_error(sources, strategy):
    model = build_model(ModelSettings(**WIDE, head=SoftmaxSettings(tie="none")), 17, 523).eval()
    with torch.no_grad():
        model.head.bias[7] = torch.nan
    engine = build_engine(model)
    words = search_options(strategy, [5, 9])
    assert kernel_search(engine, engine.start(*sources(3, 2)), words) == [None, None]
    with pytest.raises(SearchError, match="hold a NaN"):
        search(engine.step, engine.start(*sources(3, 2)), **words)
