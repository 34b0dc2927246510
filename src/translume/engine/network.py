"""A model as the engine reads it: settings, and weights by the names that a model folder has; tables of positions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.checkpoint.arrays import names_in, weight_in
from translume.config import ModelSettings, SourceKind
from translume.config.sources import TextSettings
from translume.errors import ModelFolderError
from translume.kernels.loading import NativeError, aligned

Array = NDArray[Any]
Linear = tuple[Array, Array | None]
"""The weight [N, K] and the bias [N] of a linear map, or the gain and the bias of a norm."""
SINUSOIDS = {"sinusoidal": (0, False), "marian": (0, True), "fairseq": (2, True)}
"""By `model.positions`: the first position, and whether the last wavelength is 10000·2π; see `sinusoids`."""
IN_ATTENTION = ("rotary", "relative")
"""Values of `model.positions` that attention applies."""
TRAINED_WITH = {"encoder.embedding.frozen", "decoder.embedding.frozen", "head.ranked", "head.weights"}
"""Weights that only training reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Settings and weights of a model.

    weights: as a file stores them, by name. A tied one may have one name only, that of the side that comes first.
    source: what the encoder reads.
    place: where they are from, for errors. Methods raise ModelFolderError for a weight that is missing, or of another
    shape than the settings say: the kernels would read beyond it.
    check: called before a weight is read.  kept: what `keep` returned, by name.
    """

    settings: ModelSettings
    weights: Mapping[str, Array]
    source: SourceKind = field(default_factory=TextSettings)
    place: str = "the model"
    check: Callable[[], object] = bool
    kept: dict[str, dict[str, Array]] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def encoder(self) -> "Network":
        """The network with the settings of the encoder's layers; both keep the same arrays."""
        own = self.settings.of_encoder
        longest = self.source.longest(own.max_positions)
        return replace(self, settings=own.model_copy(update={"max_positions": longest}))

    @property
    def crosses(self) -> bool:
        """Whether the decoder reads a source."""
        return "decoder.layers.0.cross_attention.query.weight" in self.weights

    @property
    def reads_ids(self) -> bool:
        """Whether the encoder reads a vector for each id of a text."""
        return "encoder.embedding.table.weight" in self.weights and self.settings.segment_pooling == "none"

    def keep(self, name: str, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        """Return the arrays that were kept under a name, else keep those that `make` returns."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def weight(self, name: str, *shape: int | None) -> Array:
        """Return the weight of a name in fp32, and keep it. It must have a shape; None: of any size."""
        return self.keep(name, lambda: {"": self._read(name, *shape)})[""]

    def _read(self, name: str, *shape: int | None) -> Array:
        """Return the weight of a name in fp32, or integers; that of a file in fp32 shares its memory."""
        stored = self.weights.get(name)
        if stored is None:
            raise ModelFolderError(f"{self.place}: lacks {name}, which a model of these settings has")
        wanted = [
            size if size is not None else stored_size for size, stored_size in zip(shape, stored.shape, strict=False)
        ]
        if stored.shape != (*wanted,) or len(shape) != len(wanted):
            raise ModelFolderError(f"{self.place}: {name} is {list(stored.shape)}, expected {wanted} by the settings")
        self._names.add(name)
        self.check()
        return weight_in(self.weights, name)

    def refuse_unread(self) -> None:
        """Raise ModelFolderError for a weight that an engine which has read all of its own has not read."""
        for name in names_in(self.weights):
            if name not in self._names | TRAINED_WITH:
                raise ModelFolderError(f"{self.place}: holds {name}, which a model of these settings does not have")

    def linear(self, name: str, outputs: int | None, *inputs: int, biased: bool | None = None) -> Linear:
        """Return the weight [N, K] and the bias [N], if any, of a linear map, which are not kept.

        outputs: None for any number.  inputs: more than one for a convolution.  biased: by default, `model.bias`.
        """
        weight = self._read(f"{name}.weight", outputs, *inputs)
        biased = self.settings.bias if biased is None else biased
        return weight, self._read(f"{name}.bias", len(weight)) if biased else None

    def key_value(self, layer: int) -> Linear:
        """Return the map of a decoder layer from the memory to its keys and values [2·H·d, D]."""
        layer = 0 if self.settings.shared_layers else layer
        return self.projection(f"decoder.layers.{layer}.cross_attention.key_value", 0, self.settings.of_encoder.width)

    def projection(self, name: str, queries: int, inputs: int) -> Linear:
        """Return a map to queries, keys and values [queries + 2·H·d, K], with those of shared heads repeated."""
        settings = self.settings
        weight, bias = self.linear(name, queries + 2 * settings.key_value_width, inputs)
        times, size = settings.attention_width // settings.key_value_width, settings.size_per_head
        if times == 1:
            return weight, bias

        def repeated(rows: Array) -> Array:
            heads = rows[queries:].reshape(-1, size, *rows.shape[1:]).repeat(times, 0)
            return np.concatenate([rows[:queries], heads.reshape(-1, *rows.shape[1:])])

        return repeated(weight), None if bias is None else repeated(bias)

    def norm(self, name: str) -> Linear:
        """Return the gain and the bias [D], if any, of a norm."""
        width, biased = self.settings.width, self.settings.bias and self.settings.normalization == "layer"
        return self.weight(f"{name}.weight", width), self.weight(f"{name}.bias", width) if biased else None

    def head(self, *, kept: bool = False) -> Linear:
        """Return weight [V, D] and bias of a head of one linear map, without what a copy head adds.

        kept: whether to keep them.
        """
        head, read = self.settings.head, self.weight if kept else self._read
        tied = head.tie in ("all", "target")
        self._names.add(f"{head.linear}.weight")  # also if it is a second name of the table
        weight = self.table("decoder") if tied else read(f"{head.linear}.weight", None, self.settings.width)
        return weight, read(f"{head.linear}.bias", len(weight)) if getattr(head, "bias", False) else None

    def table(self, side: str) -> Array:
        """Return the embedding [V, D] of a side, "encoder" or "decoder". Raises NativeError for one in bands."""
        # Weights that sides share are stored once, as the encoder's.
        if any(f"{each}.embedding.table.rank" in self.weights for each in (side, "encoder")):
            raise NativeError("model.head.tie: the kernels have no embedding in bands")
        name = f"{side}.embedding.table.weight"
        if name not in self.weights and self.settings.head.tie in ("all", "embeddings"):
            name = "encoder.embedding.table.weight"
        return self.weight(name, None, self.settings.width)

    @property
    def scale(self) -> float:
        """What embeddings are multiplied by."""
        return math.sqrt(self.settings.width) if self.settings.scale_embeddings else 1.0

    def positions(self, side: str) -> Array | None:
        """Return the vectors [longest, D] that are added to the embeddings of a side; None if none are."""
        settings, name = self.settings, f"{side}.embedding.positions.table"
        if settings.positions == "learned":
            return self.weight(name, settings.max_positions, settings.width)
        if name in self.weights:  # of Whisper's encoder
            return self.weight(name, None, settings.width)
        if settings.positions == "interleaved":
            return interleaved_sinusoids(settings.max_positions, settings.width)
        if settings.positions not in SINUSOIDS:
            return None
        first, longest_last = SINUSOIDS[settings.positions]
        count = first + settings.max_positions
        return self.keep(
            f"sinusoids.{count}.{settings.width}",
            lambda: {"": sinusoids(count, settings.width, longest_last=longest_last)[first:]},
        )[""]

    def embedded(self, source: Array, mask: Array) -> Array:
        """Return what the encoder reads of a text [B, S], packed [n, D], where mask [B, S] is True."""
        x, settings = vectors(self.table("encoder"), source[mask], self.scale), self.settings
        if settings.segments:
            counts = self.weight("encoder.embedding.separators", len(self.table("encoder")))[source]
            segments = np.minimum(counts.cumsum(1) - counts, settings.segments - 1)
            x += self.weight("encoder.embedding.segments.weight", settings.segments, settings.width)[segments[mask]]
        if (positions := self.positions("encoder")) is not None:
            x += positions[mask.nonzero()[1]]
        return self.normed(x, *self.norm("encoder.embedding.norm")) if settings.embedding_norm else x

    def normed(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """Return x [n, D] after a norm with a gain and a bias [D]."""
        if self.settings.normalization == "layer":
            x = x - x.mean(-1, keepdims=True)
        scale = 1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(self.settings.norm_epsilon))
        normed: Array = x * scale * weight + (0.0 if bias is None else bias)
        return normed

    def rotation(self, padded: int) -> Array | None:
        """Return cosines and sines [longest, 2, padded] by which attention rotates queries and keys; None if none are.

        Su et al. 2021, equation 34; component i is paired with component i + padded / 2. padded: see `padded_heads`.
        """
        if self.settings.positions != "rotary":
            return None
        size = self.settings.rotary_width or self.settings.size_per_head
        places = np.arange(self.settings.max_positions, dtype=np.float32) / np.float32(self.settings.rotary_scale)
        exponent = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        angles = places[:, None] * (np.float32(1) / np.float32(self.settings.rotary_base) ** exponent)
        angles = np.pad(angles, ((0, 0), (0, padded // 2 - len(exponent))))
        angles = np.concatenate([angles, angles], -1)
        return aligned(np.stack([np.cos(angles), np.sin(angles)], 1))

    @property
    def reach(self) -> int:
        """The distance from which on a bias of attention is constant."""
        longest = self.settings.max_positions - 1
        return min(longest, self.settings.relative_max_distance) if self.settings.positions == "relative" else longest

    def distance_biases(self, side: str) -> Array | None:
        """Return the biases [H, distances] that attention adds, by distance of key and query; None if it adds none.

        From −reach to 0 for the decoder, to reach for the encoder.
        """
        if self.settings.positions != "relative":
            return None
        causal = side == "decoder"
        distances = np.arange(-self.reach, 1 if causal else self.reach + 1)
        sizes = self.settings.relative_buckets, self.settings.attention_heads
        biases = self.weight(f"{side}.embedding.positions.bias", *sizes)
        buckets = distance_buckets(distances, len(biases), self.settings.relative_max_distance, causal=causal)
        return aligned(biases[buckets].T)


def vectors(table: Array, ids: Array, scale: float) -> Array:
    """Return the vectors [..., D] of ids [...], times `scale`. Raises IndexError for an id without one."""
    if ids.size and not 0 <= ids.min() <= ids.max() < len(table):
        raise IndexError(f"found token {ids.max() if ids.min() >= 0 else ids.min()}, expected one of {len(table)}")
    scaled: Array = table[ids] * np.float32(scale)
    return scaled


@lru_cache(maxsize=4)
def sinusoids(count: int, width: int, *, longest_last: bool) -> Array:
    """Return [count, width], as `model.positions.sinusoids`."""
    exponent = np.arange(0, width, 2) / (max(width - 2, 1) if longest_last else width)
    angles = np.arange(count)[:, None] * np.exp(-math.log(10_000) * exponent)
    return aligned(np.concatenate([np.sin(angles), np.cos(angles)], -1))


@lru_cache(maxsize=4)
def interleaved_sinusoids(count: int, width: int) -> Array:
    """Return the table [count, width] of `model.positions.InterleavedSinusoidal`, computed in single precision."""
    exponent = np.arange(0, width, 2, dtype=np.float32) * np.float32(math.log(10_000)) / np.float32(width)
    angles = np.arange(count, dtype=np.float32)[:, None] * np.exp(-exponent)
    return aligned(np.stack([np.sin(angles), np.cos(angles)], -1).reshape(count, width))


def distance_buckets(distances: Array, count: int, furthest: int, *, causal: bool) -> Array:
    """Return the bucket of each distance, as `model.positions.distance_buckets`."""
    buckets = np.zeros_like(distances)
    if causal:
        distances = -np.minimum(distances, 0)
    else:
        count //= 2
        buckets = (distances > 0) * count
        distances = np.abs(distances)
    exact = count // 2
    near = np.maximum(distances, 1).astype(np.float32) / np.float32(exact)
    ranges = np.log(near) / np.float32(math.log(furthest / exact)) * np.float32(count - exact)
    far = np.minimum(exact + ranges.astype(np.int64), count - 1)
    buckets = buckets + np.where(distances < exact, distances, far)
    return buckets
