"""Find suspicious training data that no rule drops: repeated pairs, identical sides, overlap, header lines."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from translume.config.data import DataSettings
from translume.data.cleaning import Seen, is_blank
from translume.data.held_out import chunks
from translume.data.pairs import Pair, origins, read_pairs
from translume.tasks import find_task

_ONE_WORD = (
    "source target src tgt trg text texts label labels class category sentence sentence1 sentence2 input "
    "output original translation reference question answer premise hypothesis document summary quelle "
    "ziel quelltext zieltext ausgangstext quellsprache zielsprache satz übersetzung frage antwort "
    "traduction phrase traducción frase"
)
HEADER_WORDS = frozenset({*_ONE_WORD.split(), "source text", "target text", "source language", "target language"})
"""Words that name a column, in lower case; the language codes of [data] are added."""

KINDS = (
    "duplicate pairs",
    "identical sides",
    "pairs also in the validation data",
    "sources also in the validation data",
    "control or invisible characters",
    "texts of more than 10,000 characters",
)
"""What is counted, in the order of the report."""

RULES = {"duplicate pairs": "duplicates", "identical sides": "identical"}
"""The setting in [data.cleaning] that drops such pairs."""

_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
    r"|(?<![^\x00-\x7f])[\u200c\u200d](?![^\x00-\x7f])"
)
"""Control, zero-width and bidirectional characters. Joiners belong to Persian, Indic scripts and emoji."""
_LONG = 10_000
_CHUNK = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Counts of suspicious pairs by kind, with the first pair of each, and first lines that look like headers."""

    counts: dict[str, int]
    examples: dict[str, Pair]
    headers: tuple[Pair, ...]

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        examples = {kind: pair.to_dict() for kind, pair in self.examples.items()}
        return {"counts": self.counts, "examples": examples, "headers": [pair.to_dict() for pair in self.headers]}

    def lines(self, dropped: Collection[str] = ()) -> list[str]:
        """Return the findings as lines of text, without the kinds in `dropped`, whose pairs a rule drops."""
        lines = []
        for kind, count in self.counts.items():
            if count and kind not in dropped:
                rule = f"; kept, unless data.cleaning.{RULES[kind]} = true" if kind in RULES else ""
                lines += [f"  {kind}: {count:,}{rule}", f"    {self.examples[kind].shown()}"]
        for pair in self.headers:
            lines += ["  first line is likely a header", f"    {pair.shown()}"]
        return lines


class Finder:
    """Checks training pairs as they are read. Memory: 8 to 16 bytes per training pair, 34 per validation pair.

    Pairs are compared by 64-bit hashes. Among 200 million different pairs, P(no two have the same hash) = 0.999.
    """

    def __init__(
        self, settings: DataSettings, normalised: Callable[[Sequence[Pair]], Sequence[Pair]] = lambda pairs: pairs
    ) -> None:
        """normalised: returns pairs as the model reads them, which are compared."""
        self._normalised = normalised
        codes = {settings.source_language, settings.target_language} - {""}
        codes |= {code for each in settings.corpus for code in (each.source_language, each.target_language)}
        self._header_words = HEADER_WORDS | {code.lower() for code in codes}
        self._seen = Seen()
        self._counts = dict.fromkeys(KINDS, 0)
        self._examples: dict[str, Pair] = {}
        self._headers: list[Pair] = []
        self._valid = [np.zeros(0, np.uint64), np.zeros(0, np.uint64)]
        # All documents have the same, empty source, or are their own.
        self._reads_sources = find_task(settings.task).reads == "pairs" and settings.noise is None
        if origins(settings, "valid"):
            for pairs in map(normalised, chunks(read_pairs(settings, "valid"), _CHUNK)):
                hashes_by_side = (_hashes(pairs), _source_hashes(pairs)) if self._reads_sources else (_hashes(pairs),)
                for side, hashes in enumerate(hashes_by_side):
                    self._valid[side] = np.concatenate([self._valid[side], hashes])
        self._sorted = [np.unique(side) for side in self._valid]
        self._met = [np.zeros(len(side), np.bool_) for side in self._sorted]

    def look(self, pairs: Sequence[Pair]) -> None:
        """Check the next pairs."""
        read = self._normalised(pairs)
        hashes = _hashes(read)
        self._note("duplicate pairs", self._seen.add(hashes), pairs)
        hidden = [_INVISIBLE.search(f"{pair.source}\n{pair.target}") is not None for pair in pairs]
        self._note("control or invisible characters", np.array(hidden, np.bool_), pairs)
        if self._reads_sources:
            same = [pair.source.strip() == pair.target.strip() and not is_blank(pair.source) for pair in read]
            self._note("identical sides", np.array(same, np.bool_), pairs)
            long = [max(len(pair.source), len(pair.target)) > _LONG for pair in pairs]
            self._note("texts of more than 10,000 characters", np.array(long, np.bool_), pairs)
        for side, kind in enumerate(KINDS[2:4]):
            if len(self._sorted[side]):
                side_hashes = hashes if side == 0 else _source_hashes(read)
                place = np.minimum(np.searchsorted(self._sorted[side], side_hashes), len(self._sorted[side]) - 1)
                hit = self._sorted[side][place] == side_hashes
                self._met[side][place[hit]] = True
                self._note(kind, hit, pairs, counted=False)
        for pair in pairs:
            if pair.line == 1 and self._is_header(pair):
                self._headers.append(pair.shortened())

    def findings(self) -> Findings:
        """Return what was found. Overlap counts the validation pairs, or their sources, that training pairs repeat."""
        counts = dict(self._counts)
        for side, kind in enumerate(KINDS[2:4]):
            met = self._sorted[side][self._met[side]]
            counts[kind] = int(np.isin(self._valid[side], met).sum())
        return Findings(counts=counts, examples=dict(self._examples), headers=tuple(self._headers))

    def _note(self, kind: str, holds: NDArray[np.bool_], pairs: Sequence[Pair], *, counted: bool = True) -> None:
        if holds.any():
            self._counts[kind] += int(holds.sum()) if counted else 0
            self._examples.setdefault(kind, pairs[int(holds.argmax())].shortened())

    def _is_header(self, pair: Pair) -> bool:
        sides = [side.strip().lower() for side in (pair.source, pair.target)]
        return all(side in self._header_words for side in sides if side) and any(sides)


def _hashes(pairs: Sequence[Pair]) -> NDArray[np.uint64]:
    """Return a hash of each pair, valid in this process only; Python's own is ten times as fast as a digest."""
    return np.fromiter((hash((pair.source, pair.target)) for pair in pairs), np.int64, len(pairs)).view(np.uint64)


def _source_hashes(pairs: Sequence[Pair]) -> NDArray[np.uint64]:
    return np.fromiter((hash(pair.source) for pair in pairs), np.int64, len(pairs)).view(np.uint64)
