"""The translator returns one translation per text, in order and independent of the batch."""

import gzip
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.checkpoint import choose_device, save_model
from translume.cli.options import Compute
from translume.config import DecodingSettings
from translume.engine import EngineError
from translume.errors import SettingsError, TranslationError
from translume.translator import TextHypothesis, Translation, Translator, load, loading, planning

Make = Callable[..., Translator]
TOLERANCE = 1e-4

words = st.text("abcdefghijklmnop", min_size=1, max_size=7)
lines = st.lists(words, max_size=5).map(" ".join) | st.sampled_from(["", " ", "\t ", "   "])
written = lines.map(lambda line: line.strip() or "a")


def close(one: Translation, other: Translation) -> bool:
    """Assert equal tokens, and scores that differ by rounding only."""
    return (one.source, one.text, len(one.hypotheses)) == (other.source, other.text, len(other.hypotheses)) and all(
        a.ids == b.ids and a.finished_by == b.finished_by and abs(a.log_prob - b.log_prob) < TOLERANCE
        for a, b in zip(one.hypotheses, other.hypotheses, strict=True)
    )


@given(texts=st.lists(lines, max_size=11))
def test_one_translation_per_text_in_order(translator: Translator, texts: list[str]) -> None:
    found = list(translator.translate_all(texts))
    assert [each.source for each in found] == texts
    assert all((each.text == "") >= (text.strip() == "") for each, text in zip(found, texts, strict=True))
    assert all("\n" not in each.text for each in found)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "greedy", "prefix": "ab"},
        {"strategy": "beam", "beam": 4, "nbest": 3},
        {"strategy": "beam", "beam": 3, "utility": "chrf"},
        {"strategy": "beam", "beam": 2, "repetition_penalty": 1.5, "ban": ["a"]},
        {"strategy": "beam", "beam": 3, "coverage_penalty": 0.4, "stop": "first"},
        {"strategy": "beam", "beam": 3, "unsmooth": 0.1},
        {"strategy": "sampling", "samples": 3, "nbest": 2, "seed": 5},
        {"strategy": "stochastic", "samples": 3},
        {"strategy": "diverse", "beam": 4, "groups": 2, "nbest": 4},
        {"strategy": "beam", "beam": 3, "alignment": True},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@settings(max_examples=4)
@given(texts=st.lists(lines, min_size=2, max_size=6), fast=st.booleans(), size=st.sampled_from([1, 17, 61, 4096]))
def test_a_translation_does_not_depend_on_the_batch(
    plain_and_fast: list[Translator], options: dict[str, object], texts: list[str], fast: bool, size: int
) -> None:
    translator = plain_and_fast[fast]
    decoding = DecodingSettings.model_validate({"max_length": 9, "max_tokens": size, **options})
    for text, found in zip(texts, translator.translate_all(texts, settings=decoding), strict=True):
        assert close(found, translator.translate(text, settings=decoding))


@pytest.fixture(scope="module")
def plain_and_fast(make: Make) -> list[Translator]:
    plain = make()
    return [plain, plain.compile()]


@given(texts=st.lists(lines, min_size=1, max_size=5), nbest=st.integers(1, 3))
def test_forced_decoding_reproduces_every_score(translator: Translator, texts: list[str], nbest: int) -> None:
    found = list(translator.translate_all(texts, nbest=nbest))
    pairs = [(each.source, hypothesis) for each in found for hypothesis in each.hypotheses]
    for (_, hypothesis), score in zip(pairs, translator.score_all(pairs), strict=True):
        assert score.log_prob == pytest.approx(hypothesis.log_prob, abs=TOLERANCE)
        assert score.tokens == hypothesis.tokens
        assert score.token_log_probs == pytest.approx(hypothesis.token_log_probs, abs=TOLERANCE)
        assert math.fsum(score.token_log_probs) == pytest.approx(score.log_prob)


@given(texts=st.lists(written, min_size=1, max_size=5))
def test_scores_of_texts_do_not_depend_on_the_batch(translator: Translator, texts: list[str]) -> None:
    pairs = [(text, text[::-1]) for text in texts]
    for (source, target), score in zip(pairs, translator.score_all(pairs), strict=True):
        alone = translator.score(source, target)
        assert alone.tokens == score.tokens
        assert alone.token_log_probs == pytest.approx(score.token_log_probs, abs=TOLERANCE)
        assert len(score.tokens) == len(target) + 1


def test_scores_of_the_next_token_are_a_distribution(translator: Translator) -> None:
    specials = translator.checkpoint.target_tokenizer.specials
    total = 0.0
    for token in range(len(translator.checkpoint.target_tokenizer)):
        made = TextHypothesis(text="", tokens=(), ids=(token,), log_prob=0, score=0, finished_by="length")
        total += math.exp(translator.score("abc", made).log_prob)
    assert total == pytest.approx(1, abs=1e-5)
    assert translator.score("abc", "").tokens == tuple(translator.checkpoint.target_tokenizer.tokens([specials.eos]))


def test_line_ends_of_a_file_are_not_part_of_the_text(translator: Translator, tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"abc\r\n\ndef\n")
    with open(path, encoding="utf-8", newline="\n") as file:
        found = list(translator.translate_all(file))
    assert [each.source for each in found] == ["abc", "", "def"]
    assert found[0].text == translator.translate("abc").text
    with gzip.open(tmp_path / "source.gz", "wt") as zipped:
        zipped.write("abc\n")
    with gzip.open(tmp_path / "source.gz", "rt") as zipped:
        assert [each.source for each in translator.translate_all(zipped)] == ["abc"]


def test_texts_are_read_at_most_one_window_ahead(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning.windows, "__kwdefaults__", {"lines": 5, "characters": 10_000})
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "abc"

    found = translator.translate_all(endless(), strategy="greedy", nbest=1)
    for number in range(23):
        next(found)
        assert read <= number + 6


def test_blank_texts_are_not_searched(translator: Translator) -> None:
    assert translator.translate(" \t") == Translation(source=" \t", text="")
    assert translator.translate("").hypotheses == ()


def test_length_limits_follow_the_length_of_each_sentence(make: Make) -> None:
    translator = make("decoding.max_length_ratio=1.5", "decoding.max_length_extra=2", max_positions=19)
    specials = translator.checkpoint.target_tokenizer.specials
    # With eos forbidden for long enough, every hypothesis reaches its limit.
    texts = ["a", "abcd", "abcdefghijklmnopqr"]
    settings = translator.config.decoding.model_copy(update={"min_length": 100})
    found = list(translator.translate_all(texts, settings=settings))
    assert [len(each.hypotheses[0].ids) for each in found] == [3, 8, 19]
    assert {each.hypotheses[0].finished_by for each in found} == {"length"}
    settings = settings.model_copy(update={"max_length": 7})
    found = list(translator.translate_all(texts, settings=settings))
    assert [len(each.hypotheses[0].ids) for each in found] == [3, 7, 7]
    assert all(specials.eos not in each.hypotheses[0].ids for each in found)


def test_special_tokens_are_never_written(make: Make) -> None:
    for shared in (True, False):
        translator = make(shared=shared)
        specials = translator.checkpoint.target_tokenizer.specials
        for found in translator.translate_all(["abc", "a b c d e f g", "zzz"], nbest=5):
            for hypothesis in found.hypotheses:
                assert not {specials.pad, specials.bos} & set(hypothesis.ids)


def test_a_translation_has_one_line(make: Make) -> None:
    translator = make(shared=False)
    bytes_tokenizer = translator.checkpoint.target_tokenizer
    newline = bytes_tokenizer.encode("\n") or [10 + len(bytes_tokenizer) - 256]
    bias = [parameter for parameter in translator.checkpoint.model.head.parameters() if parameter.dim() == 1]
    with torch.no_grad():
        bias[0][newline[0]] += 9
    found = translator.translate("abc")
    assert newline[0] in found.hypotheses[0].ids
    assert "\n" not in found.text
    assert found.text == found.hypotheses[0].text


def test_options_override_single_settings(translator: Translator) -> None:
    assert len(translator.translate("abc", nbest=3).hypotheses) == 3
    settings = DecodingSettings(beam=2, nbest=2)
    assert len(translator.translate("abc", settings=settings).hypotheses) == 2
    assert len(translator.translate("abc", settings=settings, beam=4, nbest=4).hypotheses) == 4
    one = translator.translate("abc", length_penalty=0.0).hypotheses[0]
    assert one.score == pytest.approx(one.log_prob)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nbest": 4}, "decoding.nbest: found 4, expected at most beam = 3"),
        ({"beam": 0}, "decoding.beam: found 0, expected greater than or equal to 1"),
        ({"strategy": "beem"}, "decoding.strategy: found 'beem'; did you mean 'beam'?"),
        (
            {"temperature": 0.5},
            "decoding.temperature: strategy 'beam' does not read it, expected 'sampling' or 'stochastic'",
        ),
    ],
)
def test_invalid_options_are_refused_before_any_text_is_read(
    translator: Translator, options: dict[str, object], message: str
) -> None:
    def never() -> Iterator[str]:
        raise AssertionError("a text was read")
        yield

    for call in (translator.translate_all, lambda _, **given: translator.translate("a", **given)):
        with pytest.raises(SettingsError) as caught:
            call(never(), **options)
        assert str(caught.value).removeprefix("translate: ").removeprefix("translate_all: ") == message


def test_translate_all_refuses_a_single_text(translator: Translator) -> None:
    with pytest.raises(TypeError, match="translate_all: found one string, expected many; use translate"):
        translator.translate_all("abc")


def test_a_pair_that_is_too_long_is_named(make: Make) -> None:
    translator = make(max_positions=11)
    with pytest.raises(TranslationError) as caught:
        list(translator.score_all([("a", "b"), ("a" * 11, "b")]))
    assert str(caught.value) == "line 2: the source has 12 tokens with EOS, expected at most 11"
    with pytest.raises(TranslationError) as caught:
        translator.score("a", "b" * 11)
    assert str(caught.value) == "pair: the target has 12 tokens with EOS, expected at most 11"


def test_a_failed_search_names_its_line_after_all_lines_before_it(make: Make) -> None:
    translator = make(shared=False)
    letter = translator.checkpoint.source_tokenizer.encode("z")[0]
    with torch.no_grad():
        translator.checkpoint.model.encoder.get_parameter("embedding.table.weight")[letter] = math.nan
    found: list[str] = []
    with pytest.raises(TranslationError) as caught:
        found.extend(each.source for each in translator.translate_all(["abcdefgh", "a", "bz", "c", "zzzz"]))
    assert str(caught.value).startswith("line 3: token 1: ")
    assert found == ["abcdefgh", "a"]


def test_a_translator_is_thread_safe(translator: Translator) -> None:
    from concurrent.futures import ThreadPoolExecutor

    texts = ["abc", "hello you", "a b c d", "xyz"] * 3
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(translator.translate, texts)) == [translator.translate(text) for text in texts]


def test_results_convert_to_json(translator: Translator) -> None:
    found = translator.translate("abc").to_dict()
    assert list(found) == ["source", "text", "hypotheses", "warnings"]
    fields = ["text", "tokens", "log_prob", "token_log_probs", "score", "finished_by", "terms"]
    assert list(found["hypotheses"][0]) == fields
    assert list(translator.score("a", "b").to_dict()) == ["log_prob", "tokens", "token_log_probs", "warnings"]


def test_a_score_is_computed_from_its_terms(translator: Translator) -> None:
    settings = translator.config.decoding.model_copy(
        update={"nbest": 3, "length_penalty": 0.7, "coverage_penalty": 0.3, "repetition_penalty": 1.5, "max_length": 3}
    )
    for hypothesis in translator.translate("abc de", settings=settings).hypotheses:
        terms = hypothesis.to_dict()["terms"]
        assert terms["divisor"] == pytest.approx(len(hypothesis.ids) ** 0.7)
        assert terms["coverage"] < 0
        assert terms["total"] <= hypothesis.log_prob
        assert terms["total"] / terms["divisor"] + terms["coverage"] == pytest.approx(hypothesis.score, abs=1e-5)
    parted = translator.translate("Abc. " * 20)
    assert [each.terms for each in parted.hypotheses] == [None]


def test_a_saved_and_loaded_model_gives_the_same_translations(make: Make, tmp_path: Path) -> None:
    for shared in (True, False):
        translator = make("decoding.beam=2", shared=shared)
        save_model(tmp_path / str(shared), translator.checkpoint)
        loaded = load(tmp_path / str(shared), device="cpu", dtype="fp32", threads=1, engine="plain")
        assert loaded.translate("hello there") == translator.translate("hello there")
        assert loaded.config.decoding.beam == 2


def test_the_number_of_threads_must_be_positive(tmp_path: Path) -> None:
    for threads, found in ((0, "0"), (4097, "4097"), (1.5, "1.5"), ("2", "'2'"), (True, "True")):
        with pytest.raises(SettingsError) as caught:
            load(tmp_path, threads=threads)
        assert str(caught.value) == f"threads: found {found}, expected an integer from 1 to 4096"


def test_arguments_of_wrong_types_raise_a_type_error_that_names_them(make: Make) -> None:
    translator = make()
    wrong = {
        "translate: found list, expected a string; translate_all takes many": lambda: translator.translate(["a"]),
        "line 2: found NoneType, expected a string": lambda: list(translator.translate_all(["a", None])),
        "line 1: found bytes, expected a string": lambda: list(translator.translate_all([b"a"], constraints=[[]])),
        "found int, expected a string": lambda: translator.translate("a", constraints=[3]),
        "settings: found int, expected DecodingSettings or None": lambda: translator.translate("a", settings=3),
        "score: found str and NoneType, expected a source and a target; score_all takes many pairs": (
            lambda: translator.score("a", None)
        ),
        "line 1: found one text, expected a pair of a source and a target": lambda: list(translator.score_all(["ab"])),
        "line 1: found 3 of them, expected a pair of a source and a target": (
            lambda: list(translator.score_all([("a", "b", "c")]))
        ),
        "line 1: found NoneType, expected a string": lambda: list(translator.score_all([("a", None)])),
    }
    for message, call in wrong.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == message


def test_a_device_must_be_a_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        choose_device(None)
    assert str(caught.value) == "device: found None, expected auto, cpu, cuda or cuda:N"


def test_load_and_the_command_line_use_the_same_engine(make: Make, tmp_path: Path) -> None:
    save_model(tmp_path, make("decoding.beam=3").checkpoint)
    texts = ["abc", "de f", "ghi jkl"]
    plain = load(tmp_path, device="cpu", engine="plain")
    for engine, dtype in (("auto", "auto"), ("fast", "fp32"), ("plain", "fp32"), ("auto", "int8")):
        loaded = load(tmp_path, device="cpu", engine=engine, dtype=dtype)
        chosen = Translator.load(tmp_path, Compute(device="cpu", dtype=dtype, engine=engine).to_load())
        assert isinstance(loaded, Translator)
        kinds = [each.engine.dtype if each.engine else None for each in (loaded, chosen)]
        assert kinds[0] == kinds[1] == (None if engine == "plain" else "int8" if dtype == "int8" else "fp32")
        found = [[str(each) for each in one.translate_all(texts)] for one in (loaded, chosen)]
        assert found[0] == found[1]
    assert isinstance(plain, Translator)
    assert plain.engine is None


def test_without_an_engine_the_plain_model_translates(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, make().checkpoint)
    built: list[str] = []

    def refuse(model: object, dtype: str) -> None:
        built.append(dtype)
        raise EngineError("none here")

    monkeypatch.setattr(loading, "engine_of", refuse)
    translator = load(tmp_path, device="cpu")
    assert (built, translator.engine) == (["fp32"], None)
    assert translator.translate("abc").text == load(tmp_path, device="cpu", engine="plain").translate("abc").text
    with pytest.raises(EngineError, match="none here"):
        load(tmp_path, device="cpu", engine="fast")


def test_settings_may_have_a_list_where_their_type_is_a_tuple(translator: Translator) -> None:
    settings = translator.config.decoding.model_copy(update={"ban": ["e"]})
    found = translator.translate("a b", settings=settings)
    assert found == translator.translate("a b", settings=settings.model_copy(update={"ban": ("e",)}))
