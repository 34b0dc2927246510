"""Detect whether a text is mostly in a writing system, by ranges of code points."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from translume.errors import SettingsError, nearest

# First and last code points, hexadecimal, after the blocks of the Unicode standard; only letters matter, so edges
# need not be exact.
_RANGES = {
    "latin": (
        "41-5a 61-7a aa ba c0-d6 d8-f6 f8-2af 1e00-1eff 2c60-2c7f a722-a7ff ab30-ab6f fb00-fb06 ff21-ff3a ff41-ff5a"
    ),
    "greek": "370-3ff 1f00-1fff",
    "cyrillic": "400-52f 1c80-1c8f 2de0-2dff a640-a69f",
    "armenian": "531-58f fb13-fb17",
    "hebrew": "591-5f4 fb1d-fb4f",
    "arabic": "610-65f 66e-6ef 6fa-6ff 750-77f 8a0-8ff fb50-fdfb fe70-fefc",
    "devanagari": "900-963 971-97f a8e0-a8ff",
    "bengali": "980-9e5 9f0-9fe",
    "gurmukhi": "a00-a65 a70-a7f",
    "gujarati": "a80-ae5 af0-aff",
    "tamil": "b80-be5 bf0-bff",
    "telugu": "c00-c65 c70-c7f",
    "kannada": "c80-ce5 cf0-cff",
    "malayalam": "d00-d65 d70-d7f",
    "sinhala": "d80-de5 df0-df4",
    "thai": "e01-e3a e40-e4f",
    "lao": "e81-ecf edc-edf",
    "tibetan": "f00-f1f f2a-fda",
    "burmese": "1000-103f 104a-109f",
    "georgian": "10a0-10ff 1c90-1cbf 2d00-2d2f",
    "ethiopic": "1200-139f 2d80-2ddf",
    "khmer": "1780-17df",
    "hiragana": "3041-309f 1b000-1b16f",
    "katakana": "30a1-30ff 31f0-31ff ff66-ff9f",
    "han": "3005-3007 3021-3029 3400-4dbf 4e00-9fff f900-faff 20000-323af",
    "hangul": "1100-11ff 3131-318e a960-a97f ac00-d7ff ffa0-ffdc",
}
# Code points that are not letters: symbols, digits, marks, spaces, emoji.
_NEUTRAL = (
    "0-40 5b-60 7b-a9 ab-b9 bb-bf d7 f7 2b0-36f 600-60f 660-66d 6f0-6f9 964-970 1ab0-1aff 1dc0-1dff "
    "2000-2bff 2e00-2e7f 3000-3004 3008-3020 302a-3040 30a0 d800-f8ff fe00-fe6f fefd-ff20 ff3b-ff40 "
    "ff5b-ff65 ffe0-ffff 1d000-1d37f 1f000-1faff e0000-10ffff"
)
_TOGETHER = {"japanese": ("han", "hiragana", "katakana"), "korean": ("hangul", "han"), "chinese": ("han",)}
_NEITHER = 0
_OTHER = 255
SCRIPTS = (*_RANGES, *_TOGETHER)


def refuse_unknown(script: str) -> None:
    """Raise SettingsError for a script that is not in SCRIPTS."""
    if script not in SCRIPTS:
        raise SettingsError(f"data.cleaning: no script '{script}'{nearest(script, SCRIPTS)}")


def mostly_in(script: str, texts: Sequence[str]) -> NDArray[np.bool_]:
    """Return [n], True if at least half of a text's letters are of the script, or if it has no letters.

    Raises SettingsError for a script that is not in SCRIPTS.
    """
    refuse_unknown(script)
    names = list(_RANGES)
    wanted = np.zeros(256, np.bool_)
    wanted[[1 + names.index(name) for name in _TOGETHER.get(script, (script,))]] = True
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    kinds = _table()[points]
    ends = np.cumsum(lengths)
    letters, own = (_sums(counted, lengths, ends) for counted in (kinds != _NEITHER, wanted[kinds]))
    within: NDArray[np.bool_] = 2 * own >= letters
    return within


def _sums(counted: NDArray[np.bool_], lengths: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int32]:
    running = np.zeros(len(counted) + 1, np.int32)
    np.cumsum(counted, dtype=np.int32, out=running[1:])
    sums: NDArray[np.int32] = running[ends] - running[ends - lengths]
    return sums


@cache
def _table() -> NDArray[np.uint8]:
    """Return a number for each code point: 0 if not a letter, from 1 for the scripts of _RANGES, else 255."""
    table = np.full(0x110000, _OTHER, np.uint8)
    for number, ranges in enumerate((_NEUTRAL, *_RANGES.values())):
        for part in ranges.split():
            first, _, last = part.partition("-")
            table[int(first, 16) : int(last or first, 16) + 1] = number
    return table
