"""A language model is pickled by its folder and options, and says what it is."""

import pickle
from pathlib import Path

import pytest

import translume


def test_a_generator_is_pickled_by_its_folder_and_says_what_it_is(folder: Path) -> None:
    generator = translume.load(folder, device="cpu", engine="plain")
    again = pickle.loads(pickle.dumps(generator))
    assert again.generate("the ", max_length=3) == generator.generate("the ", max_length=3)
    size = sum(weight.numel() for weight in generator.checkpoint.model.parameters())
    assert repr(again) == repr(generator)
    assert repr(again).startswith(f"<Generator: {size:,} parameters, ")
    assert repr(again).endswith(f", plain model, {folder.absolute()}>")
    with pytest.raises(TypeError, match=r"^Generator: it has no model folder, so it cannot be pickled; "):
        pickle.dumps(translume.Generator(generator.checkpoint))


def test_generate_takes_any_setting_of_decoding_and_names_the_nearest_keyword(folder: Path) -> None:
    generator = translume.load(folder, device="cpu", engine="plain")
    assert not generator.generate("aa bb", strategy="greedy", max_length=3, repetition_penalty=9.0).warnings
    with pytest.raises(TypeError) as error:
        generator.generate("the ", max_lenght=3)
    assert str(error.value) == "generate() got an unexpected keyword argument 'max_lenght'. Did you mean 'max_length'?"
