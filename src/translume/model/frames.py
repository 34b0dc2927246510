"""The encoder's first layers for frames of numbers: normalisation, SpecAugment, strided convolutions, a linear map."""

import math
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from translume.config import FrameSettings, ModelSettings
from translume.config.sources import ImageSettings, PatchSettings, WaveformSettings, WhisperSettings, convolved
from translume.model.compiled import on_device
from translume.model.dropout import Dropout, integers, uniforms
from translume.model.layers import norm_of
from translume.model.positions import Learned, StoredSinusoidal, position_encoding

SILENCE = -1.5
"""Log-mel energies of digital silence, as Whisper computes them: (log10(1e-10) + 4) / 4."""
_SMALLEST = 1e-5
"""A value with a smaller standard deviation is constant, and is not divided by it."""
_CHUNK = 1 << 16
_FRAMES_PART, _VALUES_PART = 5, 3
"""A stretch of frames that SpecAugment removes is at most a fifth of a source, a range of values at most a third."""


class FrameEmbedding(nn.Module):
    """dropout(norm(W·conv(frames) + position)), in the place of `Embedding`: the source is frames [B, L, F].

    `front` normalises frames to mean 0 and deviation 1 and convolves; `forward` maps the result to the model's width.
    Both give the same result for a source alone and in a batch.  mean, deviation: [F], of the training data.
    """

    frozen: ClassVar[None] = None
    mean: Tensor
    deviation: Tensor

    def __init__(self, source: FrameSettings, settings: ModelSettings) -> None:
        super().__init__()
        self.source = source
        self.register_buffer("mean", torch.zeros(source.size))
        self.register_buffer("deviation", torch.ones(source.size))
        self.convolutions, size = self._layers(source, settings)
        # No nn.Linear, which the engine would pack: the type of its weight is needed.
        self.weight = nn.Parameter(torch.randn(settings.width, size) * size**-0.5)
        self.bias = nn.Parameter(torch.zeros(settings.width))
        self.positions = position_encoding(settings)
        self.norm = norm_of(settings) if settings.embedding_norm else nn.Identity()
        self.drop = Dropout(settings.dropout)

    @classmethod
    def of_source(cls, source: Any, size: int, settings: ModelSettings) -> Self:
        """Return an untrained one for the settings of a source.  size: ignored."""
        return cls(source, settings)

    def _layers(self, source: FrameSettings, settings: ModelSettings) -> tuple[nn.ModuleList, int]:
        """Return the convolutions and the number of values per position after them."""
        layers, size = nn.ModuleList(), source.size
        for _ in range(source.convolutions):
            layers.append(nn.Conv1d(size, source.channels or settings.width, 3, stride=2, padding=1))
            size = source.channels or settings.width
        return initialised(layers), size

    def keep_frozen(self) -> None:
        """Do nothing: there is no table with rows to freeze."""

    def segments_of(self, source: Tensor) -> None:
        """Return None: frames have no segments."""

    def learn(self, frames: NDArray[Any] | None) -> None:
        """Compute mean and deviation from the frames [n, F] of the training data."""
        if frames is None or not len(frames):
            return
        total, squares = np.zeros(frames.shape[1]), np.zeros(frames.shape[1])
        for begin in range(0, len(frames), _CHUNK):
            part = frames[begin : begin + _CHUNK].astype(np.float64)
            total += part.sum(0)
            squares += np.square(part).sum(0)
        mean = total / len(frames)
        deviation = np.sqrt(np.maximum(squares / len(frames) - np.square(mean), 0.0))
        self._keep(mean, np.where(deviation < _SMALLEST, 1.0, deviation))

    def _keep(self, mean: NDArray[Any], deviation: NDArray[Any]) -> None:
        self.mean.copy_(torch.from_numpy(mean))
        self.deviation.copy_(torch.from_numpy(deviation))

    def front(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions [B, S, C] of frames [B, L, F], and their mask [B, S], for a mask [B, L] of the frames.

        S = L / 2^convolutions, rounded up.
        """
        x = (source.float() - self.mean.float()) / self.deviation.float()
        if self.training:
            x, mask = self._changed_speed(x, mask)
            x = self.augment(x, mask)
        return self.convolve((x * mask[..., None]).to(self.weight.dtype), mask)

    def convolve(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions [B, S, C] and their mask for normalised frames [B, L, F], zero at padding."""
        for layer in self.convolutions:
            mask = mask[:, ::2]
            x = F.relu(layer(x.mT)).mT * mask[..., None]
        return x, mask

    def neutral(self, frames: Tensor) -> Tensor:
        """Return frames [L, F] that say nothing, as many as these: the mean of the training data."""
        return self.mean.to(frames.device, frames.dtype).expand(frames.shape)

    def _changed_speed(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return frames of other lengths [B, L', F], at most `speed` faster or slower, and their mask.

        L' is the largest length on a CPU, and on other devices the largest that any draw can give.
        """
        limit = self.source.speed
        if not limit:
            return x, mask
        lengths = mask.sum(1)
        speeds = 1 + limit * (2 * uniforms(len(x), like=x) - 1)
        longest = self.positions.longest << self.source.convolutions
        changed = (lengths / speeds).round().long()
        changed = changed.clamp(min=1).minimum(lengths.clamp(min=longest))  # as many positions as the model has
        largest = min(math.ceil(x.size(1) / (1 - limit)), max(x.size(1), longest))
        column = torch.arange(largest if on_device(x) else int(changed.max()), device=x.device)
        place = column * ((lengths - 1) / (changed - 1).clamp(min=1))[:, None]
        before = place.long().minimum(lengths[:, None] - 1)
        after = (before + 1).minimum(lengths[:, None] - 1)
        share = (place - before)[..., None].to(x.dtype)
        neighbours = [x.gather(1, each[..., None].expand(-1, -1, x.size(2))) for each in (before, after)]
        return torch.lerp(neighbours[0], neighbours[1], share), column < changed[:, None]

    def augment(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return normalised frames [B, L, F] with stretches of frames and ranges of values set to 0, their mean.

        SpecAugment (Park et al. 2019) without time warping.
        """
        source = self.source
        if not source.time_masks and not source.value_masks:
            return x
        fractions = uniforms(source.time_masks + source.value_masks, 2, x.size(0), like=x)
        lengths = mask.sum(1)
        longest = (lengths // _FRAMES_PART).clamp(max=source.time_mask_frames)
        lost = _stretches(fractions[: source.time_masks], lengths, longest, x.size(1))[..., None]
        sizes = torch.full_like(lengths, x.size(2))
        longest = (sizes // _VALUES_PART).clamp(max=source.value_mask_size)
        lost = lost | _stretches(fractions[source.time_masks :], sizes, longest, x.size(2))[:, None]
        return x * ~lost

    def forward(
        self, x: Tensor, places: Tensor, segments: Tensor | None = None, *, without_tokens: bool = False
    ) -> Tensor:
        """Return vectors [..., D] of positions x [..., C] that `front` returned, at `places` [...].

        segments: ignored.  without_tokens: return those of positions alone; a baseline for attribution.
        """
        vectors = F.linear(x, self.weight, self.bias)
        if without_tokens:
            vectors = torch.zeros_like(vectors)
        result: Tensor = self.drop(self.norm(self.positions(vectors, places)))
        return result

    def example(self, mask: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a random source with as many positions as `mask` [B, S], and its mask of frames [B, L]."""
        frames = mask.repeat_interleave(2**self.source.convolutions, 1)
        noise = torch.randn(*frames.shape, self.source.size, generator=generator)
        return noise * self.deviation.float().cpu() + self.mean.float().cpu(), frames


class ImageEmbedding(FrameEmbedding):
    """As `FrameEmbedding`, for images: frames are columns of pixels, and the convolutions are two-dimensional.

    All pixels of a colour have the same mean and deviation.
    """

    source: ImageSettings

    @property
    def colors(self) -> int:
        """Number of values of a pixel."""
        return self.source.size // self.source.height

    def _layers(self, source: FrameSettings, settings: ModelSettings) -> tuple[nn.ModuleList, int]:
        assert isinstance(source, ImageSettings)
        layers, size, height = nn.ModuleList(), source.size // source.height, source.height
        for _ in range(source.convolutions):
            layers.append(nn.Conv2d(size, source.channels or 32, 3, stride=2, padding=1))
            size, height = source.channels or 32, -(-height // 2)
        return initialised(layers), size * height

    def _keep(self, mean: NDArray[Any], deviation: NDArray[Any]) -> None:
        means = mean.reshape(-1, self.colors)
        squares = np.square(deviation.reshape(means.shape)) + np.square(means)
        mean = means.mean(0)
        deviation = np.sqrt(np.maximum(squares.mean(0) - np.square(mean), _SMALLEST))
        super()._keep(np.tile(mean, self.source.height), np.tile(deviation, self.source.height))

    def convolve(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions [B, S, C·height] and their mask for normalised columns [B, L, F], zero at padding."""
        x = x.view(*x.shape[:2], self.source.height, self.colors).permute(0, 3, 2, 1)  # [B, colours, height, L]
        for layer in self.convolutions:
            mask = mask[:, ::2]
            x = F.relu(layer(x)) * mask[:, None, None]
        return x.flatten(1, 2).mT, mask

    def augment(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return normalised columns [B, L, F] moved by at most `shift` pixels in both directions, then masked.

        The edge of an image takes the place of pixels that the move leaves empty.
        """
        most = self.source.shift
        if most:
            moves = integers(uniforms(2, x.size(0), 1, like=x), 2 * most + 1) - most
            last = mask.sum(1, keepdim=True) - 1
            columns = torch.minimum((torch.arange(x.size(1), device=x.device) + moves[0]).clamp(min=0), last)
            rows = (torch.arange(self.source.height, device=x.device) + moves[1]).clamp(0, self.source.height - 1)
            pixels = x.gather(1, columns[..., None].expand_as(x)).view(*x.shape[:2], self.source.height, self.colors)
            x = pixels.gather(2, rows[:, None, :, None].expand_as(pixels)).flatten(2)
        return super().augment(x, mask)


class PlacedEmbedding(FrameEmbedding):
    """dropout(front(frames) + position), for frames of a known range, which are not normalised.

    Nothing is masked, since all sources have the same number of frames.
    """

    def learn(self, frames: NDArray[Any] | None) -> None:
        """Do nothing: frames are not normalised."""

    def forward(
        self, x: Tensor, places: Tensor, segments: Tensor | None = None, *, without_tokens: bool = False
    ) -> Tensor:
        """Return vectors [..., D] of positions x [..., D] that `front` returned, at `places` [...].

        segments: ignored.  without_tokens: return those of positions alone; a baseline for attribution.
        """
        result: Tensor = self.drop(self.positions(torch.zeros_like(x) if without_tokens else x, places))
        return result


class PatchEmbedding(PlacedEmbedding):
    """dropout([first; W·patches] + position) of images of one size (Dosovitskiy et al. 2021, eq. 1).

    first: learned vectors [n, D] before the patches.
    """

    source: PatchSettings

    def __init__(self, source: PatchSettings, settings: ModelSettings) -> None:
        nn.Module.__init__(self)
        self.source = source
        self.weight = nn.Parameter(torch.randn(settings.width, source.size) * source.size**-0.5)
        self.bias = nn.Parameter(torch.zeros(settings.width))
        self.first = nn.Parameter(torch.zeros(source.first, settings.width))
        self.positions = Learned(settings.model_copy(update={"max_positions": source.positions}))
        self.norm = nn.Identity()
        self.drop = Dropout(settings.dropout)

    def neutral(self, frames: Tensor) -> Tensor:
        """Return patches [L, F] that say nothing, as many as these: the value that is subtracted from pixels."""
        return torch.zeros_like(frames)

    def front(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions [B, S, D] of patches [B, L, F], and a mask [B, S] that is True everywhere."""
        x = self.augment(source, mask) if self.training else source
        x = F.linear(x.to(self.weight.dtype), self.weight, self.bias)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        return x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)

    def example(self, mask: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random images, one for each row of `mask`, and their mask [B, L]."""
        shape = (mask.size(0), self.source.positions - self.source.first, self.source.size)
        return torch.randn(shape, generator=generator), torch.ones(shape[:2], dtype=torch.bool)


class WhisperEmbedding(PlacedEmbedding):
    """dropout(conv(frames) + position) of windows of a fixed length, as in Whisper (Radford et al. 2023, section 2.2).

    Two convolutions of size 3 with GELU, the second of stride 2, take the place of the linear map. Frames are not
    normalised: the largest of their energies is known. Nothing is masked, since windows are filled up with silence.
    """

    source: WhisperSettings

    def __init__(self, source: WhisperSettings, settings: ModelSettings) -> None:
        nn.Module.__init__(self)
        self.source = source
        sizes = (source.size, settings.width, settings.width)
        self.convolutions = initialised(
            nn.ModuleList(
                nn.Conv1d(before, after, 3, stride=stride, padding=1)
                for before, after, stride in zip(sizes, sizes[1:], (1, 2), strict=False)
            )
        )
        self.positions = StoredSinusoidal(settings, source.positions)
        self.norm = nn.Identity()
        self.drop = Dropout(settings.dropout)

    def neutral(self, frames: Tensor) -> Tensor:
        """Return frames [L, F] that say nothing, as many as these: digital silence."""
        return torch.full_like(frames, SILENCE)

    def front(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions [B, S, D] of windows [B, L, F], and a mask [B, S] that is True everywhere; S = L / 2.

        Windows shorter than `source.window` are filled up with zeros.
        """
        x = source.to(next(self.convolutions.parameters()).dtype)
        if x.size(1) < self.source.window:
            x = F.pad(x, (0, 0, 0, self.source.window - x.size(1)))
        if self.training:
            x = self.augment(x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
        x = x.mT
        for layer in self.convolutions:
            x = F.gelu(layer(x))
        return x.mT, torch.ones(x.size(0), x.size(2), dtype=torch.bool, device=x.device)

    def example(self, mask: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random windows, one for each row of `mask`, and their mask [B, L]."""
        shape = (mask.size(0), self.source.window, self.source.size)
        return torch.randn(shape, generator=generator), torch.ones(shape[:2], dtype=torch.bool)


class WaveformEmbedding(PlacedEmbedding):
    """dropout(front(samples)): three convolutions, as in Moonshine (Jeffries et al. 2024, section 3.1).

    The first is followed by tanh and a norm over all values of a source, the others by GELU.
    """

    source: WaveformSettings

    def __init__(self, source: WaveformSettings, settings: ModelSettings) -> None:
        nn.Module.__init__(self)
        self.source, width = source, settings.width
        first = nn.Conv1d(1, width, 2 * source.size - 1, stride=source.size, bias=False)
        others = nn.Conv1d(width, 2 * width, 7, stride=3), nn.Conv1d(2 * width, width, 3, stride=2)
        self.convolutions = initialised(nn.ModuleList([first, *others]))
        self.group_norm = nn.GroupNorm(1, width)
        self.positions = position_encoding(settings)
        self.norm = nn.Identity()
        self.drop = Dropout(settings.dropout)

    def neutral(self, frames: Tensor) -> Tensor:
        """Return frames [L, F] that say nothing, as many as these: digital silence."""
        return torch.zeros_like(frames)

    def front(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions [B, S, D] of frames [B, L, F], and their mask [B, S].  mask: [B, L], of the frames."""
        first, *others = self.convolutions
        x = (source * mask[..., None]).to(self.group_norm.weight.dtype)
        if self.training:
            x = self.augment(x, mask)
        frames = mask.sum(1)
        x = self._normed(torch.tanh(first(x.flatten(1)[:, None])), frames - 1)
        for layer in others:
            x = F.gelu(layer(x))
        return x.mT, torch.arange(x.size(2), device=x.device) < convolved(frames)[:, None]

    def _normed(self, x: Tensor, counts: Tensor) -> Tensor:
        """Normalise x [B, D, L] over the first `counts` [B] columns of each source."""
        norm, there = self.group_norm, (torch.arange(x.size(2), device=x.device) < counts[:, None])[:, None].to(x.dtype)
        size = (counts * x.size(1))[:, None, None]
        x = x - (x * there).sum((1, 2), keepdim=True) / size
        x = x * ((x.square() * there).sum((1, 2), keepdim=True) / size + norm.eps).rsqrt()
        return x * norm.weight[:, None] + norm.bias[:, None]

    def example(self, mask: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random samples with as many positions as `mask` [B, S], and their mask of frames [B, L]."""
        frames = self.source.shortest + self.source.stride * (mask.sum(1) - 1)
        there = torch.arange(int(frames.max())) < frames[:, None]
        return torch.randn(*there.shape, self.source.size, generator=generator) / 10, there


def initialised(layers: nn.ModuleList) -> nn.ModuleList:
    """Initialise convolutions that a ReLU follows (He et al. 2015), in place."""
    for layer in layers:
        assert isinstance(layer, nn.Conv1d | nn.Conv2d)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layers


def _stretches(fractions: Tensor, lengths: Tensor, longest: Tensor, size: int) -> Tensor:
    """Return True [B, size] in random stretches of the first `lengths` [B] elements, of at most `longest` [B] each.

    fractions: [stretches, 2, B], numbers in [0, 1) that the widths and the places of the stretches are drawn by.
    """
    widths = integers(fractions[:, 0], longest + 1)
    begins = integers(fractions[:, 1], lengths - widths + 1)[..., None]
    column = torch.arange(size, device=lengths.device)
    return ((column >= begins) & (column < begins + widths[..., None])).any(0)
