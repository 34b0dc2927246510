"""Sources of frames in drawings: spectrograms and images as arrays of pixels, and as lines for a terminal."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from translume.drawing.cells import COLUMN_WIDTH, SHADES, column, shade
from translume.inspection.values import Frames, Trace

WIDTH = 96
"""Maximum number of columns of a source in a terminal."""
BANDS = 8
"""Lines of a spectrogram in a terminal."""
MOST_LINES = 24
"""Lines of an image in a terminal."""
_TICK_WIDTH = 10
_HIGHEST = 255


def pixels_of(frames: Frames) -> NDArray[np.uint8]:
    """Return [F, L], the last value of a frame on top as in a spectrogram; for an image [height, width(, 3)]."""
    levels = np.array(frames.levels, np.uint8)
    if frames.kind != "image":
        return levels.T[::-1]
    pixels = levels.reshape(len(levels), -1, frames.colors).transpose(1, 0, 2)
    return pixels if frames.colors > 1 else pixels[..., 0]


def unit_of(frames: Frames) -> str:
    """Return what the positions of a source are counted in."""
    return "seconds" if frames.per_second else "pixels" if frames.kind == "image" else "frames"


def place_of(frames: Frames, frame: float) -> float:
    """Return where a frame is, in the unit of the source."""
    return frame / frames.per_second if frames.per_second else frame


def size_of(frames: Frames) -> str:
    """Return the size of a source in words."""
    length, values = len(frames.levels), len(frames.levels[0]) if frames.levels else 0
    if frames.kind == "image":
        return f"{length:,} × {values // frames.colors:,} pixels"
    seconds = f"{length / frames.per_second:.2f} seconds, " if frames.per_second else ""
    return f"{seconds}{length:,} frames of {values:,} values"


def span_of(frames: Frames, place: int) -> str:
    """Return the part of the source that a target token belongs to; empty if it has none."""
    begin, end = frames.spans[place]
    if end <= begin:
        return ""
    if frames.per_second:
        return f"{place_of(frames, begin):.2f}–{place_of(frames, end):.2f}"
    return f"{begin}–{end - 1}"


def attention_of(trace: Trace) -> tuple[NDArray[np.float64], int] | None:
    """Return the mean cross-attention [t, S] of the last layer but one, without positions after the end of the source.

    Also return the layer's number, from 1. None if the trace has no attention.
    """
    if trace.attention is None or not trace.attention.cross:
        return None
    layers = trace.attention.cross
    number = max(0, len(layers) - 2)
    there = sum(token.end > token.begin for token in trace.source_tokens)
    return np.array(layers[number]).mean(0)[:, :there], number + 1


def lines(trace: Trace, frames: Frames) -> Iterator[Text]:
    """Yield a spectrogram or an image, and below it the cross-attention and the part of each target token."""
    length = len(frames.levels)
    width = min(WIDTH, length)
    edges = np.linspace(0, length, width + 1)
    yield Text(f"{_title(frames)}, {_alignment(frames)}")
    margin = " " * (2 * COLUMN_WIDTH + 2)
    for row in _shades(frames, edges):
        yield Text(margin + row)
    yield Text(margin + _axis(frames, width))
    found = attention_of(trace)
    if found is not None:
        heads = len(trace.attention.cross[found[1] - 1]) if trace.attention else 0
        many = f"mean of {heads} heads" if heads > 1 else "mean of its heads"
        yield Text(f"cross-attention, layer {found[1]}, {many}; ─: the part of the token")
    begins = [token.begin for token in trace.source_tokens if token.end > token.begin]
    for place, token in enumerate(trace.target_tokens):
        cells = [" "] * width
        first, last = np.array(frames.spans[place]) * width / length
        for cell in range(width):
            if first < cell + 1 and cell < last:
                cells[cell] = "─"
            if found is not None:
                inside = _positions(begins, edges[cell], edges[cell + 1])
                mark = shade(float(found[0][place][inside].max()))
                cells[cell] = mark if mark != " " else cells[cell]
        line = Text(f"{column(token.text)}{column(span_of(frames, place))}  ")
        yield line.append("".join(cells).rstrip(), style="blue")


def _positions(begins: list[int], first: float, last: float) -> slice:
    """Return the positions of the encoder that overlap frames from `first` to `last`."""
    begin = max(0, int(np.searchsorted(begins, first, "right")) - 1)
    return slice(begin, max(begin + 1, int(np.searchsorted(begins, last, "left"))))


def _title(frames: Frames) -> str:
    return {"image": "image", "features": "values, the last on top"}.get(frames.kind, "spectrogram, 8 kHz on top")


def _alignment(frames: Frames) -> str:
    if not frames.aligned_by:
        return f"in {unit_of(frames)}"
    how = {"ctc": "CTC", "attention": "attention"}[frames.aligned_by]
    return f"in {unit_of(frames)}; the part of each token by {how}"


def _shades(frames: Frames, edges: NDArray[np.float64]) -> Iterator[str]:
    """Yield the lines of a picture with a column between two edges each."""
    pixels = pixels_of(frames).astype(float)
    if pixels.ndim == 3:
        pixels = pixels.mean(2)
    height, length = pixels.shape
    if frames.kind == "image":
        count = min(MOST_LINES, height, max(3, round(height * (len(edges) - 1) / length / 2)))
        pixels = _HIGHEST - pixels if pixels.mean() > _HIGHEST / 2 else pixels  # so that ink is drawn
    else:
        count = min(BANDS, height)
    low, high = np.percentile(pixels, (5, 99))
    rows = np.linspace(0, height, count + 1).round().astype(int)
    columns = edges.round().astype(int)
    for top, bottom in pairwise(rows):
        means = [
            pixels[top:bottom, min(begin, length - 1) : max(end, begin + 1)].mean() for begin, end in pairwise(columns)
        ]
        shares = np.clip((np.array(means) - low) / max(high - low, 1.0), 0, 1)
        yield "".join(SHADES[round(share * (len(SHADES) - 1))] for share in shares).rstrip()


def _axis(frames: Frames, width: int) -> str:
    """Return ticks with their places, below the columns that they are at."""
    length = place_of(frames, len(frames.levels))
    least = length * _TICK_WIDTH / width
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * many for many in (1, 2, 5, 10) if power * many >= least)
    step = step if frames.per_second else max(1.0, step)
    line = ""
    for number in range(int(length / step) + 1):
        line = f"{line:<{round(number * step * width / length)}}╵{number * step:g}"
    return line
