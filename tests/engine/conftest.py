"""Small networks with random weights, and sources of uneven lengths."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from translume.checkpoint import build_model
from translume.config import ModelSettings, SoftmaxSettings
from translume.model import Transformer

SOURCE_SIZE, TARGET_SIZE = 17, 19


@pytest.fixture(scope="session")
def make() -> Callable[..., Transformer]:
    """A tiny network in evaluation mode whose biases and gains are random too, so that none can be forgotten."""

    def build(**changes: object) -> Transformer:
        torch.manual_seed(7)
        head = changes.pop("head", None) or SoftmaxSettings(
            tie=changes.pop("tie", "none"), bias=changes.get("bias", True)
        )
        values = {
            "width": 22, "feed_forward": 13, "encoder_layers": 2, "decoder_layers": 3, "attention_heads": 11,
            "dropout": 0.1, "max_positions": 79, "head": head,
        }  # fmt: skip
        settings = ModelSettings(**{**values, **changes})
        size = SOURCE_SIZE if settings.head.tie == "all" else TARGET_SIZE
        model = build_model(settings, SOURCE_SIZE, size).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        return model

    return build


@pytest.fixture(scope="session")
def sources() -> Callable[..., tuple[Tensor, Tensor]]:
    """Ids and mask [B, S] of sources of the given lengths."""

    def build(*lengths: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        return torch.randint(SOURCE_SIZE, mask.shape, generator=generator), mask

    return build


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What probes find here is kept in a folder of the tests' own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSLUME_CACHE", str(folder))
        yield folder
