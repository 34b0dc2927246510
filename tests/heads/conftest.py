"""Every head that the settings know, built over a small vocabulary."""

import typing
from collections.abc import Callable

import numpy as np
import pytest
import torch

from translume.config import heads
from translume.config.implementation import implementation
from translume.model import Head, HeadData, HeadSizes

WIDTH, VOCABULARY = 13, 101


def kinds() -> list[type]:
    """The settings classes of all heads: members of the union `HeadSettings`, however it is written."""
    found = heads.HeadSettings
    while typing.get_origin(found) is typing.Annotated:
        found = typing.get_args(found)[0]
    return list(typing.get_args(found)) or [found]


@pytest.fixture(
    params=[(kind, bias) for kind in kinds() for bias in ((True, False) if "bias" in kind.model_fields else (True,))],
    ids=lambda each: f"{each[0].model_fields['kind'].default}{'' if each[1] else '-without-bias'}",
)
def make(request: pytest.FixtureRequest) -> Callable[..., Head]:
    kind, bias = request.param

    def build(dtype: torch.dtype = torch.float32, vocabulary: int = VOCABULARY, width: int = WIDTH) -> Head:
        torch.manual_seed(5)
        tied = torch.nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)
        settings = kind(bias=bias) if "bias" in kind.model_fields else kind()
        sizes = HeadSizes(width=width, vocabulary=vocabulary, source_vocabulary=vocabulary)
        head = implementation(settings.implementation)(settings, sizes, None if settings.tie == "none" else tied)
        head.learn(data(vocabulary))
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                if "bias" in name:
                    parameter.normal_()
        return head.to(dtype).eval()

    return build


class Pairs:
    """Training pairs whose targets hold the ids of their sources, low ids more often."""

    def __init__(self, vocabulary: int, pairs: int = 97) -> None:
        generator = np.random.default_rng(3)
        self.pairs = pairs
        ranks = generator.random((pairs, 7)) ** 3 * (vocabulary - 4)
        self._ids = ranks.astype(np.int64) + 4

    def source(self, index: int) -> np.ndarray:
        return self._ids[index]

    def target(self, index: int) -> np.ndarray:
        return self._ids[index][::-1]


def data(vocabulary: int) -> HeadData:
    pieces = [f"piece{index}" for index in range(vocabulary)]
    return HeadData(
        corpus=Pairs(vocabulary),
        source_pieces=pieces,
        target_pieces=pieces,
        end=2,
        specials=frozenset({0, 1, 2, 3}),
    )
