"""Small networks whose dimensions are distinct primes, and inputs of different lengths."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from translume.checkpoint import build_model
from translume.config import ModelSettings, SoftmaxSettings
from translume.model import Transformer

SOURCE_SIZE, TARGET_SIZE = 17, 19


@dataclass(frozen=True)
class Inputs:
    """Ids and masks of sources and targets of the given lengths; padding holds random ids."""

    source: Tensor
    source_mask: Tensor
    target: Tensor
    labels: Tensor
    target_mask: Tensor

    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.source, self.source_mask, self.target, self.labels, self.target_mask


def inputs(source_lengths: list[int], target_lengths: list[int], *, seed: int = 0, extra: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def side(lengths: list[int], size: int) -> tuple[Tensor, Tensor, Tensor]:
        width = max(lengths) + extra
        shape = (len(lengths), width)
        mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
        ids, others = (torch.randint(size, shape, generator=generator) for _ in range(2))
        return ids, others, mask

    source, _, source_mask = side(source_lengths, SOURCE_SIZE)
    target, labels, target_mask = side(target_lengths, TARGET_SIZE)
    return Inputs(source, source_mask, target, labels, target_mask)


def settings_of(**changes: object) -> ModelSettings:
    """A tiny network: width 22 in 11 heads, since rotary positions need an even width per head."""
    tie = changes.pop("tie", "none")
    values = {
        "width": 22, "feed_forward": 13, "encoder_layers": 2, "decoder_layers": 3, "attention_heads": 11,
        "dropout": 0.0, "max_positions": 29, "head": SoftmaxSettings(tie=tie, bias=changes.get("bias", True)),
    }  # fmt: skip
    return ModelSettings(**{**values, **changes})


def build(**changes: object) -> Transformer:
    """A tiny network in evaluation mode. Its biases and gains are random, so that omitting one has an effect."""
    torch.manual_seed(7)
    settings = settings_of(**changes)
    target_size = SOURCE_SIZE if settings.head.tie in ("all", "embeddings") else TARGET_SIZE
    model = build_model(settings, SOURCE_SIZE, target_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        if settings.segments:
            model.encoder.embedding.separators.zero_()[3] = 1
    return model


@pytest.fixture(scope="session")
def make() -> Callable[..., Transformer]:
    return build


@pytest.fixture(scope="session")
def make_inputs() -> Callable[..., Inputs]:
    return inputs
