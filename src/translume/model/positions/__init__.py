"""Position encodings: the interface, and one module for each encoding.

`POSITIONS` in `config.model` maps the values of `model.positions` to classes. Class attributes state what an encoding
needs and which formats support it; no code branches on its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import ClassVar

import torch
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.config.model import POSITIONS


@dataclass(frozen=True, slots=True)
class AttentionPositions:
    """Position information for self-attention of t queries over S keys. By default none.

    rotation: [2, t, D/H], the cosines and sines by which queries and keys are rotated.
    bias: [H, t, S], added to the scores before the softmax.
    """

    rotation: Tensor | None = None
    bias: Tensor | None = None


NO_POSITIONS = AttentionPositions()


class PositionEncoding(nn.Module):
    """Base class of position encodings. The class itself is the encoding "none".

    A subclass sets `table`, or overrides `for_attention` and sets `in_attention`.
    """

    in_attention: ClassVar[bool] = False
    """Whether self-attention must apply `for_attention`. torch.nn.Transformer cannot."""
    kernels: ClassVar[bool] = False
    """With `in_attention`: whether the C kernels apply it: a rotation, or biases that depend only on the distance."""
    trained: ClassVar[bool] = False
    """Whether `table` is a parameter, which a model folder stores, and not computed from the settings."""
    ctranslate2: ClassVar[Mapping[str, object] | None] = {}
    """Options of CTranslate2's layers that express the encoding; None if there are none."""
    huggingface: ClassVar[frozenset[str]] = frozenset()
    """Architectures of transformers that have the encoding, such as "MarianMTModel"."""

    table: Tensor | None
    """[longest, D], added to the embeddings; None if nothing is added."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.longest = settings.max_positions
        """Maximum number of tokens, T."""
        self.reach = self.longest - 1
        """The distance from which on a bias is constant, for the tables of the C kernels."""
        self.register_buffer("table", None, persistent=False)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """Add the vectors of `places` [...] to embeddings x [..., D]."""
        return x if self.table is None else x + self.table[places].to(x.dtype)

    def for_attention(self, start: int, count: int, *, causal: bool, device: torch.device) -> AttentionPositions:
        """Return the position information for queries at start … start+count−1 and keys at 0 … start+count−1.

        causal: whether keys after a query are masked, as in a decoder. Computed once for all layers of a stack.
        """
        return NO_POSITIONS


def encoding_class(name: str) -> type[PositionEncoding]:
    """Return the class of an encoding, by its name in `model.positions`."""
    found: type[PositionEncoding] = resolve_name(POSITIONS[name].implementation)
    return found


def encodings_where(condition: Callable[[type[PositionEncoding]], bool]) -> tuple[str, ...]:
    """Return the names of the encodings whose class satisfies a condition."""
    return tuple(name for name in POSITIONS if condition(encoding_class(name)))


def position_encoding(settings: ModelSettings) -> PositionEncoding:
    """Return a new encoding for one stack, as `settings.positions` names it."""
    return encoding_class(settings.positions)(settings)
