"""Keyword arguments: all settings of [decoding], one rule for `beam`, and "did you mean" for unknown names."""

from typing import get_type_hints

import pytest

import translume
from translume.config import DecodingOptions, DecodingSettings
from translume.translator import Translator

TEXT = "abc de. fgh"


def test_every_setting_of_decoding_is_a_keyword_of_the_same_type() -> None:
    lists = {"ban", "placeholders", "suppress", "suppress_first"}  # which also take one text, or a list of ids
    of_settings = {name: field.annotation for name, field in DecodingSettings.model_fields.items()}
    of_options = get_type_hints(DecodingOptions)
    assert list(of_options) == list(of_settings)
    assert {name: kind for name, kind in of_options.items() if name not in lists} == {
        name: kind for name, kind in of_settings.items() if name not in lists
    }


def test_translate_and_translate_all_take_any_setting_of_decoding(translator: Translator) -> None:
    options = {"max_length": 3, "ban": ["b"], "alignment": True, "repetition_penalty": 1.5}
    settings = translator.config.decoding.model_copy(update={**options, "ban": ("b",)})
    expected = translator.translate(TEXT, settings=settings)
    assert translator.translate(TEXT, **options) == expected
    assert next(translator.translate_all([TEXT], **options)) == expected


def test_a_beam_width_chooses_beam_search_on_a_greedy_model(make) -> None:
    greedy, beam = make("decoding.strategy=greedy"), make("decoding.strategy=beam", "decoding.beam=4")
    assert greedy.translate(TEXT) != beam.translate(TEXT)
    assert greedy.translate(TEXT, beam=4) == beam.translate(TEXT)
    assert list(greedy.translate_all([TEXT], beam=4)) == list(beam.translate_all([TEXT]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda translator: translator.translate(TEXT, bem=5),
            "translate() got an unexpected keyword argument 'bem'. Did you mean 'beam'?",
        ),
        (
            lambda translator: translator.translate_all([TEXT], constraint=[]),
            "translate_all() got an unexpected keyword argument 'constraint'. Did you mean 'constraints'?",
        ),
        (
            lambda translator: translume.load("models/en-de", devise="cpu"),
            "load() got an unexpected keyword argument 'devise'. Did you mean 'device'?",
        ),
        (
            lambda translator: translume.evaluate(translator, ["a"], ["b"], setings=None),
            "evaluate() got an unexpected keyword argument 'setings'. Did you mean 'settings'?",
        ),
        (
            lambda translator: translume.trace(translator, "a", xyz=1),
            "trace() got an unexpected keyword argument 'xyz'",
        ),
    ],
)
def test_an_unknown_keyword_argument_names_the_nearest_one(translator: Translator, call, message: str) -> None:
    with pytest.raises(TypeError) as error:
        call(translator)
    assert str(error.value) == message
