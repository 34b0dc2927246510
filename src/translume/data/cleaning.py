"""The rules that leave pairs out; each pair counts under the first rule that holds."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from translume.config.data import CleaningSettings
from translume.data.account import REASONS
from translume.data.duplicates import Seen, hashes
from translume.data.pairs import Pair
from translume.data.scripts import mostly_in

KEPT = -1
_CODE = {reason: code for code, reason in enumerate(REASONS)}


class Rules:
    """Asked twice about each pair: of its texts before they are tokenized, of its lengths after.

    The answer is a code for each pair [n]: KEPT, or the place of the reason in REASONS. `settings` None asks only what
    every corpus must pass: no empty side, none of more than `limit` tokens (None: any length). `labelled`: targets are
    labels, of which every text needs one.
    """

    def __init__(self, settings: CleaningSettings | None, limit: int | None, *, labelled: bool = False) -> None:
        self._settings = settings or CleaningSettings(max_ratio=0.0)
        self._limit = limit
        self._no_target = "without a label" if labelled else "empty"
        self._seen = Seen()

    def of_texts(self, pairs: Sequence[Pair]) -> NDArray[np.int8]:
        """Codes by texts, in the order of REASONS up to duplicates (of the pairs that passed until there)."""
        settings = self._settings
        codes = np.full(len(pairs), KEPT, np.int8)
        _mark(codes, np.array([not pair.source.strip() for pair in pairs], np.bool_), "empty")
        _mark(codes, np.array([not pair.target.strip() for pair in pairs], np.bool_), self._no_target)
        if settings.identical:
            same = [pair.source.strip() == pair.target.strip() for pair in pairs]
            _mark(codes, np.array(same, np.bool_), "identical sides")
        if settings.source_script:
            _mark(codes, ~mostly_in(settings.source_script, [pair.source for pair in pairs]), "wrong script")
        if settings.target_script:
            _mark(codes, ~mostly_in(settings.target_script, [pair.target for pair in pairs]), "wrong script")
        if settings.duplicates:
            kept = np.flatnonzero(codes == KEPT)
            texts = (f"{len(pairs[i].source)}:{pairs[i].source}{pairs[i].target}" for i in kept.tolist())
            codes[kept[self._seen.add(hashes(texts, len(kept)))]] = _CODE["duplicate"]
        return codes

    def of_lengths(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int8]:
        """Codes by numbers of tokens [n]: empty (nothing left after normalisation), too long, length ratio."""
        codes = np.full(len(source), KEPT, np.int8)
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        _mark(codes, source == 0, "empty")
        _mark(codes, target == 0, self._no_target)
        if self._limit is not None:
            _mark(codes, longer > self._limit, "too long")
        if self._settings.max_ratio:
            _mark(codes, longer > self._settings.max_ratio * shorter, "length ratio")
        return codes


def shortened(ids: Sequence[int], limit: int, keep: Literal["keep_first", "keep_last"]) -> list[int]:
    """The first or the last `limit` ids."""
    return list(ids[:limit] if keep == "keep_first" else ids[len(ids) - limit :])


def _mark(codes: NDArray[np.int8], holds: NDArray[np.bool_], reason: str) -> None:
    codes[holds & (codes == KEPT)] = _CODE[reason]
