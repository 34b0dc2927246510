"""Small networks with random weights, engines of them, and sources of uneven lengths."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from translume.checkpoint import build_model
from translume.config import AdaptiveSettings, CopySettings, MixtureSettings, ModelSettings, SoftmaxSettings
from translume.engine import Engine, build_engine
from translume.kernels.cpu import cache_folder
from translume.kernels.loading import has_kernels
from translume.model import Transformer

SOURCE_SIZE, TARGET_SIZE = 17, 19

WHOLE = {"width": 96, "feed_forward": 48, "attention_heads": 3, "encoder_layers": 3, "decoder_layers": 2}
"""Widths in vectors of the kernels: two for heads, three for feed-forward blocks. Other heads get zeros."""
FOR_KERNELS = [
    {**WHOLE, **changes}
    for changes in (
        {"norm": "pre"},
        {"norm": "post", "positions": "learned", "bias": False, "head_width": 13},
        {
            "norm": "pre",
            "activation": "swiglu",
            "normalization": "rms",
            "positions": "rotary",
            "head_width": 22,
            "rotary_width": 10,
            "encoder": {"norm": "post", "activation": "gelu", "head_width": 12, "feed_forward": 80},
        },
        {"norm": "post", "activation": "gelu", "normalization": "rms"},
        {"norm": "pre", "activation": "swish", "attention_heads": 6, "positions": "none", "segments": 3},
        {"norm": "pre", "segments": 2, "segment_pooling": "sum", "positions": "relative", "shared_layers": True},
        {"norm": "post", "width": 64, "attention_heads": 1, "feed_forward": 80},
        {"decoder_mixing": "ssru"},
        {"decoder_mixing": "ssru", "norm": "post", "bias": False},
        {"norm": "pre", "width": 48, "attention_heads": 1, "feed_forward": 16, "scale_embeddings": False},
        {
            "norm": "pre",
            "positions": "relative",
            "relative_buckets": 8,
            "relative_max_distance": 12,
            "head_width": 16,
            "activation": "geglu",
            "normalization": "rms",
            "bias": False,
        },
    )
]
OTHER_PARTS = [
    {**WHOLE, **changes}
    for changes in (
        {"tie": "all", "norm": "post", "embedding_norm": True},
        {"encoder_layers": 0, "decoder_layers": 1, "scale_embeddings": False},
        {"segments": 3, "activation": "swiglu", "embedding_norm": True, "normalization": "rms"},
        {"head": CopySettings(tie="none")},
        {"head": MixtureSettings(tie="none")},
        {"head": AdaptiveSettings(tie="none", cutoffs=(5, 11))},
    )
]
"""Networks with other heads, and sources that are not read in one call."""
Built = tuple[Transformer, Engine]


def _name(changes: dict[str, object]) -> str:
    return "-".join(str(value) for name, value in changes.items() if WHOLE.get(name) != value)[:60]


@pytest.fixture(scope="session")
def make() -> Callable[..., Transformer]:
    """A tiny network in evaluation mode whose biases and gains are random too, so that ignoring one is noticed."""

    def build(**changes: object) -> Transformer:
        torch.manual_seed(7)
        head = changes.pop("head", None) or SoftmaxSettings(
            tie=changes.pop("tie", "none"), bias=changes.get("bias", True)
        )
        values = {
            "width": 96, "feed_forward": 48, "encoder_layers": 2, "decoder_layers": 3, "attention_heads": 3,
            "dropout": 0.1, "max_positions": 79, "head": head,
        }  # fmt: skip
        settings = ModelSettings(**{**values, **changes})
        size = SOURCE_SIZE if settings.head.tie == "all" else TARGET_SIZE
        model = build_model(settings, SOURCE_SIZE, size).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
            if settings.segments:
                model.encoder.embedding.separators.zero_()[:4] = 1
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
    """Cache what these tests make in a temporary folder, but not kernels: compiling them takes ten seconds."""
    folder = tmp_path_factory.mktemp("cache")
    if has_kernels() and (libraries := cache_folder() / "native").is_dir():
        (folder / "native").symlink_to(libraries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSLUME_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def fresh(make: Callable[..., Transformer], cache: Path) -> Callable[..., Built]:
    """Build a network and an engine of it."""

    def build(changes: dict[str, object], dtype: str = "fp32") -> Built:
        if not has_kernels():
            pytest.skip("no kernels")
        model = make(**changes)
        return model, build_engine(model, dtype)

    return build


@pytest.fixture(scope="session", params=FOR_KERNELS, ids=_name)
def whole(request: pytest.FixtureRequest) -> dict[str, object]:
    """Settings of a network that the kernels support."""
    return dict(request.param)


@pytest.fixture(scope="session", params=[*FOR_KERNELS, *OTHER_PARTS], ids=_name)
def built(request: pytest.FixtureRequest, fresh: Callable[..., Built]) -> Built:
    """A network and an engine of it."""
    return fresh(request.param)
