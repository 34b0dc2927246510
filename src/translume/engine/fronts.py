"""The first layers of an encoder of recordings or images, as `model.frames` has them: NumPy and the kernels' products.

A convolution is one product, of all windows. Each source is computed by itself, so that it does not depend on a batch.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from translume.config.sources import ImageSettings
from translume.engine.network import Array, Network
from translume.engine.packing import LINEAR, Dtype, PackedLinear
from translume.kernels import loading
from translume.kernels.loading import address

NAME = "encoder.embedding"
GROUP_EPSILON = np.float32(1e-5)
"""Of the norm in Moonshine."""


class Front(ABC):
    """Makes the positions that the encoder's layers read of frames."""

    def __init__(self, network: Network, dtype: Dtype) -> None:
        """network: of the encoder."""
        self.network, self.width, self._dtype = network, network.settings.width, dtype
        self.source: Any = network.source

    def embedded(self, source: Array, mask: Array) -> tuple[Array, Array]:
        """Return what the layers read, packed [n, D], and the mask [B, S] of these positions.

        source: frames [B, L, F].  mask: [B, L]; padding comes after the frames.
        """
        parts = [np.zeros((0, self.width), np.float32)]
        for frames, there in zip(source.astype(np.float32, copy=False), mask, strict=True):
            parts.append(self.positions(frames[there]) if there.any() else parts[0])
        lengths = np.array([len(each) for each in parts[1:]], np.int64)
        return np.concatenate(parts), np.arange(lengths.max(initial=0)) < lengths[:, None]

    @abstractmethod
    def positions(self, frames: Array) -> Array:
        """Return the positions [S, D] of the frames [L, F] of one source."""

    def weight(self, name: str, *shape: int) -> Array:
        """Return a weight in fp32."""
        return self.network.weight(f"{NAME}.{name}", *shape)

    def product(self, name: str, *shape: int, first: bool = False, biased: bool = True) -> PackedLinear:
        """Return a linear map or a convolution of a shape [N, K, …], whose inputs are the values of a window in order.

        first: whether it reads a file's numbers, which int8 and bf16 do not hold well enough.
        """
        kind = LINEAR["fp32" if first else self._dtype]
        name = f"{NAME}.{name}".rstrip(".")

        def packed() -> dict[str, Array]:
            weight, bias = self.network.linear(name, *shape, biased=biased)
            return kind.pack(weight.transpose(0, *range(len(shape) - 1, 0, -1)).reshape(len(weight), -1), bias)

        return kind(self.network.keep(f"{name}|{kind.format}", packed))


class FrameFront(Front):
    """As `FrameEmbedding` and `ImageEmbedding`."""

    def __init__(self, network: Network, dtype: Dtype) -> None:
        super().__init__(network, dtype)
        source = self.source
        self._mean, self._deviation = (self.weight(name, source.size) for name in ("mean", "deviation"))
        self._tall = isinstance(source, ImageSettings)
        height, outputs = (source.height, source.channels or 32) if self._tall else (1, source.channels or self.width)
        size = self._values = source.size // height  # of a pixel, or of a frame
        window = (3, 3) if self._tall else (3,)
        self._convolutions = []
        for number in range(source.convolutions):
            name = f"convolutions.{number}"
            self._convolutions.append(self.product(name, outputs, size, *window, first=not number))
            size, height = outputs, -(-height // 2)
        self._linear = self.product("", self.width, size * height, first=not self._convolutions)
        self._places = network.positions("encoder")
        self._norm = network.norm(f"{NAME}.norm") if network.settings.embedding_norm else None

    def positions(self, frames: Array) -> Array:
        x = ((frames - self._mean) / self._deviation).reshape(len(frames), -1, self._values)  # [L, height, values]
        for product in self._convolutions:
            x = product(self._windows(x))
            np.maximum(x, 0, out=x)
        x = self._linear(x.swapaxes(1, 2).reshape(len(x), -1))
        if self._places is not None:
            x += self._places[: len(x)]
        return x if self._norm is None else self.network.normed(x, *self._norm)

    def _windows(self, x: Array) -> Array:
        """Return the windows [L / 2, height / 2, values] of pixels or frames x [L, height, C], with zeros around it."""
        size = x.shape[2]
        x = np.pad(x, ((1, 1), (self._tall, self._tall), (0, 0))).reshape(len(x) + 2, -1)
        each = sliding_window_view(x, (3, (3 if self._tall else 1) * size))[::2, :: 2 * size]
        return each.reshape(*each.shape[:2], -1)


class PatchFront(Front):
    """As `PatchEmbedding`."""

    def __init__(self, network: Network, dtype: Dtype) -> None:
        super().__init__(network, dtype)
        self._linear = self.product("", self.width, self.source.size, first=True)
        self._first = self.weight("first", self.source.first, self.width)
        self._places = self.weight("positions.table", self.source.positions, self.width)

    def positions(self, frames: Array) -> Array:
        x: Array = np.concatenate([self._first, self._linear(frames)]) + self._places
        return x


class WhisperFront(Front):
    """As `WhisperEmbedding`."""

    def __init__(self, network: Network, dtype: Dtype) -> None:
        super().__init__(network, dtype)
        width = self.width
        self._first = self.product("convolutions.0", width, self.source.size, 3, first=True)
        self._second = self.product("convolutions.1", width, width, 3)
        self._places = self.weight("positions.table", self.source.positions, width)

    def positions(self, frames: Array) -> Array:
        x = np.pad(frames, ((1, 1 + max(0, self.source.window - len(frames))), (0, 0)))
        x = np.pad(gelu(self._first(_windows(x, 3, 1))), ((1, 1), (0, 0)))
        return gelu(self._second(_windows(x, 3, 2))) + self._places


class WaveformFront(Front):
    """As `WaveformEmbedding`."""

    def __init__(self, network: Network, dtype: Dtype) -> None:
        super().__init__(network, dtype)
        width, self._length = self.width, 2 * self.source.size - 1
        self._first = self.product("convolutions.0", width, 1, self._length, first=True, biased=False)
        self._second = self.product("convolutions.1", 2 * width, width, 7)
        self._third = self.product("convolutions.2", width, 2 * width, 3)
        self._gain, self._bias = (self.weight(f"group_norm.{name}", width) for name in ("weight", "bias"))

    def positions(self, frames: Array) -> Array:
        x = np.tanh(self._first(_windows(frames.reshape(-1, 1), self._length, self.source.size)))
        x -= x.mean()
        x = x / np.sqrt(np.square(x).mean() + GROUP_EPSILON) * self._gain + self._bias
        return gelu(self._third(_windows(gelu(self._second(_windows(x, 7, 3))), 3, 2)))


def _windows(x: Array, size: int, stride: int) -> Array:
    """Return windows of so many rows of x [L, C], as rows [S, size · C]."""
    width = x.shape[1]
    return sliding_window_view(x.reshape(-1), size * width)[:: stride * width]


def gelu(x: Array) -> Array:
    """Apply GELU to a product of the kernels, whose width is a multiple of 16, in place, and return it."""
    loading.kernels().library.translume_gelu(address(x), x.size)
    return x


FRONTS: dict[str, type[Front]] = {
    f"translume.model.frames:{name}Embedding": kind
    for name, kind in (
        *(("Frame", FrameFront), ("Image", FrameFront), ("Patch", PatchFront)),
        *(("Whisper", WhisperFront), ("Waveform", WaveformFront)),
    )
}
"""By the `embedding` of a kind of source."""


def front_of(network: Network, dtype: Dtype) -> Front | None:
    """Return the front end of an encoder; None for one that is not here, such as that of a part from outside."""
    kind = FRONTS.get(network.source.embedding)
    return None if kind is None else kind(network, dtype)
