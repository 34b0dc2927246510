"""Every head that the settings know, built over a small vocabulary."""

import typing
from collections.abc import Callable

import pytest
import torch

from translume.checkpoint.build import implementation
from translume.config import heads
from translume.model import Head

WIDTH, VOCABULARY = 13, 101


def kinds() -> list[type]:
    """The settings classes of all heads: members of the union `HeadSettings`, however it is written."""
    found = heads.HeadSettings
    while typing.get_origin(found) is typing.Annotated:
        found = typing.get_args(found)[0]
    return list(typing.get_args(found)) or [found]


@pytest.fixture(
    params=[(kind, bias) for kind in kinds() for bias in (True, False)],
    ids=lambda each: f"{each[0].__name__}-{each[1]}",
)
def make(request: pytest.FixtureRequest) -> Callable[..., Head]:
    kind, bias = request.param

    def build(dtype: torch.dtype = torch.float32, vocabulary: int = VOCABULARY, width: int = WIDTH) -> Head:
        torch.manual_seed(5)
        tied = torch.nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)
        settings = kind(bias=bias) if "bias" in kind.model_fields else kind()
        head = implementation(settings.implementation)(settings, width, vocabulary, tied)
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                if "bias" in name:
                    parameter.normal_()
        return head.to(dtype)

    return build
