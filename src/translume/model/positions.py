"""Position encodings: the interface, and the encodings.

`POSITIONS` in `config.model` maps the values of `model.positions` to classes. Class attributes state what an encoding
needs and which formats support it; no code branches on its name.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.config.model import POSITIONS
from translume.parts import find


@dataclass(frozen=True, slots=True)
class AttentionPositions:
    """Position information for self-attention of t queries over S keys. By default none.

    rotation: [2, t, D/H], the cosines and sines by which queries and keys are rotated.
    local: the same for layers with a window; None if they have no other.
    bias: [H, t, S], added to the scores before the softmax.
    near: in an encoder, the biases [H, 2w − 1] of keys at distances 1 − w … w − 1 of a window w; None: none.
    blocks: [H, E, E], the biases of tokens of E blocks for the sums of E blocks; see `model.global_block`.
    """

    rotation: Tensor | None = None
    bias: Tensor | None = None
    local: Tensor | None = None
    near: Callable[[int], Tensor] | None = None
    blocks: Tensor | None = None


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

    def for_windows(self, count: int, *, device: torch.device) -> AttentionPositions:
        """Return the same for an encoder of `count` tokens whose layers all have windows, in linear memory.

        It has `near` instead of `bias`. Only for encodings that are not `in_attention`, or that set `kernels`.
        """
        if self.for_attention(0, 1, causal=False, device=device).bias is None:
            return self.for_attention(0, count, causal=False, device=device)
        return AttentionPositions(near=partial(self._near, device=device))

    def _near(self, window: int, device: torch.device) -> Tensor:
        """Return the biases [H, 2w − 1] of keys at distances 1 − w … w − 1."""
        middle = self.for_attention(window - 1, window, causal=False, device=device).bias
        assert middle is not None
        return middle[:, 0]


def encoding_class(name: str) -> type[PositionEncoding]:
    """Return the class of an encoding, by its name in `model.positions`."""
    encoding: type[PositionEncoding] = find("position", name)
    return encoding


def encodings_where(condition: Callable[[type[PositionEncoding]], bool]) -> tuple[str, ...]:
    """Return the names of the encodings whose class satisfies a condition."""
    return tuple(name for name in POSITIONS if condition(encoding_class(name)))


def position_encoding(settings: ModelSettings) -> PositionEncoding:
    """Return a new encoding for one stack, as `settings.positions` names it."""
    return encoding_class(settings.positions)(settings)


def sinusoids(count: int, width: int, *, longest_last: bool = False) -> Tensor:
    """Return [count, width]: sines, then cosines, of positions 0 … count−1 at width/2 wavelengths, 2π to 10000·2π.

    Vaswani et al. 2017, section 3.5, with sines and cosines in two halves instead of interleaved, as in Marian and
    fairseq (a permutation of the columns). The paper's last wavelength is one step below 10000·2π; with `longest_last`
    it is 10000·2π, as in Marian.
    """
    steps = max(width - 2, 1) if longest_last else width
    exponent = torch.arange(0, width, 2, dtype=torch.float64) / steps
    angles = torch.arange(count, dtype=torch.float64)[:, None] * torch.exp(-math.log(10_000) * exponent)
    return torch.cat([angles.sin(), angles.cos()], -1).float()


class Sinusoidal(PositionEncoding):
    """Sinusoids of the paper's wavelengths."""

    longest_last: ClassVar[bool] = False
    first: ClassVar[int] = 0
    """The position of the first token."""
    huggingface = frozenset({"MarianMTModel", "PegasusForConditionalGeneration"})

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        count = self.first + settings.max_positions
        table = sinusoids(count, settings.width, longest_last=self.longest_last)[self.first :]
        self.register_buffer("table", table, persistent=False)


class InterleavedSinusoidal(Sinusoidal):
    """The same sinusoids, each sine beside its cosine, as PyTorch's tutorial computes them: in single precision."""

    huggingface = frozenset()

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        steps = torch.exp(-torch.arange(0, settings.width, 2) * math.log(10_000) / settings.width)
        angles = torch.arange(settings.max_positions)[:, None] * steps
        self.table = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


class MarianSinusoidal(Sinusoidal):
    """Sinusoids with slightly longer wavelengths, as Marian computes them. MarianMTModel has the paper's instead."""

    longest_last = True
    huggingface = frozenset()


class StoredSinusoidal(PositionEncoding):
    """Sinusoids of Marian's wavelengths that a model folder stores, so that an imported model keeps its own numbers."""

    def __init__(self, settings: ModelSettings, longest: int) -> None:
        super().__init__(settings)
        self.longest = longest
        self.register_buffer("table", sinusoids(longest, settings.width, longest_last=True))


class FairseqSinusoidal(Sinusoidal):
    """Marian's wavelengths, from position 2 on: fairseq counts from its padding id, 1, which has no position."""

    longest_last = True
    first = 2
    huggingface = frozenset(
        {
            "M2M100ForConditionalGeneration",
            "FSMTForConditionalGeneration",
            "NllbMoeForConditionalGeneration",
            "VisionEncoderDecoderModel",
        }
    )


class Learned(PositionEncoding):
    """A learned vector for each position."""

    trained = True
    huggingface = frozenset(
        {
            "PegasusForConditionalGeneration",
            "BartForConditionalGeneration",
            "MBartForConditionalGeneration",
            "WhisperForConditionalGeneration",
            "PLBartForConditionalGeneration",
            "BlenderbotForConditionalGeneration",
            "BlenderbotSmallForConditionalGeneration",
            "EncoderDecoderModel",
            "VisionEncoderDecoderModel",
            "LEDForConditionalGeneration",
        }
    )

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self.table = nn.Parameter(torch.empty(settings.max_positions, settings.width))
        nn.init.normal_(self.table, std=settings.width**-0.5)


def rotation(places: Tensor, head_width: int, base: float = 10_000.0, turned: int = 0) -> Tensor:
    """Return cosines and sines [2, *places.shape, head_width] for rotating component pairs (Su et al. 2021, eq. 34).

    turned: how many components are rotated, those of the first pairs; 0: all.
    """
    exponent = torch.arange(0, turned or head_width, 2, device=places.device) / (turned or head_width)
    angles = places[..., None] * (1.0 / base**exponent)
    angles = F.pad(angles, (0, head_width // 2 - len(exponent)))
    angles = torch.cat([angles, angles], -1)
    return torch.stack([angles.cos(), angles.sin()])


class Rotary(PositionEncoding):
    """The score of a query and a key depends on their content and on the distance between their positions."""

    in_attention = True
    kernels = True
    huggingface = frozenset(
        {
            "T5GemmaForConditionalGeneration",
            "T5Gemma2ForConditionalGeneration",
            "MoonshineForConditionalGeneration",
        }
    )

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self._head_width, self._scale = settings.size_per_head, settings.rotary_scale
        self._base, self._local_base = settings.rotary_base, settings.rotary_local_base
        self._turned = settings.rotary_width

    def for_attention(self, start: int, count: int, *, causal: bool, device: torch.device) -> AttentionPositions:
        places = torch.arange(start, start + count, device=device)
        turned = rotation(places / self._scale, self._head_width, self._base, self._turned)
        local = rotation(places, self._head_width, self._local_base, self._turned) if self._local_base else None
        return AttentionPositions(rotation=turned, local=local)


def distance_buckets(distances: Tensor, count: int, furthest: int, *, causal: bool) -> Tensor:
    """Return the bucket, 0 … count−1, of each distance, which is the key's position minus the query's.

    Half of the buckets hold one distance each, the others logarithmically growing ranges up to `furthest`; the last one
    holds everything beyond. If `causal`, keys after the query share bucket 0; if not, they have half of the buckets.
    """
    buckets = torch.zeros_like(distances)
    if causal:
        distances = -distances.clamp(max=0)
    else:
        count //= 2
        buckets = (distances > 0) * count
        distances = distances.abs()
    exact = count // 2
    ranges = torch.log(distances.clamp(min=1).float() / exact) / math.log(furthest / exact) * (count - exact)
    far = (exact + ranges.long()).clamp(max=count - 1)
    return buckets + torch.where(distances < exact, distances, far)


def key_distances(start: int, count: int, device: torch.device) -> Tensor:
    """Return [count, start + count]: the positions of all keys minus those of the queries from `start` on."""
    return torch.arange(start + count, device=device) - torch.arange(start, start + count, device=device)[:, None]


def relative_biases(settings: ModelSettings) -> nn.Parameter:
    """Return new biases [buckets, H]."""
    biases = nn.Parameter(torch.empty(settings.relative_buckets, settings.attention_heads))
    nn.init.normal_(biases, std=settings.width**-0.5)
    return biases


class RelativeBias(PositionEncoding):
    """A learned bias for each attention head and bucket of distances, shared by all layers of a stack.

    block_bias: [buckets, H], by distance in blocks, with `model.global_block`.
    """

    in_attention = True
    kernels = True
    huggingface = frozenset(
        {
            "T5ForConditionalGeneration",
            "MT5ForConditionalGeneration",
            "UMT5ForConditionalGeneration",
            "LongT5ForConditionalGeneration",
            "SwitchTransformersForConditionalGeneration",
        }
    )

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self._furthest = settings.relative_max_distance
        self.reach = min(self.reach, self._furthest)
        self.bias = None if settings.relative_per_layer else relative_biases(settings)
        self._block = settings.global_block
        self.block_bias = relative_biases(settings) if self._block else None

    def for_attention(self, start: int, count: int, *, causal: bool, device: torch.device) -> AttentionPositions:
        if self.bias is None:  # `SelfAttention` has them
            return NO_POSITIONS
        buckets = distance_buckets(key_distances(start, count, device), len(self.bias), self._furthest, causal=causal)
        return AttentionPositions(bias=F.embedding(buckets, self.bias).permute(2, 0, 1))

    def for_windows(self, count: int, *, device: torch.device) -> AttentionPositions:
        windows = super().for_windows(count, device=device)
        if self.block_bias is None:
            return windows
        distances = key_distances(0, count // self._block, device)
        buckets = distance_buckets(distances, len(self.block_bias), self._furthest, causal=False)
        return replace(windows, blocks=F.embedding(buckets, self.block_bias).permute(2, 0, 1))
