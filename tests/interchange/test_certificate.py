"""A certificate compares finite numbers: no NaN and no infinity passes as a small difference."""

import pytest
import torch

import translume
from translume.checkpoint import Checkpoint, build_model, save_model
from translume.config import Config, ModelSettings, TokenizerSettings
from translume.errors import TranslumeError
from translume.interchange.certificate import ForcedTargets
from translume.text import train_tokenizer

NAN, INFINITE = float("nan"), float("inf")
SHAPE = {"width": 34, "feed_forward": 29, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 17}


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
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_log_probability_that_is_not_finite_is_refused(ours, theirs, shown, place):
    one, other = [-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0]
    one[place], other[place] = ours, theirs
    with pytest.raises(TranslumeError) as error:
        forced([0.0, *one]).certificate([[0.0, *other]], "float32")
    assert str(error.value) == (
        f"certificate: found log-probabilities {shown} in the other toolkit for one token, expected finite numbers in "
        "both"
    )


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A model with one weight that is not a number."""
    tokenizer = train_tokenizer(TokenizerSettings(size=307), ["a man rides a bike.", "the dog runs far away!"])
    settings = ModelSettings(**SHAPE, dropout=0.0, max_positions=41)
    model = build_model(settings, len(tokenizer), len(tokenizer)).eval()
    with torch.no_grad():
        next(iter(model.decoder.stack)).feed_forward.outer.bias[3] = NAN
    folder = tmp_path_factory.mktemp("damaged") / "model"
    config = Config(model=settings)
    save_model(folder, Checkpoint(config=config, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer))
    return folder


@pytest.mark.parametrize(
    ("package", "target", "dtype"),
    [("ctranslate2", "ctranslate2", "float32"), ("ctranslate2", "ctranslate2", "int8"),
     ("transformers", "huggingface", "float32"), ("onnxruntime", "onnx", "float32"), ("onnxruntime", "onnx", "int8")],
)  # fmt: skip
def test_a_model_with_a_nan_is_not_exported(damaged, tmp_path, package, target, dtype):
    pytest.importorskip(package, reason=f"{package} is not installed")
    with pytest.raises(TranslumeError, match=r"^certificate: found log-probabilities nan here and "):
        translume.export(damaged, target, tmp_path / "out", dtype=dtype)
    assert not list(tmp_path.iterdir())
