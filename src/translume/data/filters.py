"""Filters of parallel data that look at one pair at a time, and what those that compare pairs need of each."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from translume.config.clean import ALWAYS, FILTERS, OF_PAIRS, CleanSettings
from translume.data.cleaning import KEPT, hashes, is_blank
from translume.data.fingerprints import joined, min_hashes
from translume.data.scripts import in_other_scripts, letter_shares
from translume.text.detection import Lingua

DROPS = (*ALWAYS, *FILTERS)
"""Why pairs are dropped, in the order in which the filters are applied; a code is an index."""
CODE = {name: code for code, name in enumerate(DROPS)}

Texts = tuple[str, str]
"""A source and its target."""

_NUMBER = re.compile(r"\d{1,3}(?:[.,'’\u00a0\u202f ]\d{3})+(?!\d)|\d+")
_NO_DIGIT = re.compile(r"\D")
_DIGITS_READ = 18
_SPELT = 2
"""Digits, without zeros at the end, of a number that may be a word on the other side."""
_ADDRESS = re.compile(r"(?:https?://|www\.)[^\s<>\"]+|[\w.+-]{1,64}@[\w-]+\.[\w.-]+", re.IGNORECASE)
_LANGUAGE_IN_ADDRESS = re.compile(r"(?<![^\W\d_])[a-z]{2}(?![^\W\d_])")
_SEPARATOR = re.compile(r"[|¦•·›▸►]| [>/] ")
_MARKS = str.maketrans(dict.fromkeys('!"#()*,-./:;<=>?[]_{|}~', " "))
_FEW_CHARACTERS = 10
_FEW_TRIGRAMS = 4
_SMOOTHING = 10
"""Characters added to both lengths in their ratio, since that of short texts varies more."""


class Checked(NamedTuple):
    """What is known of n pairs.

    codes: KEPT, or an index of DROPS.  ratios: the log ratios of their lengths.  fingerprints: [3 + bands, n], of the
    pair, its source and its target, then for near duplicates.
    """

    codes: NDArray[np.int8]
    ratios: NDArray[np.float32]
    fingerprints: NDArray[np.uint64]


@dataclass(frozen=True)
class PairFilters:
    """The filters of pairs, as a process has them.  settings: with the scripts of both sides, not "auto"."""

    settings: CleanSettings

    def check(self, block: tuple[list[Texts], list[int]]) -> Checked:
        """Apply the filters to pairs, of which those with these indices are unreadable."""
        pairs, unreadable = block
        codes = np.full(len(pairs), KEPT, np.int8)
        codes[unreadable] = CODE["unreadable"]
        for name in ("empty", *OF_PAIRS):
            if name == "empty" or name in self.settings.filters:
                alive = np.flatnonzero(codes == KEPT)
                dropped = _OF_PAIRS[name](self.settings, [pairs[i] for i in alive.tolist()])
                codes[alive[np.asarray(dropped, np.bool_)]] = CODE[name]
        normalised = [(normalise(source), normalise(target)) for source, target in pairs]
        sides = [hashes(side, len(pairs)) for side in zip(*normalised, strict=True)]
        bands = []
        if "near_duplicate" in self.settings.filters:
            texts = [f"{source}\0\0\0{target}" for source, target in normalised]
            bands.append(min_hashes(texts, self.settings.near_bands, self.settings.near_rows).T)
        lengths = np.array([(len(source), len(target)) for source, target in pairs]) + _SMOOTHING
        ratios = np.log(lengths[:, 1] / lengths[:, 0]).astype(np.float32)
        return Checked(codes, ratios, np.vstack([joined(*sides), *sides, *bands]))


def normalise(text: str) -> str:
    """Return a text as duplicates are compared: in Unicode's form NFKC, without case, with single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def numbers(text: str) -> list[str]:
    """Return the numbers in digits, without separators of thousands and zeros before them."""
    return [str(int(_NO_DIGIT.sub("", number)[:_DIGITS_READ])) for number in _NUMBER.findall(text)]


def _numbers_differ(settings: CleanSettings, pair: Texts) -> bool:
    source_numbers, target_numbers = map(numbers, pair)
    if not source_numbers or not target_numbers:
        return any(len(number.rstrip("0")) > _SPELT for number in source_numbers or target_numbers)
    shared = (Counter(source_numbers) & Counter(target_numbers)).total()
    return 2 * shared < settings.min_shared_numbers * (len(source_numbers) + len(target_numbers))


def _addresses(text: str) -> list[str]:
    """Return the sorted addresses of a text, without names of languages such as the "en" of en.wikipedia.org."""
    if "@" not in text and "://" not in text and "www." not in text:
        return []
    return sorted(
        _LANGUAGE_IN_ADDRESS.sub("", address.rstrip(".,;:!?)]}'’”»").lower()) for address in _ADDRESS.findall(text)
    )


def _is_copy(settings: CleanSettings, pair: Texts) -> bool:
    source_words, target_words = (set(text.casefold().translate(_MARKS).split()) for text in pair)
    return 2 * len(source_words & target_words) >= settings.max_overlap * (len(source_words) + len(target_words))


def _repeats(settings: CleanSettings, text: str) -> bool:
    units: Sequence[str] = text.split()
    if len(units) < 2 and len(text) >= _FEW_CHARACTERS:  # as in Chinese
        units = text
    count = len(units) - 2
    if count < _FEW_TRIGRAMS:
        return False
    return count - len(set(zip(units, units[1:], units[2:], strict=False))) > settings.max_repeats * count


def _wrong_language(settings: CleanSettings, pairs: list[Texts]) -> NDArray[np.bool_]:
    wrong = np.zeros(len(pairs), np.bool_)
    for side, code in enumerate((settings.source_language, settings.target_language)):
        if code:
            probabilities = [Lingua().probability(pair[side], code) for pair in pairs]
            wrong |= np.array(probabilities) < settings.min_probability
    return wrong


def _each(test: Callable[[CleanSettings, Texts], bool]) -> Callable[[CleanSettings, list[Texts]], Sequence[bool]]:
    return lambda settings, pairs: [test(settings, pair) for pair in pairs]


def _any_side(test: Callable[[CleanSettings, str], bool]) -> Callable[[CleanSettings, list[Texts]], Sequence[bool]]:
    return _each(lambda settings, pair: test(settings, pair[0]) or test(settings, pair[1]))


_OF_PAIRS: dict[str, Callable[[CleanSettings, list[Texts]], Sequence[bool] | NDArray[np.bool_]]] = {
    "empty": _any_side(lambda settings, text: is_blank(text)),
    "length": _any_side(lambda settings, text: not settings.min_characters <= len(text) <= settings.max_characters),
    "letters": lambda settings, pairs: (
        np.minimum(*(letter_shares([pair[side] for pair in pairs]) for side in (0, 1))) < settings.min_letters
    ),
    "script": lambda settings, pairs: in_other_scripts(pairs, (settings.source_script, settings.target_script)),
    "copy": _each(_is_copy),
    "numbers": _each(_numbers_differ),
    "addresses": _each(lambda settings, pair: _addresses(pair[0]) != _addresses(pair[1])),
    "repeats": _any_side(_repeats),
    "separators": _any_side(lambda settings, text: len(_SEPARATOR.findall(text)) > settings.max_separators),
    "language": _wrong_language,
}
