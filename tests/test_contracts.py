"""The contracts with users, through the public API, on a model that has learnt to copy numbers."""

import math
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import translume
from translume import Config, Translator
from translume.training import Event

LONGEST = 23
"""Maximum number of source or target tokens, including end of sentence."""

NUMBERS = st.lists(st.sampled_from("012345"), min_size=1, max_size=7).map(lambda digits: "".join(digits) + "!")
BLANKS = st.sampled_from(["", " ", "\t", "   "])
LONG = st.lists(NUMBERS, min_size=4, max_size=6).map(" ".join)
"""Numbers separated by spaces, each a sentence; the line is usually longer than the model's limit."""

few = settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=["attention", "ssru"])
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, list[Event], Config]:
    """Return a model folder, the events of its training, and its settings; the task is to copy numbers."""
    folder, drawn = tmp_path_factory.mktemp("copies"), random.Random(1)
    texts = ["".join(drawn.choices("012345", k=drawn.randint(1, 7))) + "!" for _ in range(1200)]
    data = {"source_language": "x-words", "target_language": "x-copies"}
    for split, chosen in (("train", texts[:-40]), ("valid", texts[-40:])):
        (folder / split).write_text("".join(f"{text}\n" for text in chosen), encoding="utf-8")
        data |= {f"{split}_source": str(folder / split), f"{split}_target": str(folder / split)}
    shape = {"width": 34, "feed_forward": 67, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 1}
    steps = {"updates": 240, "warmup_updates": 20, "validate_every": 1000, "save_every": 240, "max_tokens": 500}
    config = Config.build(
        {
            "data": data,
            "tokenizer": {"kind": "character", "size": 300},
            "model": {**shape, "decoder_mixing": request.param, "max_positions": LONGEST, "dropout": 0.0},
            "training": {**steps, "learning_rate": 6e-3, "precision": "fp32", "seed": 3},
            "decoding": {"letterless": "translate"},
        }
    )
    return folder / "model", list(translume.train(config, folder / "model")), config


@pytest.fixture(scope="module")
def translator(run: tuple[Path, list[Event], Config]) -> Translator:
    loaded = translume.load(run[0], device="cpu", dtype="fp32")
    assert loaded.translate("3141!").hypotheses[0].finished_by == "eos"
    return loaded


@given(lines=st.lists(st.one_of(NUMBERS, BLANKS, LONG), max_size=5))
@few
def test_one_line_out_per_line_in_and_in_order(translator: Translator, lines: list[str]) -> None:
    found = list(translator.translate_all(f"{line}\n" for line in lines))
    assert [each.source for each in found] == lines
    assert not any("\n" in each.text for each in found)
    assert [not each.text for each in found if not each.source.strip()] == [True] * sum(
        not line.strip() for line in lines
    )


@given(lines=st.lists(st.one_of(NUMBERS, LONG), min_size=1, max_size=4), data=st.data())
@few
def test_a_translation_does_not_depend_on_the_batch(
    translator: Translator, lines: list[str], data: st.DataObject
) -> None:
    together = {each.source: each for each in translator.translate_all(lines)}
    subset = data.draw(st.permutations(lines).map(lambda order: order[: max(1, len(order) // 2)]))
    for each in translator.translate_all(subset, beam=translator.config.decoding.beam):
        for one, other in zip(each.hypotheses, together[each.source].hypotheses, strict=True):
            assert one.ids == other.ids
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)


@given(lines=st.lists(NUMBERS, min_size=1, max_size=5))
@few
def test_forced_decoding_reproduces_every_score(translator: Translator, lines: list[str]) -> None:
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


@given(source=NUMBERS)
@few
def test_the_best_hypotheses_do_not_depend_on_nbest(translator: Translator, source: str) -> None:
    many = translator.translate(source, beam=5, nbest=5).hypotheses
    for count in (1, 3):
        fewer = translator.translate(source, beam=5, nbest=count).hypotheses
        assert [(one.ids, one.log_prob) for one in fewer] == [(one.ids, one.log_prob) for one in many[:count]]


def test_scores_agree_with_the_validation_loss(translator: Translator, run: tuple[Path, list[Event], Config]) -> None:
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
