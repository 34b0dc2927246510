"""The engine reads recordings, images and arrays as the plain model does, without it."""

import numpy as np
import pytest
import torch
from tests.sources.conftest import untrained

from translume.checkpoint import build_model
from translume.config import Config
from translume.engine import Engine, build_engine, self_test
from translume.kernels.loading import has_kernels
from translume.model import Transformer
from translume.translator import Translator

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")

ENCODER = {"width": 48, "feed_forward": 112, "attention_heads": 3, "norm": "pre", "norm_epsilon": 1e-12}
CASES = {
    "features": (
        {"kind": "features", "values": 5, "convolutions": 0},
        {"positions": "learned", "embedding_norm": True},
    ),
    "audio": ({"kind": "audio", "mels": 11, "channels": 24}, {"positions": "rotary", "head_width": 22}),
    "audio with distances": ({"kind": "audio", "mels": 11}, {"positions": "relative", "head_width": 13}),
    "grey image": ({"kind": "image", "height": 13, "channels": 7}, {"norm": "post", "normalization": "rms"}),
    "color image": ({"kind": "image", "height": 16, "color": True, "convolutions": 3}, {}),
    "pixels": ({"kind": "image", "height": 7, "color": True, "convolutions": 0}, {}),
    "patches": ({"kind": "patches", "height": 24, "width": 32, "patch": 8, "first": 2}, {"encoder": ENCODER}),
    "patches in a model with rotations": (
        {"kind": "patches", "height": 24, "width": 32, "patch": 8},
        {"positions": "rotary"},
    ),
    "whisper": (
        {"kind": "whisper", "mels": 11, "positions": 53},
        {"positions": "learned", "activation": "gelu", "language_tags": "english_speech"},
    ),
    "waveform": (
        {"kind": "waveform"},
        {"positions": "rotary", "rotary_width": 10, "activation": "swiglu", "encoder": {"activation": "gelu"}},
    ),
}


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest) -> Transformer:
    source, changes = CASES[request.param]
    sizes = {"width": 80, "feed_forward": 96, "attention_heads": 5, "encoder_layers": 2, "decoder_layers": 1}
    values = {**sizes, "max_positions": 59, "head": {"kind": "softmax", "tie": "target"}, **changes}
    config = Config.build({"data": {"source": source}, "model": values})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        built = build_model(config.model, 31, 31, config.data.source).eval()
        for name, tensor in [*built.named_parameters(), *built.named_buffers()]:
            if "table" not in name:
                tensor += torch.rand_like(tensor) * 0.2
    return built


def encoded(engine: Engine, frames: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    assert engine.front is not None
    assert engine.encoder is not None
    x, there = engine.front.embedded(frames.numpy(), mask.numpy())
    return engine.encoder.encode(x, there.sum(1))


@pytest.mark.parametrize(("dtype", "bound"), [("fp32", 1e-5), ("int8", 5e-2)])
@torch.no_grad()
def test_states_are_those_of_the_plain_model_alone_and_in_a_batch(model: Transformer, dtype: str, bound: float) -> None:
    engine = build_engine(model, dtype)
    lengths = torch.tensor([11, 41, 1, 17])
    generator = torch.Generator().manual_seed(3)
    frames, mask = model.encoder.embedding.example(torch.arange(41) < lengths[:, None], generator)
    frames = frames * mask[..., None]
    positions, there = model.encoder.front(frames, mask)
    expected = model.encoder(positions, there)[there].numpy()
    together = encoded(engine, frames, mask)
    assert np.abs(together - expected).max() <= bound * np.abs(expected).max()
    alone = [
        encoded(engine, frames[row : row + 1, inside], mask[row : row + 1, inside]) for row, inside in enumerate(mask)
    ]
    assert np.array_equal(np.concatenate(alone), together)
    assert engine.plain_parts == []
    findings = self_test(engine, model)
    assert findings.agrees
    assert findings.alone_equals_batched


@pytest.mark.parametrize("kind", ["audio", "features", "image"])
def test_texts_are_those_of_the_plain_model(kind: str) -> None:
    plain = untrained(kind, width=32, feed_forward=48)
    engine = build_engine(plain.checkpoint.model)
    fast, random = Translator(plain.checkpoint, engine), np.random.default_rng(7)
    shapes = {"audio": [(7013,), (2503, 2)], "features": [(31, 5), (3, 5)], "image": [(23, 61), (8, 17)]}[kind]
    given = [random.uniform(0, 1, size=shape).astype(np.float32) for shape in shapes]
    searches = [{"beam": 1}, {"beam": 3, "nbest": 2}, {"beam": 3, "nbest": 2, "ctc_weight": 0.5}]
    for options in searches:
        for one, other in zip(*(each.translate_all(given, **options) for each in (plain, fast)), strict=True):
            assert [each.ids for each in one.hypotheses] == [each.ids for each in other.hypotheses]
            scores = [each.score for each in other.hypotheses]
            assert [each.score for each in one.hypotheses] == pytest.approx(scores, abs=1e-4)
        single = [fast.translate(each, **options).hypotheses for each in given]
        assert [each.hypotheses for each in fast.translate_all(given, **options)] == single


def test_no_recording_and_an_empty_one_have_no_states() -> None:
    engine = build_engine(untrained("audio", width=32, feed_forward=48).checkpoint.model)
    for count in (0, 2):
        frames = torch.zeros(count, 3, 11)
        assert encoded(engine, frames, torch.zeros(frames.shape[:2], dtype=torch.bool)).shape == (0, 32)
