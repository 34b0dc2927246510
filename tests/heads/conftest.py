"""All output heads that the settings know, built over a small vocabulary."""

from collections.abc import Callable
from functools import cache
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from translume.config import HeadKind
from translume.model import Head, HeadData, HeadSizes
from translume.parts import load_parts_of_parent

load_parts_of_parent()

WIDTH, VOCABULARY = 13, 101


def kinds() -> list[type]:
    """The settings classes of all heads."""
    return [*HeadKind.kinds().values()]


def variants() -> list[tuple[type, dict[str, object]]]:
    """Each kind with its defaults, and with each other value of a setting that changes the head."""
    others = (("bias", False), ("selector", "learned"))
    return [
        (kind, chosen)
        for kind in kinds()
        for chosen in ({}, *({name: value} for name, value in others if name in kind.model_fields))
    ]


def variant_id(variant: tuple[type, dict[str, object]]) -> str:
    kind, chosen = variant
    words = ["without-bias" if name == "bias" else str(value) for name, value in chosen.items()]
    return "-".join([kind.model_fields["kind"].default, *words])


Make = Callable[..., Head]


def builder(variant: tuple[type, dict[str, object]]) -> Make:
    """Return a function that builds a head of a kind, always the same."""
    kind, chosen = variant

    def build(dtype: torch.dtype = torch.float32, vocabulary: int = VOCABULARY, width: int = WIDTH) -> Head:
        torch.manual_seed(5)
        tied = torch.nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)
        settings = kind(**chosen)
        sizes = HeadSizes(width=width, vocabulary=vocabulary, source_vocabulary=vocabulary)
        head = resolve_name(settings.implementation)(settings, sizes, None if settings.tie == "none" else tied)
        head.learn(data(vocabulary))
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                if "bias" in name:
                    parameter.normal_()
        return head.to(dtype).eval()

    return build


BUILDERS = {variant_id(variant): builder(variant) for variant in variants()}


@pytest.fixture(params=BUILDERS.values(), ids=BUILDERS)
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


@cache
def built() -> dict[str, Head]:
    """A head of each variant, to ask for its properties."""
    with torch.random.fork_rng(devices=[]):
        return {name: build() for name, build in BUILDERS.items()}


def heads_with(holds: Callable[[Head], bool]) -> pytest.MarkDecorator:
    """Parametrize `make` by the heads of which something holds."""
    names = [name for name, head in built().items() if holds(head)]
    return pytest.mark.parametrize("make", [BUILDERS[name] for name in names], ids=names)


class Pairs:
    """Training pairs whose targets hold the ids of their sources; low ids are more frequent."""

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


def states(rows=67, dtype=torch.float64, vocabulary=VOCABULARY, width=WIDTH, spread=1.5):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(rows, width, generator=generator, dtype=torch.float64).mul(spread).to(dtype)
    return hidden.requires_grad_(), torch.randint(vocabulary, (rows,), generator=generator)


def gradients(loss, hidden, head):
    return torch.autograd.grad(loss, [hidden, *head.parameters()])


def relative_error(left, right):
    left, right = left.detach().double(), right.detach().double()
    return float((left - right).norm() / right.norm().clamp(min=1e-12))


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation creates."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return result
