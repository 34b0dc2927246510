"""The first loss of an untrained network is between ln V and ln V + 1, for every shape."""

import math

import pytest
import torch

from translume.checkpoint import build_model
from translume.config import CopySettings, MixtureSettings, ModelSettings, SoftmaxSettings

SHAPES = [
    # width, V, encoder and decoder layers, other settings
    (512, 500, 1, 1, {"norm": "pre"}),
    (512, 500, 1, 1, {"norm": "post"}),
    (512, 500, 1, 1, {"norm": "pre", "normalization": "rms", "activation": "swiglu", "positions": "rotary"}),
    (64, 500, 2, 2, {"norm": "pre", "positions": "relative"}),
    (64, 101, 1, 1, {"norm": "pre"}),
    (64, 11, 1, 1, {"norm": "pre"}),
    (128, 997, 4, 4, {"norm": "post"}),
    (256, 3001, 3, 3, {"norm": "pre", "positions": "learned", "bias": False}),
    (256, 3001, 0, 2, {"norm": "pre", "positions": "none", "activation": "gelu"}),
    (128, 997, 2, 2, {"norm": "pre", "scale_embeddings": False}),
    (512, 500, 1, 1, {"norm": "pre", "decoder_mixing": "ssru"}),
    (128, 997, 6, 2, {"norm": "pre", "decoder_mixing": "ssru"}),
    (64, 101, 1, 1, {"norm": "post", "decoder_mixing": "ssru"}),
    (128, 997, 12, 1, {"norm": "pre"}),
    (128, 997, 2, 2, {"head": MixtureSettings}),
    (512, 500, 1, 1, {"head": MixtureSettings}),
    (64, 101, 1, 1, {"head": CopySettings}),
    (512, 500, 1, 1, {"head": CopySettings}),
]


@pytest.mark.parametrize("tie", ["all", "target", "none"])
@pytest.mark.parametrize(
    ("width", "size", "above", "below", "changes"),
    SHAPES,
    ids=lambda each: str(each) if isinstance(each, int) else None,
)
@torch.no_grad()
def test_the_first_loss_is_that_of_a_uniform_prediction(width, size, above, below, changes, tie):
    head = changes.get("head", SoftmaxSettings)(tie=tie)
    sizes = {"width": width, "feed_forward": 2 * width, "encoder_layers": above, "decoder_layers": below}
    settings = ModelSettings(**{**sizes, "attention_heads": 4, **changes, "head": head})
    torch.manual_seed(3)
    model = build_model(settings, size, size).eval()
    source, target, labels = torch.randint(size, (3, 12, 13)).unbind(0)
    mask = torch.ones(12, 13, dtype=torch.bool)
    loss = model.loss(source, mask, target, labels, mask)
    # 156 labels with logits of variance 1: the standard error of the mean is about 0.08.
    assert math.log(size) - 0.25 <= float(loss.nll) / loss.tokens <= math.log(size) + 1
