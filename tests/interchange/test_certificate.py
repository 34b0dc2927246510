"""A certificate compares finite numbers: no NaN and no infinity passes as a small difference."""

import pytest
import torch
from tests.errors import raises

import translume
from translume.checkpoint import save_model
from translume.config import TokenizerSettings
from translume.errors import SettingsError, TranslumeError
from translume.interchange.certificate import ForcedTargets
from translume.interchange.export import TARGETS
from translume.text import train_tokenizer

from .conftest import random_checkpoint

NAN, INFINITE = float("nan"), float("inf")


def forced(*log_probs):
    return ForcedTargets(given=1, sources=[], targets=[], log_probs=list(log_probs))


def test_a_certificate_has_the_largest_and_the_mean_difference_after_the_tags():
    found = forced([9.0, -1.0, -2.0], [9.0, -INFINITE]).certificate([[NAN, -1.5, -2.25], [0.0, -INFINITE]], "int8")
    assert (found.sentences, found.tokens, found.difference, found.mean_difference) == (2, 3, 0.5, 0.25)


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [(-1.0, NAN, "-1 here and nan"), (NAN, -1.0, "nan here and -1"), (NAN, NAN, "nan here and nan"),
     (-1.25, -INFINITE, "-1.25 here and -inf"), (-INFINITE, -2.5, "-inf here and -2.5")],
)  # fmt: skip
def test_one_log_probability_that_is_not_finite_is_refused(ours, theirs, shown):
    for place in range(3):
        one, other = [-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0]
        one[place], other[place] = ours, theirs
        message = (
            f"certificate: found log-probabilities {shown} in the other toolkit for one token, expected finite numbers "
            "in both"
        )
        with raises(TranslumeError, message):
            forced([0.0, *one]).certificate([[0.0, *other]], "float32")


def test_a_difference_beyond_the_tolerance_is_refused_for_float32_only(tmp_path):
    assert forced([0.0, -1.0]).compare([[0.0, -1.25]], "CTranslate2", tmp_path, "int8").difference == 0.25
    with raises(TranslumeError, f"{tmp_path}: CTranslate2 differs by 0.25 nats a token, expected at most 0.001"):
        forced([0.0, -1.0]).compare([[0.0, -1.25]], "CTranslate2", tmp_path)


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """Return a function that saves a model with one element or row of a parameter set to a value."""
    tokenizer = train_tokenizer(TokenizerSettings(size=307), ["a man rides a bike.", "the dog runs far away!"])

    def save(place, value):
        checkpoint = random_checkpoint(tokenizer, encoder_layers=1, decoder_layers=1)
        with torch.no_grad():
            checkpoint.model.get_parameter(place)[3] = value
        folder = tmp_path_factory.mktemp("damaged") / "model"
        save_model(folder, checkpoint)
        return folder

    return save


@pytest.mark.parametrize("target", ["ctranslate2", "huggingface", "marian", "onnx"])
def test_a_model_with_a_damaged_weight_is_not_exported(save, tmp_path, target):
    pytest.importorskip(module := TARGETS[target][0], reason=f"{module} cannot be imported", exc_type=ImportError)
    place = "decoder.layers.0.feed_forward.outer.bias"
    for value in (NAN, INFINITE, -INFINITE):
        model = save(place, value)
        with raises(TranslumeError, f"export: {model}: {place}: found {value:g}, expected finite numbers"):
            translume.export(model, target, tmp_path / "out")
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("package", "target"), [("ctranslate2", "ctranslate2"), ("transformers", "huggingface")])
def test_a_model_that_computes_nan_is_not_exported(save, tmp_path, package, target):
    pytest.importorskip(package, reason=f"{package} is not installed")
    model = save("decoder.layers.0.feed_forward.inner.weight", 3e38)  # products of it overflow
    with pytest.raises(TranslumeError, match=r"^certificate: found log-probabilities (nan here|.* nan in the other)"):
        translume.export(model, target, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_model_folder_is_exported_with_smaller_weights(tmp_path):
    tokenizer = train_tokenizer(TokenizerSettings(size=307), ["a man rides a bike.", "the dog runs far away!"])
    save_model(tmp_path / "model", random_checkpoint(tokenizer, encoder_layers=1, decoder_layers=1))
    sizes = {}
    for dtype, most in (("float32", 0.0), ("bfloat16", 0.5), ("int8", 0.5)):
        certificate = translume.export(tmp_path / "model", "translume", tmp_path / dtype, dtype=dtype)
        assert (certificate.dtype, certificate.difference <= most) == (dtype, True)
        [path] = (tmp_path / dtype).glob("weights-*")
        sizes[dtype] = path.stat().st_size
    assert 2 * sizes["int8"] < sizes["float32"]
    with raises(SettingsError, "export: found weights as 'int16', expected float32, float16, bfloat16 or int8"):
        translume.export(tmp_path / "model", "translume", tmp_path / "out", dtype="int16")
