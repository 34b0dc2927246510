"""Calibrated and unsmoothed decoding changes the scores but not the log-probabilities."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from translume.checkpoint import Temperature, build_model
from translume.config import Config, DecodingSettings, SigmoidSettings
from translume.errors import SettingsError
from translume.translator import TargetScore, Translator

TEXTS = ["abc de.", "kl", "hgf edcba klm!", "a"]


def warm(translator: Translator, value: float) -> Translator:
    temperature = Temperature(value=value, tokens=7, nll_before=2.0, nll=1.0)
    return Translator(replace(translator.checkpoint, temperature=temperature))


@pytest.mark.parametrize("change", [{"calibrated": True}, {"unsmooth": 0.3}])
def test_scores_change_and_log_probabilities_are_those_of_the_model(
    translator: Translator, change: dict[str, float]
) -> None:
    settings = DecodingSettings.model_validate({"beam": 3, "nbest": 3, **change})
    plain = list(warm(translator, 2.0).translate_all(TEXTS, settings=DecodingSettings(beam=3, nbest=3)))
    found = list(warm(translator, 2.0).translate_all(TEXTS, settings=settings))
    assert [each.hypotheses for each in found] != [each.hypotheses for each in plain]
    for text, each in zip(TEXTS, found, strict=True):
        assert len(each.hypotheses) == 3
        for hypothesis in each.hypotheses:
            assert translator.score(text, hypothesis).log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
            assert hypothesis.score != pytest.approx(hypothesis.log_prob / len(hypothesis.ids), abs=1e-4)


def test_a_stored_temperature_alone_changes_nothing(translator: Translator) -> None:
    assert list(warm(translator, 9.0).translate_all(TEXTS)) == list(translator.translate_all(TEXTS))


def test_a_prefix_is_kept_even_if_its_probability_is_zero(make: Callable[..., Translator]) -> None:
    translator = make("decoding.beam=3", "decoding.unsmooth=0.9", "decoding.prefix=zzzz")
    for each in translator.translate_all(TEXTS):
        assert each.text.startswith("zzzz")


def test_calibrated_decoding_requires_a_fitted_temperature(translator: Translator) -> None:
    with pytest.raises(SettingsError) as caught:
        translator.translate("a", settings=DecodingSettings(calibrated=True))
    assert str(caught.value) == (
        "decoding.calibrated: no temperature was fitted to the model's weights; "
        "translume evaluate MODEL SOURCE REFERENCE --fit-temperature fits one"
    )


def test_calibrated_and_unsmooth_are_mutually_exclusive() -> None:
    with pytest.raises(SettingsError) as caught:
        Config().change("decoding.calibrated=true", "decoding.unsmooth=0.1")
    assert str(caught.value) == (
        "--set: decoding: calibrated and unsmooth both make up for label smoothing, expected at most one of them; "
        "set calibrated = false or unsmooth = 0"
    )


@pytest.mark.parametrize("over", ["others", "text"])
def test_unsmoothing_is_refused_if_the_smoothing_excluded_tokens(translator: Translator, over: str) -> None:
    checkpoint = translator.checkpoint
    training = checkpoint.config.training.model_copy(update={"label_smoothing_over": over})
    other = replace(checkpoint, config=checkpoint.config.model_copy(update={"training": training}))
    with pytest.raises(SettingsError) as caught:
        Translator(other).translate("a", settings=DecodingSettings(unsmooth=0.1))
    assert str(caught.value) == (
        f"decoding.unsmooth: found 0.1, expected 0 with training.label_smoothing_over = '{over}', "
        "which does not spread it over all tokens"
    )


def test_unsmoothing_is_refused_if_the_smoothing_is_not_uniform(translator: Translator) -> None:
    checkpoint = translator.checkpoint
    model = checkpoint.config.model.model_copy(update={"head": SigmoidSettings()})
    tokens = len(checkpoint.source_tokenizer)
    other = replace(
        checkpoint,
        config=checkpoint.config.model_copy(update={"model": model}),
        model=build_model(model, tokens, tokens).eval(),
    )
    with pytest.raises(SettingsError) as caught:
        Translator(other).translate("a", settings=DecodingSettings(unsmooth=0.1))
    assert str(caught.value) == (
        "decoding.unsmooth: found 0.1, expected 0 with model.head.kind = 'sigmoid', "
        "which does not spread label smoothing evenly"
    )
    impossible = TargetScore(log_prob=-math.inf, tokens=("a", "</s>"), token_log_probs=(-math.inf, -1.5))
    values = {"log_prob": None, "tokens": ["a", "</s>"], "token_log_probs": [None, -1.5], "warnings": []}
    assert impossible.to_dict() == values
