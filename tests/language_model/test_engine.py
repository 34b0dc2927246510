"""The fast engine of a language model gives the results of the plain model."""

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from translume.checkpoint import build_language_model
from translume.cli import main
from translume.config import DecodingSettings, ModelSettings
from translume.engine import build_engine, self_test
from translume.kernels.loading import has_kernels
from translume.model import Transformer
from translume.translator import Generator
from translume.translator.loading import ComputeOptions

WHOLE = {"width": 48, "feed_forward": 64, "attention_heads": 3}
"""Widths in vectors of the kernels."""


def network(**settings: Any) -> Transformer:
    chosen = ModelSettings.model_validate(
        {"encoder_layers": 0, "decoder_layers": 2, "dropout": 0.0, "max_positions": 37, **WHOLE, **settings}
    )
    torch.manual_seed(5)
    model = build_language_model(chosen, 31, 31).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"positions": "learned", "activation": "gelu", "bias": False},
        {"positions": "none", "normalization": "rms", "activation": "swiglu"},
        {"decoder_mixing": "ssru"},
        {"positions": "rotary"},
        {"positions": "relative", "relative_buckets": 8, "relative_max_distance": 12},
    ],
    ids=str,
)
@pytest.mark.skipif(not has_kernels(), reason="no kernels")
def test_the_engine_passes_its_self_test(settings: dict[str, Any], norm: str) -> None:
    model = network(norm=norm, **settings)
    findings = self_test(build_engine(model), model)
    assert findings.agrees
    assert findings.difference < 1e-3
    assert findings.alone_equals_batched


@pytest.mark.parametrize("changes", [{"strategy": "greedy"}, {"beam": 3, "nbest": 2}, {"strategy": "sampling"}])
def test_generations_are_those_of_the_plain_model(changes: dict[str, Any], folder: Path) -> None:
    fast = Generator.load(folder, ComputeOptions(engine="fast", device="cpu"))
    plain = Generator.load(folder, ComputeOptions(engine="plain", device="cpu"))
    assert fast.engine is not None
    assert plain.engine is None
    settings = DecodingSettings.model_validate({"seed": 7, **changes})
    for one, other in zip(
        fast.generate_all(["aa bb", "", "cc dd"], settings=settings),
        plain.generate_all(["aa bb", "", "cc dd"], settings=settings),
        strict=True,
    ):
        assert one.text == other.text
        assert one.hypotheses[0].log_prob == pytest.approx(other.hypotheses[0].log_prob, abs=1e-3)


def test_long_texts_slide_with_the_engine(folder: Path) -> None:
    fast = Generator.load(folder, ComputeOptions(engine="fast", device="cpu"))
    settings = DecodingSettings(strategy="greedy", max_length=37, min_length=37)
    found = fast.generate("aa bb", settings=settings).hypotheses[0]
    assert fast.score(found, prompt="aa bb").log_prob == pytest.approx(found.log_prob, abs=1e-3)


def test_int8_weights_generate_also_those_of_a_packed_file(folder: Path, tmp_path: Path) -> None:
    def generated() -> tuple[str, Path | None]:
        generator = Generator.load(model, ComputeOptions(dtype="int8", device="cpu"))
        assert generator.engine is not None
        assert generator.engine.dtype == "int8"
        return generator.generate("aa bb", strategy="greedy", max_length=3).text, generator.engine.packed_file

    model = copytree(folder, tmp_path / "model")
    text, packed = generated()
    assert text
    assert packed is None
    done = CliRunner().invoke(main, ["pack", str(model), "--dtype", "int8"])
    assert done.exit_code == 0, done.output
    assert generated() == (text, Path(done.output.rpartition(": ")[0]))
