"""The contracts with users, through the public API, on a model that has learnt to copy numbers."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import translume
from translume import Config, DataError, TranslationError, Translator
from translume.training import Event, Started

LONGEST = 23
"""Maximum number of source or target tokens, including end of sentence."""

NUMBERS = st.lists(st.sampled_from("012345"), min_size=1, max_size=7).map(lambda digits: "".join(digits) + "!")
BLANKS = st.sampled_from(["", " ", "\t", "   "])
LONG = st.lists(NUMBERS, min_size=4, max_size=6).map(" ".join)
"""Numbers separated by spaces, each a sentence; the line is usually longer than the model's limit."""

few = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def toy(
    folder: Path, pairs: list[tuple[str, str]], *, seed: int = 3, mixing: str = "attention", **training: Any
) -> Config:
    """Return settings of a small run on `pairs`; the last 40 pairs are the validation set if there are enough."""
    data: dict[str, str] = {"source_language": "x-words", "target_language": "x-copies"}
    for split, chosen in (("train", pairs[:-40] or pairs), ("valid", pairs[-40:] if len(pairs) > 40 else [])):
        for index, side in enumerate(("source", "target") if chosen else ()):
            data[f"{split}_{side}"] = write(folder / f"{split}.{side}", [pair[index] for pair in chosen])
    return Config.build(
        {
            "data": data,
            "tokenizer": {"kind": "character", "size": 300},
            "model": {
                "width": 34,
                "feed_forward": 67,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "decoder_mixing": mixing,
                "attention_heads": 1,
                "max_positions": LONGEST,
                "dropout": 0.0,
            },
            "training": {
                "updates": 10,
                "max_tokens": 500,
                "learning_rate": 6e-3,
                "warmup_updates": 20,
                "validate_every": 1000,
                "save_every": 4,
                "precision": "fp32",
                "seed": seed,
                **training,
            },
            "decoding": {"letterless": "translate"},
        }
    )


def copies(count: int, seed: int) -> list[tuple[str, str]]:
    drawn = random.Random(seed)
    texts = ["".join(drawn.choices("012345", k=drawn.randint(1, 7))) + "!" for _ in range(count)]
    return [(text, text) for text in texts]


@pytest.fixture(scope="session", params=["attention", "ssru"])
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, list[Event], Config]:
    """Return a model folder, the events of its training, and its settings; the task is to copy numbers."""
    folder = tmp_path_factory.mktemp("copies")
    config = toy(folder, copies(1200, 1), mixing=request.param, updates=240, save_every=240)
    return folder / "model", list(translume.train(config, folder / "model")), config


@pytest.fixture(scope="session")
def translator(run: tuple[Path, list[Event], Config]) -> Translator:
    loaded = translume.load(run[0], device="cpu", dtype="fp32")
    assert loaded.translate("3141!").hypotheses[0].finished_by == "eos"
    return loaded


# ---- 1. one output line per input line


@given(lines=st.lists(st.one_of(NUMBERS, BLANKS, LONG), max_size=9))
@few
def test_1_one_line_out_per_line_in_and_in_order(translator: Translator, lines: list[str]) -> None:
    found = list(translator.translate_all(f"{line}\n" for line in lines))
    assert [each.source for each in found] == lines
    assert not any("\n" in each.text for each in found)
    assert [not each.text for each in found if not each.source.strip()] == [True] * sum(
        not line.strip() for line in lines
    )


@given(parts=st.lists(NUMBERS, min_size=4, max_size=7))
@few
def test_1_a_line_that_is_too_long_is_split_and_rejoined(translator: Translator, parts: list[str]) -> None:
    whole = " ".join(parts)
    alone = [translator.translate(part).text for part in parts]
    found = translator.translate(whole)
    if len(whole) >= LONGEST:
        assert found.text == " ".join(alone)
    assert found.warnings == ()


def test_1_a_sentence_that_is_too_long_raises_with_its_line_and_is_not_truncated(translator: Translator) -> None:
    found = translator.translate_all(["12!", "", "1" * LONGEST, "3!"])
    assert [next(found).source, next(found).source] == ["12!", ""]
    with pytest.raises(TranslationError) as caught:
        next(found)
    assert str(caught.value) == (
        f"line 3: a sentence has {LONGEST} tokens, expected at most {LONGEST - 1}; "
        'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it'
    )


# ---- 2. every pair read is used or counted


@given(more=st.lists(st.one_of(NUMBERS, st.just(""), st.just("1" * 40)), max_size=9), held=st.booleans())
@few
def test_2_pairs_read_are_used_held_out_or_dropped(
    tmp_path_factory: pytest.TempPathFactory, more: list[str], held: bool
) -> None:
    folder = tmp_path_factory.mktemp("account")
    pairs = [*((text, text) for text in more), *copies(25 if held else 61, 2)]
    events = translume.train(toy(folder, pairs), folder / "model")
    started = next(event for event in events if isinstance(event, Started))
    events.close()
    account = started.training
    assert account.read == (len(pairs) if held else len(pairs) - 40)
    assert account.read == account.used + account.held_out + sum(account.dropped.values())
    assert account.held_out == (started.validation_pairs if held else 0)
    assert account.dropped.get("empty", 0) == more.count("")
    assert account.dropped.get("too long", 0) == more.count("1" * 40)


def test_2_files_of_unequal_length_are_an_error_with_both_counts(tmp_path: Path) -> None:
    config = toy(tmp_path, copies(30, 1))
    write(tmp_path / "train.target", ["1."] * 29)
    with pytest.raises(DataError) as caught:
        list(translume.train(config, tmp_path / "model"))
    assert str(caught.value) == (
        f"{tmp_path}/train.source has 30 lines but {tmp_path}/train.target has 29; expected as many in both"
    )


# ---- 3. results do not depend on the batch


@given(lines=st.lists(st.one_of(NUMBERS, LONG), min_size=1, max_size=7), data=st.data())
@few
def test_3_a_translation_does_not_depend_on_the_batch(
    translator: Translator, lines: list[str], data: st.DataObject
) -> None:
    together = {each.source: each for each in translator.translate_all(lines)}
    subset = data.draw(st.permutations(lines).map(lambda order: order[: max(1, len(order) // 2)]))
    for each in translator.translate_all(subset, beam=translator.config.decoding.beam):
        for one, other in zip(each.hypotheses, together[each.source].hypotheses, strict=True):
            assert one.ids == other.ids
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)


# ---- 4. decoding strategies agree, and forced decoding reproduces every score


@given(line=st.one_of(NUMBERS, LONG))
@few
def test_4_greedy_search_is_a_beam_of_one(translator: Translator, line: str) -> None:
    greedy = translator.translate(line, strategy="greedy").hypotheses[0]
    beam = translator.translate(line, strategy="beam", beam=1, nbest=1).hypotheses[0]
    assert greedy.ids == beam.ids
    assert greedy.log_prob == pytest.approx(beam.log_prob, abs=1e-4)


@given(lines=st.lists(NUMBERS, min_size=1, max_size=5))
@few
def test_4_forced_decoding_reproduces_every_score(translator: Translator, lines: list[str]) -> None:
    pairs = [
        (each.source, hypothesis)
        for each in translator.translate_all(lines, beam=4, nbest=4, length_penalty=0.0)
        for hypothesis in each.hypotheses
    ]
    assert len(pairs) == 4 * len(lines)
    for (_, hypothesis), score in zip(pairs, translator.score_all(pairs), strict=True):
        assert score.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
        assert hypothesis.score == pytest.approx(hypothesis.log_prob, abs=1e-6)
        assert score.log_prob == pytest.approx(math.fsum(score.token_log_probs), abs=1e-6)


# ---- 5. probabilities are normalised and consistent


@given(source=NUMBERS, length=st.integers(0, 3))
@few
def test_5_probabilities_of_the_next_token_sum_to_one(translator: Translator, source: str, length: int) -> None:
    best = translator.translate(source).hypotheses[0]
    prefix = best.ids[: min(length, len(best.ids) - 1)]
    size = len(translator.checkpoint.target_tokenizer)
    forced = [(source, replace(best, ids=(*prefix, token))) for token in range(size)]
    last = [score.token_log_probs[-1] for score in translator.score_all(forced)]
    assert math.fsum(map(math.exp, last)) == pytest.approx(1.0, abs=1e-5)


@given(source=NUMBERS)
@few
def test_5_the_best_hypotheses_do_not_depend_on_nbest(translator: Translator, source: str) -> None:
    many = translator.translate(source, beam=5, nbest=5).hypotheses
    for count in (1, 3):
        fewer = translator.translate(source, beam=5, nbest=count).hypotheses
        assert [(one.ids, one.log_prob) for one in fewer] == [(one.ids, one.log_prob) for one in many[:count]]


def test_5_scores_agree_with_the_validation_loss(translator: Translator, run: tuple[Path, list[Event], Config]) -> None:
    _, events, config = run
    sources, targets = (
        Path(names[0]).read_text(encoding="utf-8").splitlines()
        for names in (config.data.valid_source, config.data.valid_target)
    )
    scores = list(translator.score_all(zip(sources, targets, strict=True)))
    nll = -math.fsum(score.log_prob for score in scores) / sum(len(score.tokens) for score in scores)
    assert nll == pytest.approx(events[-1].nll, abs=1e-5)
    evaluated = translume.evaluate(
        translator, sources, targets, settings=translume.EvaluationSettings(metrics=("exact_match",))
    )
    copied = sum(str(each) == target for each, target in zip(translator.translate_all(sources), targets, strict=True))
    assert evaluated.to_dict()["scores"][0]["value"] == pytest.approx(100 * copied / len(targets))


# ---- 6. an interrupted run ends like an uninterrupted one


@pytest.mark.parametrize(("mixing", "cut"), [("attention", 1), ("attention", 6), ("attention", 9), ("ssru", 6)])
def test_6_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path, mixing: str, cut: int) -> None:
    config = toy(tmp_path, copies(240, 5), mixing=mixing, validate_every=5)

    def weights(folder: Path) -> bytes:
        return next(folder.glob("weights-*")).read_bytes()

    list(translume.train(config, tmp_path / "whole"))
    events: Iterator[Event] = translume.train(config, tmp_path / "cut")
    for _ in takewhile(lambda event: getattr(event, "update", 0) < cut, events):
        pass
    del events  # as if the process had been killed: nothing more is saved
    list(translume.train(config, tmp_path / "cut"))
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
