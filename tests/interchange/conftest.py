"""A small network whose every weight is random, biases and gains too."""

from collections.abc import Callable

import pytest
import torch

from translume.checkpoint import build_model
from translume.config import ModelSettings, SoftmaxSettings
from translume.model import Transformer

VOCABULARY = 53


def build(**changes: object) -> tuple[Transformer, ModelSettings]:
    torch.manual_seed(23)
    values = {
        "width": 34, "feed_forward": 29, "encoder_layers": 2, "decoder_layers": 3, "attention_heads": 17,
        "dropout": 0.0, "max_positions": 41, "norm": "post", "head": SoftmaxSettings(),
    }  # fmt: skip
    settings = ModelSettings(**{**values, **changes})
    model = build_model(settings, VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model, settings


@pytest.fixture(scope="session")
def make() -> Callable[..., tuple[Transformer, ModelSettings]]:
    return build
