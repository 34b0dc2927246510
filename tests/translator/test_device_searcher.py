"""A translator whose searches run on a device, here the CPU, returns what the decoding loop returns."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.decoding.device_search import MIN_SOURCE, DeviceSearch, doubled
from translume.translator import Translation, Translator, device_searcher
from translume.translator import search as searches
from translume.translator.cohort import Cohort
from translume.translator.device_searcher import DeviceSearcher
from translume.translator.loading import ComputeOptions, describe_engine, with_engine
from translume.translator.planning import Line, LineError, bucketed_batches
from translume.translator.search import describe_device_search

LINES = ["ab c.", "", "the", "a long line. it is split up.", "x. y! z?", "the", "zyx", " "]
SETTINGS = [
    {"strategy": "greedy"},
    {"strategy": "beam", "beam": 4, "nbest": 3, "min_length": 2},
    {"strategy": "beam", "beam": 3, "utility": "chrf", "no_repeat_ngram": 2, "repetition_penalty": 1.3},
    {"strategy": "sampling", "samples": 3, "nbest": 2, "top_p": 0.9, "seed": 5},
    {"strategy": "diverse", "beam": 4, "groups": 2},
    {"strategy": "beam", "beam": 3, "prefix": "th"},
    {"strategy": "beam", "beam": 3, "unsmooth": 0.1},
]


@pytest.fixture(scope="module")
def plain(make: Callable[..., Translator]) -> Translator:
    """A translator that splits lines of more than 18 tokens; in fp64, so that rounding changes no order."""
    made = make("decoding.max_length_ratio=0.7", max_positions=19, shared=False)
    made.checkpoint.model.double()
    return made


@pytest.fixture
def translator(plain: Translator) -> Translator:
    return Translator(plain.checkpoint, DeviceSearcher(plain.checkpoint.model))


def contents(translations: list[Translation]) -> list[object]:
    return [
        (each.source, each.warnings, each.quality_warnings, [(found.text, found.ids) for found in each.hypotheses])
        for each in translations
    ]


def scores(translations: list[Translation]) -> list[float]:
    return [found.score for each in translations for found in each.hypotheses]


def assert_same(found: list[Translation], expected: list[Translation]) -> None:
    assert contents(found) == contents(expected)
    assert all(math.isclose(*pair, rel_tol=1e-5) for pair in zip(scores(found), scores(expected), strict=True))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: "-".join(map(str, each.values())))
def test_all_lines_are_translated_as_by_the_decoding_loop(plain, translator, settings):
    assert_same([*translator.translate_all(LINES, **settings)], [*plain.translate_all(LINES, **settings)])


def test_lines_share_one_search_of_each_padded_length(plain, translator, monkeypatch):
    """Two at a time are encoded, three at a time searched."""
    made, entered = [], []

    def new(searcher, settings, sizes, own=DeviceSearcher._new_search):
        made.append(sizes.slots)
        return own(searcher, settings, sizes)

    def enter(search, state, prompts, *words, own=DeviceSearch.enter):
        entered.append(len(prompts))
        return own(search, state, prompts, *words)

    monkeypatch.setattr(searches, "DEVICE_BATCH_ROWS", 2)
    monkeypatch.setattr(device_searcher, "MAX_SLOTS", 3)
    monkeypatch.setattr(DeviceSearcher, "_new_search", new)
    monkeypatch.setattr(DeviceSearch, "enter", enter)
    lines = LINES * 3
    assert_same([*translator.translate_all(lines)], [*plain.translate_all(lines)])
    assert made == [3]
    assert set(entered[:-1]) == {2}
    translator.translate("ab")  # the search is used again
    assert made == [3]


def test_max_tokens_bounds_a_search_as_on_a_cpu(plain, translator, monkeypatch):
    monkeypatch.setattr(searches, "search_together", None)
    expected = [*plain.translate_all(LINES, max_tokens=37)]
    assert_same([*translator.translate_all(LINES, max_tokens=37)], expected)


def test_lines_with_and_without_constraints_are_translated_in_order(plain, translator):
    constraints = [["xy"] if number % 3 == 0 and line.strip() else [] for number, line in enumerate(LINES)]
    expected = [*plain.translate_all(LINES, constraints=constraints)]
    assert_same([*translator.translate_all(LINES, constraints=constraints)], expected)
    assert "xy" in expected[0].text


def test_progress_is_that_of_the_decoding_loop(plain, translator):
    def watched(chosen: Translator) -> dict[int, list[str]]:
        said: dict[int, list[str]] = {number: [] for number in range(1, len(LINES) + 1)}
        lines = [Line(number=number, text=text) for number, text in enumerate(LINES, start=1)]
        settings = chosen.config.decoding
        [*chosen.translate_lines(lines, settings, {number: each.append for number, each in said.items()})]
        return said

    assert watched(translator) == watched(plain)


def test_a_cancelled_search_ends_and_later_ones_are_whole(plain, translator):
    asked = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise KeyError("enough")

    lines = [Line(number=number, text=text) for number, text in enumerate(LINES, start=1)]
    with pytest.raises(KeyError):
        [*translator.translate_lines(lines, translator.config.decoding, check_cancelled=check)]
    assert_same([*translator.translate_all(LINES)], [*plain.translate_all(LINES)])


def test_a_line_whose_numbers_are_not_finite_raises_an_error_after_the_lines_before(make):
    made = make(shared=False)
    with torch.no_grad():
        (letter,) = made.checkpoint.source_tokenizer.encode("q")[-1:]
        made.checkpoint.model.encoder.embedding.table.weight[letter] = math.nan
    translator = Translator(made.checkpoint, DeviceSearcher(made.checkpoint.model))
    found = []
    with pytest.raises(LineError, match=r"^line 3: token 1: the head's logits of row 0 hold a NaN, an infinity or no "):
        found.extend(translator.translate_all(["ab", "cd", "aq", "ef"]))
    assert contents(found) == contents([*made.translate_all(["ab", "cd"])])


@pytest.mark.parametrize("settings", SETTINGS[:5], ids=lambda each: each["strategy"])
def test_lines_that_enter_a_running_search_have_the_results_that_they_have_alone(plain, translator, settings):
    chosen = translator._choose("translate", None, settings)
    cohort, found, said = Cohort(translator, chosen), {}, {number: [] for number in range(0, len(LINES), 2)}
    for number, text in enumerate(LINES):
        watched = {number: said[number].append} if number in said else {}
        cohort.enter({number: Line(number=number, text=text)}, watched)
        assert bool(cohort._apart) == (bool(text.strip()) and chosen.strategy == "diverse")
        found |= cohort.run()
    while cohort:
        found |= cohort.run()
    cohort.close()
    translations = [found[number] for number in range(len(LINES))]
    assert_same(translations, [plain.translate(text, settings=chosen) for text in LINES])
    for number, prefixes in said.items():
        assert prefixes == sorted(set(prefixes), key=len)
        assert all(found[number].text.startswith(prefix) for prefix in prefixes)


def test_lines_are_removed_from_a_running_search(translator):
    cohort = Cohort(translator, translator.config.decoding)
    cohort.enter({name: Line(number=1, text=name * 9) for name in "abc"}, {})
    found = cohort.run(lambda: ["b"])
    while cohort:
        found |= cohort.run()
    assert sorted(found) == ["a", "c"]
    assert contents([found["c"]]) == contents([translator.translate("c" * 9)])


@given(lengths=st.lists(st.integers(1, 300), max_size=40), tokens=st.integers(1, 900), rows=st.integers(1, 7))
def test_batches_for_a_device_contain_each_text_once_in_groups_of_one_padded_length(lengths, tokens, rows):
    groups = list(bucketed_batches(lengths, tokens, rows))
    order = [index for group in groups for batch in group for index in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    padded = [{doubled(lengths[index], MIN_SOURCE) for batch in group for index in batch} for group in groups]
    assert all(len(each) == 1 for each in padded)
    assert len(set().union(*padded)) == len(groups)
    for group, (length,) in zip(groups, padded, strict=True):
        assert all(len(batch) == 1 or (len(batch) <= rows and len(batch) * length <= tokens) for batch in group)


def test_a_gpu_searches_there_unless_the_plain_model_is_wanted(make):
    """The meta device stands for a GPU."""
    loaded, model = [], make().checkpoint.model.to("meta")

    def read(*, dtype: str) -> SimpleNamespace:
        loaded.append(dtype)
        return SimpleNamespace(model=model)

    for dtype in ("auto", "fp32", "bf16"):
        _, found = with_engine(read, ComputeOptions(device="cuda", dtype=dtype))
        assert isinstance(found, DeviceSearcher)
    assert loaded == ["auto", "fp32", "bf16"]
    assert describe_engine(found) == "search on meta in fp32"
    assert with_engine(read, ComputeOptions(device="cuda", engine="plain"))[1] is None


def test_a_translator_says_where_it_searches(translator):
    assert "search on cpu in fp64" in repr(translator)
    assert translator.engine is None
    assert isinstance(translator.models.stepper(attentive=True), DeviceSearcher)


@pytest.mark.parametrize(("settings", "way"), [
    ({}, "search on the device"),
    ({"strategy": "sampling", "top_k": 5}, "search on the device"),
    ({"suppress": (3,), "suppress_first": (4,), "min_length": 2}, "search on the device"),
    ({"strategy": "diverse", "beam": 4}, "decoding loop: the strategy DiverseBeam"),
    ({"unsmooth": 0.1}, "decoding loop: decoding.unsmooth"),
    ({"coverage_penalty": 0.2}, "decoding loop: decoding.coverage_penalty"),
    ({"prefix": "ab", "unsmooth": 0.1}, "decoding loop: decoding.unsmooth, the rule TextPrefix"),
])  # fmt: skip
def test_the_way_of_a_search_on_a_gpu_is_described_with_its_reason(plain, settings, way):
    assert describe_device_search(plain.checkpoint, plain._choose("translate", None, settings)) == way
