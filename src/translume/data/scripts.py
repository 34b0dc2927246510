"""Detect whether a text is mostly in a writing system, by ranges of code points."""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.errors import SettingsError, nearest

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""The ranges of each script, and of what is no letter; and what several scripts together are."""
_RANGES: dict[str, str] = _TABLES["ranges"]
_TOGETHER = {name: tuple(scripts.split()) for name, scripts in _TABLES["together"].items()}
_NEITHER = 0
_OTHER = 255
SCRIPTS: tuple[str, ...] = (*_RANGES, *_TOGETHER)
_USUAL = 0.9


def refuse_unknown(script: str, place: str = "data.cleaning") -> None:
    """Raise SettingsError, naming `place`, for a script that is not in SCRIPTS."""
    if script not in SCRIPTS:
        raise SettingsError(f"{place}: no script '{script}'{nearest(script, SCRIPTS)}")


def mostly_in(script: str, texts: Sequence[str]) -> NDArray[np.bool_]:
    """Return [n], True if at least half of a text's letters are of the script, or if it has no letters.

    Raises SettingsError for a script that is not in SCRIPTS.
    """
    refuse_unknown(script)
    names = list(_RANGES)
    wanted = np.zeros(256, np.bool_)
    wanted[[1 + names.index(name) for name in _TOGETHER.get(script, (script,))]] = True
    kinds, lengths, ends = _kinds(texts)
    letters, own = (_sums(counted, lengths, ends) for counted in (kinds != _NEITHER, wanted[kinds]))
    within: NDArray[np.bool_] = 2 * own >= letters
    return within


def in_other_scripts(pairs: Sequence[Sequence[Any]], scripts: Sequence[str]) -> NDArray[np.bool_]:
    """Return [n], True if a side of a pair is not `mostly_in` its script.  scripts: of both sides; empty: any."""
    other = np.zeros(len(pairs), np.bool_)
    for side, script in enumerate(scripts):
        if script:
            other |= ~mostly_in(script, [pair[side] for pair in pairs])
    return other


def letter_shares(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return the share of letters among the characters of each text [n] without spaces; 0 if it has none."""
    kinds, lengths, ends = _kinds(texts)
    spaces = np.fromiter((text.count(" ") for text in texts), np.int64, len(texts))
    shares: NDArray[np.float64] = _sums(kinds != _NEITHER, lengths, ends) / np.maximum(lengths - spaces, 1)
    return shares


def usual_script(texts: Sequence[str]) -> str:
    """Return the first of SCRIPTS that nine tenths of the texts are mostly in; empty if there is none."""
    lettered = [text for text, share in zip(texts, letter_shares(texts), strict=True) if share]
    usual = (script for script in SCRIPTS if lettered and mostly_in(script, lettered).mean() >= _USUAL)
    return next(usual, "")


def _kinds(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return the kinds of all characters, and the length and end of each text [n]."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    return _table()[points], lengths, np.cumsum(lengths)


def _sums(counted: NDArray[np.bool_], lengths: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int32]:
    running = np.zeros(len(counted) + 1, np.int32)
    np.cumsum(counted, dtype=np.int32, out=running[1:])
    sums: NDArray[np.int32] = running[ends] - running[ends - lengths]
    return sums


@cache
def _table() -> NDArray[np.uint8]:
    """Return a number for each code point: 0 if not a letter, from 1 for the scripts of _RANGES, else 255."""
    table = np.full(0x110000, _OTHER, np.uint8)
    for number, ranges in enumerate((_TABLES["neutral"], *_RANGES.values())):
        for part in ranges.split():
            first, _, last = part.partition("-")
            table[int(first, 16) : int(last or first, 16) + 1] = number
    return table
