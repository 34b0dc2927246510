"""Cleaning rules, duplicate detection, and the counts of pairs used, held out and dropped."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.config.data import CleaningSettings
from translume.data.pairs import Pair
from translume.data.scripts import in_other_scripts
from translume.json_values import JsonValue

REASONS = (
    "empty",
    "unreadable",
    "without a label",
    "identical sides",
    "wrong script",
    "duplicate",
    "too long",
    "length ratio",
)
"""Why pairs are dropped, in the order in which rules are applied; a pair counts under the first that matches."""

_BLANK = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]*"
)
"""White space, control characters, and what Unicode's Default_Ignorable_Code_Point has no glyph for."""


def is_blank(text: str) -> bool:
    """Return whether nothing of a text can be seen: white space, control and zero-width characters."""
    return _BLANK.fullmatch(text) is not None


@dataclass(slots=True, kw_only=True)
class Account(JsonValue):
    """Counts of pairs or documents, and one example for each reason (texts truncated to 200 characters)."""

    read: int = 0
    used: int = 0
    held_out: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, Pair] = field(default_factory=dict)
    truncated: int = 0
    """How many of the used or held-out texts were truncated."""
    unit: str = "pairs"
    """What is counted: "pairs" or "documents"."""
    directions: dict[str, "Account"] = field(default_factory=dict)
    """The counts of each direction, such as "en→de", if there are several."""

    @classmethod
    def joined(cls, directions: dict[str, "Account"]) -> "Account":
        """Return the sums of the accounts of one or more directions."""
        total = cls.total(list(directions.values()))
        if len(directions) > 1:
            total.directions = {name: cls.total([each]) for name, each in directions.items()}
        return total

    @classmethod
    def total(cls, accounts: "Sequence[Account]") -> "Account":
        """Return the sums of one or more accounts, each reason with its first example, in the order of the rules.

        Raises ValueError if read ≠ used + held_out + dropped: there is a bug in Translume.
        """
        reasons = [reason for reason in REASONS if any(reason in each.dropped for each in accounts)]
        total = cls(
            read=sum(each.read for each in accounts),
            used=sum(each.used for each in accounts),
            held_out=sum(each.held_out for each in accounts),
            dropped={reason: sum(each.dropped.get(reason, 0) for each in accounts) for reason in reasons},
            examples={
                reason: next(each.examples[reason] for each in accounts if reason in each.examples)
                for reason in reasons
            },
            truncated=sum(each.truncated for each in accounts),
            unit=accounts[0].unit,
        )
        if total.read != total.used + total.held_out + sum(total.dropped.values()):
            raise ValueError(f"pairs were lost: {total}")
        return total

    def drop(self, reason: str, pair: Pair, count: int = 1) -> None:
        """Count `count` pairs under a reason. The first pair of each reason is its example."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        if reason not in self.examples:
            self.examples[reason] = pair.shortened("…")._replace(target_file="", document="")

    def keep(self, pairs: list[Pair], codes: NDArray[np.int8]) -> list[Pair]:
        """Return the pairs with the code KEPT, and count the others under their reasons."""
        if (codes == KEPT).all():
            return pairs
        for code in np.unique(codes[codes != KEPT]).tolist():
            dropped = np.flatnonzero(codes == code)
            self.drop(REASONS[code], pairs[int(dropped[0])], len(dropped))
        return [pairs[i] for i in np.flatnonzero(codes == KEPT).tolist()]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `from_dict` is the inverse."""
        examples = {reason: pair.to_dict() for reason, pair in self.examples.items()}
        directions = {name: each.to_dict() for name, each in self.directions.items()}
        return {**asdict(self), "examples": examples, "directions": directions}

    def summary(self, *, examples: bool = False) -> str:
        """Return the sums in one line, and one line for each reason, followed by its example if `examples`.

        With several directions, the same follows for each of them.
        """
        lines = self._lines(examples=examples and not self.directions)
        for name, account in self.directions.items():
            first, *rest = account._lines(examples=examples)
            lines += [f"  {name}: {first}", *(f"  {line}" for line in rest)]
        return "\n".join(lines)

    def _lines(self, *, examples: bool) -> list[str]:
        parts = [f"{self.read:,} {self.unit} read", f"{self.used:,} used"]
        if self.held_out:
            parts.append(f"{self.held_out:,} held out for validation")
        parts.append(f"{sum(self.dropped.values()):,} dropped")
        if self.truncated:
            parts.append(f"{self.truncated:,} truncated")
        lines = [", ".join(parts)]
        for reason, count in self.dropped.items():
            lines.append(f"  {reason}: {count:,}")
            if examples and reason in self.examples:
                lines.append(f"    {self.examples[reason].shown()}")
        return lines


def hashes(texts: Iterable[str], count: int, salt: bytes = b"") -> NDArray[np.uint64]:
    """Return the 64-bit hash of each text. Among 200 million texts, P(no collision) = 0.999."""
    digests = b"".join(blake2b(text.encode("utf-8"), digest_size=8, salt=salt).digest() for text in texts)
    return np.frombuffer(digests, np.uint64, count)


def pair_hashes(pairs: Sequence[Pair]) -> NDArray[np.uint64]:
    """Return a hash of both texts of each pair [n]."""
    return hashes((f"{len(pair.source)}:{pair.source}{pair.target}" for pair in pairs), len(pairs))


class Seen:
    """A growing set of 64-bit hashes, as sorted runs that are merged when a new run is as long as the last.

    Takes 8 bytes a hash, 16 while it grows; a Python set takes more than 100.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Add hashes [n]. Returns True where a hash was seen before, in an earlier call or earlier in this one."""
        values, first = np.unique(hashes, return_index=True)
        old = np.zeros(len(values), np.bool_)
        for run in self._runs:
            position = np.minimum(np.searchsorted(run, values), len(run) - 1)
            old |= run[position] == values
        repeated = np.ones(len(hashes), np.bool_)
        repeated[first] = old
        fresh = values[~old]
        if len(fresh):
            self._insert(fresh)
        return repeated

    def _insert(self, run: NDArray[np.uint64]) -> None:
        smaller = [run]
        size = len(run)
        while self._runs and len(self._runs[-1]) <= 2 * size:
            size += len(self._runs[-1])
            smaller.append(self._runs.pop())
        if len(smaller) > 1:
            run = np.concatenate(smaller)
            smaller.clear()
            run.sort()
        self._runs.append(run)


Limits = tuple[int | None, int | None]
"""The lengths in tokens of the longest source and the longest target; None: any length."""
NO_LIMITS: Limits = (None, None)
KEPT = -1
_CODE = {reason: code for code, reason in enumerate(REASONS)}


class Rules:
    """Checks each pair twice: its texts before tokenization, its lengths after.

    Both checks return a code for each pair [n]: KEPT, or the index of the reason in REASONS. The first expects the
    texts as the model reads them (`Encoder.normalised`) if the rules compare texts. With `settings` None only
    the rules for every corpus apply: no empty side, and no side of more tokens than its limit.
    `missing_target`: the reason under which pairs without a target are counted.  sources: whether there are sources.
    """

    def __init__(
        self,
        settings: CleaningSettings | None,
        limits: Limits = NO_LIMITS,
        *,
        missing_target: str = "empty",
        sources: bool = True,
    ) -> None:
        self._sources = sources
        self._settings = settings or CleaningSettings(max_ratio=0.0)
        self._limits = limits
        self._no_target = missing_target
        self._seen = Seen()

    def of_texts(self, pairs: Sequence[Pair]) -> NDArray[np.int8]:
        """Return codes by texts, in the order of REASONS up to duplicates (among the pairs not dropped before)."""
        codes = self.of_each(pairs)
        if self.duplicates:
            self.mark_repeated(codes, pair_hashes([pairs[i] for i in np.flatnonzero(codes == KEPT).tolist()]))
        return codes

    def of_each(self, pairs: Sequence[Pair]) -> NDArray[np.int8]:
        """Return codes by those rules for texts that look at one pair at a time: all but duplicates."""
        settings = self._settings
        codes = np.full(len(pairs), KEPT, np.int8)
        if self._sources:
            _mark(codes, [is_blank(pair.source) for pair in pairs], "empty")
        _mark(codes, [is_blank(pair.target) for pair in pairs], self._no_target)
        if settings.identical:
            _mark(codes, [pair.source.strip() == pair.target.strip() for pair in pairs], "identical sides")
        _mark(codes, in_other_scripts(pairs, (settings.source_script, settings.target_script)), "wrong script")
        return codes

    def filled(self, codes: NDArray[np.int8]) -> NDArray[np.bool_]:
        """Return which pairs [n] have both sides.  codes [n]: by texts."""
        return ~np.isin(codes, [_CODE["empty"], _CODE[self._no_target]])

    @property
    def duplicates(self) -> bool:
        """Whether duplicates are dropped."""
        return self._settings.duplicates

    @property
    def compares(self) -> bool:
        """Whether a rule compares texts with each other."""
        return self._settings.duplicates or self._settings.identical

    def mark_repeated(self, codes: NDArray[np.int8], hashes: NDArray[np.uint64]) -> None:
        """Change the codes of duplicates.  hashes: `pair_hashes` of the pairs with the code KEPT."""
        kept = np.flatnonzero(codes == KEPT)
        codes[kept[self._seen.add(hashes)]] = _CODE["duplicate"]

    def of_lengths(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return codes by numbers of tokens [n]: empty (after normalisation), too long, length ratio."""
        codes = np.full(len(source), KEPT, np.int8)
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        if self._sources:
            _mark(codes, source == 0, "empty")
        _mark(codes, target == 0, self._no_target)
        for lengths, limit in zip((source, target), self._limits, strict=True):
            if limit is not None:
                _mark(codes, lengths > limit, "too long")
        if self._settings.max_ratio:
            _mark(codes, longer > self._settings.max_ratio * shorter, "length ratio")
        return codes


def _mark(codes: NDArray[np.int8], holds: NDArray[np.bool_] | list[bool], reason: str) -> None:
    codes[np.asarray(holds, np.bool_) & (codes == KEPT)] = _CODE[reason]
