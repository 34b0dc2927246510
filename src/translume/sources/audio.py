"""Audio: decoded by soundfile, resampled to 16 kHz mono, as log-mel energies or cepstral coefficients."""

import io
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from translume.config.sources import AudioSettings, RecordingSettings, WaveformSettings, WhisperSettings
from translume.errors import not_installed
from translume.sources.containers import is_truncated, stated_samples, with_sizes
from translume.sources.reader import FrameReader, UnreadableError

Samples = NDArray[np.float32]

RATE = 16_000
"""Samples a second."""
WINDOW, HOP = 400, 160
"""Samples of a window (25 ms), and between the beginnings of two windows (10 ms)."""
_RANGE = 8.0
"""Energies are at most so many powers of ten below the largest of a recording."""
_LOWEST_RATE, _HIGHEST_RATE = 1000, 768_000
_MAX_CHANNELS = 32
_UNKNOWN_FRAMES = 1 << 62
"""From this number on, soundfile does not know how many samples a recording has."""
_TRUNCATED = "truncated: the file is shorter than its header says"
_BLOCK = 1 << 14
"""Samples of each channel that are decoded at a time: a compressed recording of many channels may hold gigabytes."""
_FRAMES = 1 << 7
"""Frames whose spectra are computed at a time: few, so that they stay in the cache of the processor."""
_INTERPOLATED = 1 << 10
"""Samples whose filters are interpolated at a time."""
_ZEROS = 16
"""Zero crossings of the resampling filter on each side."""
_CUTOFF = 0.95
"""Its cutoff, as a part of half the lower rate."""
_LARGEST_FILTER = 1 << 19
"""Numbers of a resampling filter that is computed for every place between two samples; all usual rates have fewer."""
_PHASES = 512
"""Places between two samples for which other filters are computed."""


class RecordingReader(FrameReader):
    """Reads recordings. Arrays are samples from −1 to 1 at 16 kHz, [samples] or [samples, channels]."""

    settings: RecordingSettings

    def decode(self, content: bytes) -> NDArray[Any]:
        if not content:
            raise UnreadableError("empty file, expected audio")
        soundfile = soundfile_module()
        if is_truncated(content):
            raise UnreadableError(_TRUNCATED)
        stated = stated_samples(content)
        try:
            with soundfile.SoundFile(io.BytesIO(with_sizes(content))) as file:
                file.seekable = lambda: False  # soundfile seeks after each block, which fails in a FLAC from a pipe
                rate = file.samplerate
                if not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
                    raise UnreadableError(
                        f"has {rate:,} samples a second, expected {_LOWEST_RATE:,} to {_HIGHEST_RATE:,}"
                    )
                if file.channels > _MAX_CHANNELS:
                    raise UnreadableError(f"has {file.channels:,} channels, expected at most {_MAX_CHANNELS}")
                if file.format != "MP3" and (stated or file.frames) < _UNKNOWN_FRAMES:  # that of an MP3 is an estimate
                    self._refuse_long((stated or file.frames) / rate)
                samples = np.concatenate([*resampled(self._mono(file), rate)])
        except soundfile.LibsndfileError:
            raise UnreadableError("not audio that soundfile reads, or truncated") from None
        if len(samples) < stated * RATE // rate:
            raise UnreadableError(_TRUNCATED)
        return self._frames(samples)

    def _mono(self, file: Any) -> Iterator[Samples]:
        """Yield the samples of an open file, the mean of its channels, in blocks."""
        count = 0
        while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
            count += len(block)
            self._refuse_long(count / file.samplerate)  # the header may say less
            mono = block.mean(1)
            if not np.isfinite(mono).all():
                raise UnreadableError("holds a number that is not finite")
            yield mono

    def convert(self, source: object) -> NDArray[Any]:
        if not isinstance(source, np.ndarray):
            raise TypeError(f"found {type(source).__name__}, expected a path, bytes or an array")
        if source.ndim not in (1, 2) or source.dtype.kind != "f":
            raise UnreadableError(
                f"holds an array of shape {list(source.shape)} and type {source.dtype}, "
                "expected samples from −1 to 1 at 16 kHz, [samples] or [samples, channels]"
            )
        samples = source if source.ndim == 1 else source.mean(1)
        if not np.isfinite(samples).all():
            raise UnreadableError("holds a number that is not finite")
        self._refuse_long(len(samples) / RATE)
        return self._frames(np.ascontiguousarray(samples, np.float32))

    def _refuse_long(self, seconds: float) -> None:
        if seconds > self.settings.max_seconds:
            raise UnreadableError(
                f"has {seconds:,.1f} seconds, expected at most {self.settings.max_seconds:g} (data.source.max_seconds)"
            )

    @abstractmethod
    def _frames(self, samples: Samples) -> Samples:
        """Return the frames [L, F] of samples [n] at 16 kHz."""


class AudioReader(RecordingReader):
    """Reads recordings as log-mel energies or cepstral coefficients."""

    settings: AudioSettings

    def _frames(self, samples: Samples) -> Samples:
        if not len(samples):
            return np.zeros((0, self.settings.size), np.float32)
        energies = log_mel(samples, self.settings.mels)
        if self.settings.features == "mfcc":
            energies = energies @ _cosines(self.settings.mels)[:, : self.settings.coefficients]
        return energies


class WhisperReader(RecordingReader):
    """Reads recordings as Whisper does: log-mel energies, with silence after a recording shorter than a window."""

    settings: WhisperSettings

    def _frames(self, samples: Samples) -> Samples:
        return log_mel(samples, self.settings.mels, self.settings.window * HOP)


class WaveformReader(RecordingReader):
    """Reads recordings as their samples, without those at the end that Moonshine's first convolution does not read.

    Silence follows a recording that is shorter than a position.
    """

    settings: WaveformSettings

    def _frames(self, samples: Samples) -> Samples:
        size, after = self.settings.size, 1  # the last sample of a frame is not read without the next frame
        if len(samples):
            after = max(after, self.settings.shortest * size - len(samples))
        padded = np.pad(samples, (0, after))
        return padded[: len(padded) // size * size].reshape(-1, size)


def log_mel(samples: Samples, mels: int, shortest: int = WINDOW) -> Samples:
    """Return the log-mel energies [L, mels] of samples [n] at 16 kHz, L = n / 160, at least 1.

    As `WhisperFeatureExtractor` of transformers computes them (Radford et al. 2023): log10 of the energies, at most 8
    below the largest of the recording, plus 4, divided by 4. Samples, which may be hours, are not copied.
    shortest: samples to which a shorter recording is filled up with silence, at least `WINDOW`.
    """
    if len(samples) < shortest:
        samples = np.pad(samples, (0, shortest - len(samples)))
    window = np.square(np.sin(np.pi / WINDOW * np.arange(WINDOW))).astype(np.float32)  # Hann's
    count = len(samples) // HOP
    filters = mel_filters(mels).T
    energies = np.empty((count, mels), np.float32)
    for begin in range(0, count, _FRAMES):
        first, last = begin * HOP - WINDOW // 2, (min(count, begin + _FRAMES) - 1) * HOP + WINDOW // 2
        around = max(0, -first), max(0, last - len(samples))
        part = np.pad(samples[max(0, first) : last], around, "reflect")
        spectrum = np.fft.rfft(sliding_window_view(part, WINDOW)[::HOP] * window)
        power = (np.square(spectrum.real) + np.square(spectrum.imag)).astype(np.float32, copy=False)
        energies[begin : begin + _FRAMES] = power @ filters
    np.log10(np.maximum(energies, 1e-10, out=energies), out=energies)
    np.maximum(energies, energies.max() - np.float32(_RANGE), out=energies)
    energies += 4
    energies /= 4
    return energies


@lru_cache(maxsize=8)
def mel_filters(mels: int) -> Samples:
    """Return the triangular filters [mels, 201] between 0 and 8 kHz on the scale of Slaney's Auditory Toolbox (1998).

    The scale is linear below 1 kHz (200/3 Hz a mel) and logarithmic above; each triangle has the area 1.
    """
    step = math.log(6.4) / 27
    top = 15 + math.log(RATE / 2 / 1000) / step
    points = np.linspace(0, top, mels + 2)
    hertz = np.where(points < 15, points * 200 / 3, 1000 * np.exp(step * (points - 15)))
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    rising = (bins - hertz[:-2, None]) / np.diff(hertz)[:-1, None]
    falling = (hertz[2:, None] - bins) / np.diff(hertz)[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (hertz[2:] - hertz[:-2]))[:, None]
    return filters.astype(np.float32)


@lru_cache(maxsize=8)
def _cosines(size: int) -> Samples:
    """Return the matrix [size, size] of the orthonormal discrete cosine transform of type II."""
    place = np.arange(size)
    matrix: NDArray[np.float64] = np.cos(np.pi / size * (place[:, None] + 0.5) * place) * math.sqrt(2 / size)
    matrix[:, 0] /= math.sqrt(2)
    return matrix.astype(np.float32)


def resampled(blocks: Iterable[Samples], rate: int) -> Iterator[Samples]:
    """Yield blocks of samples [n] at `rate` Hz as samples at 16 kHz, by a sinc filter with a Hann window (Smith 2002).

    There is at least one block, which may be empty. Time and memory are bounded for every rate: filters that would take
    too much, such as those from 15,999 Hz, are interpolated.
    """
    count, produced, ratio = 0, 0, Fraction(rate, RATE)

    def counted() -> Iterator[Samples]:
        nonlocal count
        for block in blocks:
            count += len(block)
            yield block

    yield np.zeros(0, np.float32)
    output = counted()
    if ratio.denominator * (ratio.numerator + 2 * _half_width(ratio)) <= _LARGEST_FILTER:
        output = output if ratio == 1 else _convolved(output, ratio)
    else:
        if (factor := int(ratio / 2)) > 1:  # interpolating a wide filter is slow
            output, ratio = _convolved(output, Fraction(factor)), ratio / factor
        output = _interpolated(output, ratio)
    for block in output:
        yield block[: max(0, -(-count * RATE // rate) - produced)]
        produced += len(block)


def _half_width(ratio: Fraction) -> int:
    """Return the samples on each side that the filter from `ratio` times a rate to that rate reads."""
    return math.ceil(_ZEROS * max(ratio, Fraction(1)) / _CUTOFF)


def _convolved(blocks: Iterable[Samples], ratio: Fraction) -> Iterator[Samples]:
    """Yield blocks at a rate `ratio` times lower, by a filter for each place of an output sample between input samples.

    The last block has samples of the silence after the recording.
    """
    width, old, new = _half_width(ratio), ratio.numerator, ratio.denominator
    size = 2 * width + old
    filters = _filter(np.arange(-width, width + old) - np.arange(new)[:, None] * old / new, ratio).T  # [size, new]
    rest = np.zeros(width, np.float32)
    for block in chain(blocks, (np.zeros(width + old, np.float32),)):
        rest = np.concatenate([rest, block])
        groups = max(0, (len(rest) - 2 * width) // old)  # of `new` samples, each from `old` and those around them
        if groups:
            windows = sliding_window_view(rest, size)[: groups * old : old]
            yield (np.ascontiguousarray(windows) @ filters).reshape(-1)
            rest = rest[groups * old :]


def _interpolated(blocks: Iterable[Samples], ratio: Fraction) -> Iterator[Samples]:
    """Yield the same by filters that are interpolated between `_PHASES` ones, with errors of about 10⁻⁶."""
    width, old, new = _half_width(ratio), ratio.numerator, ratio.denominator
    table = _filter(np.arange(1 - width, width + 1) - np.arange(_PHASES + 1)[:, None] / _PHASES, ratio)
    rest, first, produced = np.zeros(width, np.float32), -width, 0
    for block in chain(blocks, (np.zeros(2 * width, np.float32),)):
        rest = np.concatenate([rest, block])
        until = -(-(first + len(rest) - width) * new // old)
        while produced < until:
            place = np.arange(produced, min(until, produced + _INTERPOLATED)) * old  # in 1/new of an input sample
            phase = place % new * _PHASES
            before, after = table[phase // new], table[phase // new + 1]  # [_INTERPOLATED, 2·width]
            filters = before + (phase % new / new).astype(np.float32)[:, None] * (after - before)
            windows = sliding_window_view(rest, 2 * width)[place // new + 1 - width - first]
            yield np.einsum("ij,ij->i", windows, filters)
            produced += len(place)
        begin = produced * old // new + 1 - width
        rest, first = rest[max(0, begin - first) :], max(first, begin)


def _filter(time: NDArray[np.float64], ratio: Fraction) -> Samples:
    """Return the filter from `ratio` times a rate to that rate, at times in input samples."""
    scale = _CUTOFF / max(float(ratio), 1.0)
    window = np.square(np.cos(np.clip(time * scale, -_ZEROS, _ZEROS) * np.pi / _ZEROS / 2))
    return (np.sinc(time * scale) * window * scale).astype(np.float32)


def soundfile_module() -> Any:
    """Return the module soundfile. Raises SettingsError if it is not installed."""
    try:
        import soundfile
    except (ImportError, OSError):
        raise not_installed("data.source: audio", "soundfile") from None
    return soundfile
