"""Keyword arguments: all settings of [decoding], one rule for `beam`, and "did you mean" for unknown names."""

from fractions import Fraction
from typing import get_type_hints

import numpy as np
import pytest

import translume
from translume.config import DecodingOptions, DecodingSettings
from translume.errors import SettingsError, TranslumeError
from translume.inspection import force_token, inspect_corpus
from translume.translator import Translator
from translume.translator.loading import ComputeOptions

TEXT = "abc de. fgh"


def test_every_setting_of_decoding_is_a_keyword_of_the_same_type() -> None:
    # These also take one text, a list of ids, or tables that are not yet settings.
    lists = {"ban", "placeholders", "stop_strings", "suppress", "suppress_first", "ends", "rules", "options"}
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


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("beam", np.int64(2), 2), ("max_length", np.uint8(3), 3), ("suppress", [np.int32(5)], (5,)),
        ("length_penalty", np.float32(0.5), 0.5), ("length_penalty", Fraction(1, 2), 0.5),
        ("alignment", np.True_, True),
    ],
)  # fmt: skip
def test_other_numbers_than_python_s_own_are_read(name, given, read) -> None:
    found = getattr(DecodingSettings(**{name: given}), name)
    assert (found, type(found)) == (read, type(read))


@pytest.mark.parametrize("given", [True, np.True_, 2.0, np.float64(2.0), "2"])
def test_what_is_no_integer_is_refused_as_a_beam(given) -> None:
    with pytest.raises(SettingsError):
        DecodingSettings(beam=given)


def test_arguments_of_another_kind_are_named(translator: Translator) -> None:
    for call, message in (
        (lambda: translume.load("m", engine="plian"), "engine: found 'plian'; did you mean 'plain'?"),
        (lambda: ComputeOptions(engine="plian"), "engine: found 'plian'; did you mean 'plain'?"),
        (lambda: ComputeOptions(dtype="fp23"), "dtype: found 'fp23'; did you mean 'fp32'?"),
        (lambda: translume.load(None), "folder: found NoneType, expected a path or hf://owner/name"),
        (lambda: inspect_corpus(translator, [("a", None)]),
         "pairs: line 1: found ('a', None), expected two strings, a source and its target"),
        (lambda: inspect_corpus(translator, ["ab"]),
         "pairs: line 1: found 'ab', expected two strings, a source and its target"),
        (lambda: force_token(translator, TEXT, 1.0, "a"), "step: found float, expected an integer"),
        (lambda: force_token(translator, TEXT, 0, None), "token: found NoneType, expected an id or a text"),
    ):  # fmt: skip
        with pytest.raises((TypeError, TranslumeError)) as raised:
            call()
        assert str(raised.value).startswith(message)


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
