"""The engine classifies texts as the plain model does."""

import numpy as np
import pytest
import torch

from translume.checkpoint.building import build_classifier
from translume.config import ClassifySettings, ModelSettings
from translume.engine import ClassEngine
from translume.engine.network import Network
from translume.errors import ModelFolderError
from translume.kernels.loading import NativeError, has_kernels

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")
SHAPE = {"width": 32, "feed_forward": 48, "attention_heads": 2, "max_positions": 23, "dropout": 0.0}
CASES = [
    ({"pooling": "mean"}, {"encoder_layers": 2}),
    ({"pooling": "max", "bias": False}, {"encoder_layers": 1, "norm": "post"}),
    ({"pooling": "first"}, {"encoder_layers": 1, "positions": "rotary", "embedding_norm": True}),
    ({"pooling": "attention", "labels": "several"}, {"encoder_layers": 1, "segments": 2}),
    ({"pooling": "ngrams", "ngrams": (1, 2, 5), "filters": 7}, {"encoder_layers": 0, "positions": "none"}),
    ({"pooling": "ngrams", "ngrams": (3,), "filters": 5, "labels": "several"}, {"encoder_layers": 1}),
]


def classifier(head, changes):
    """Return a plain model with random weights, and what an engine reads of it."""
    torch.manual_seed(3)
    settings = ModelSettings(**{**SHAPE, **changes}, head=ClassifySettings(**head))
    model = build_classifier(settings, 29, 11).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        if settings.segments:
            model.encoder.embedding.separators[5] = 1
    weights = {name: each.detach().numpy() for name, each in model.state_dict().items()}
    return model, Network(settings=settings, weights=weights, place="w")


@pytest.mark.parametrize(("head", "changes"), CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_probabilities_are_those_of_the_plain_model(head, changes):
    model, network = classifier(head, changes)
    mask = np.arange(13) < np.array([[13], [1], [4], [7]])
    source = np.random.default_rng(1).integers(0, 29, mask.shape)
    found = ClassEngine(network).probabilities(source, mask)
    with torch.no_grad():
        wanted = model.belief(torch.from_numpy(source), torch.from_numpy(mask)).log_probs().exp().numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    alone = ClassEngine(network).probabilities(source[2:3, :4], mask[2:3, :4])
    np.testing.assert_allclose(alone, found[2:3], rtol=1e-5, atol=1e-7)


def test_weights_that_do_not_fit_and_other_widths_are_refused():
    _, network = classifier(*CASES[4])
    name = "pooling.ngrams.filters.2.weight"
    changed = Network(settings=network.settings, weights={**network.weights, name: np.zeros((7, 32, 4))}, place="w")
    with pytest.raises(
        ModelFolderError, match=r"^w: pooling.ngrams.filters.2.weight is \[7, 32, 4\], expected \[7, 32, 5\] by "
    ):
        ClassEngine(changed)
    for more in ("pooling.query", "encoder.layers.0.norm.weight"):
        changed = Network(settings=network.settings, weights={**network.weights, more: np.zeros(32)}, place="w")
        with pytest.raises(ModelFolderError, match=f"^w: holds {more}, which a model of these settings does not have$"):
            ClassEngine(changed)
    with pytest.raises(NativeError, match=r"^model.width: found 20, the kernels need a multiple of 16$"):
        ClassEngine(classifier({"pooling": "mean"}, {"width": 20})[1])
