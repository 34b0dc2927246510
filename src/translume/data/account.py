"""What became of every pair that was read."""

from collections.abc import Mapping
from dataclasses import dataclass

from translume.data.pairs import Pair

REASONS = ("empty", "without a label", "identical sides", "wrong script", "duplicate", "too long", "length ratio")
"""Why pairs are dropped, in the order in which the rules are asked; each pair counts under the first that holds."""

_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Counts of pairs, and one example of each reason (its texts cut to 200 characters).

    Always read == used + held_out + the sum of dropped; a ValueError otherwise, since that would be our own mistake.
    """

    read: int
    used: int
    held_out: int
    dropped: dict[str, int]
    examples: dict[str, Pair]
    truncated: int = 0
    """Of those used or held out, how many texts were cut."""

    def __post_init__(self) -> None:
        if self.read != self.used + self.held_out + sum(self.dropped.values()):
            raise ValueError(f"pairs were lost: {self.read} read, {self.used} used, {self.held_out}, {self.dropped}")

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON, which `from_dict` reads back."""
        examples = {
            reason: {"source": pair.source, "target": pair.target, "file": pair.file, "line": pair.line}
            for reason, pair in self.examples.items()
        }
        values = {
            "read": self.read,
            "used": self.used,
            "held_out": self.held_out,
            "dropped": dict(self.dropped),
            "examples": examples,
        }
        return {**values, "truncated": self.truncated} if self.truncated else values

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "Account":
        """The inverse of `to_dict`. Raises KeyError, TypeError or ValueError for other mappings."""
        counts = {name: values[name] for name in ("read", "used", "held_out")}
        dropped, examples = values["dropped"], values["examples"]
        if not isinstance(dropped, dict) or not isinstance(examples, dict):
            raise TypeError("dropped and examples are mappings")
        read, used, held_out = (int(str(count)) for count in counts.values())
        return cls(
            read=read,
            used=used,
            held_out=held_out,
            dropped={str(reason): int(count) for reason, count in dropped.items()},
            examples={str(reason): Pair(**pair) for reason, pair in examples.items()},
            truncated=int(str(values.get("truncated", 0))),
        )

    def summary(self, *, examples: bool = False) -> str:
        """Text for people: a line with the sums, and one for each reason, with its example when asked."""
        parts = [f"{self.read:,} pairs read", f"{self.used:,} used"]
        if self.held_out:
            parts.append(f"{self.held_out:,} held out for validation")
        parts.append(f"{sum(self.dropped.values()):,} dropped")
        if self.truncated:
            parts.append(f"{self.truncated:,} cut")
        lines = [", ".join(parts)]
        for reason, count in self.dropped.items():
            lines.append(f"  {reason}: {count:,}")
            if examples and reason in self.examples:
                pair = self.examples[reason]
                lines.append(f"    {pair.file}:{pair.line}: {pair.source!r} | {pair.target!r}")
        return "\n".join(lines)


class Ledger:
    """Counts while pairs are read; `close` gives the Account."""

    def __init__(self) -> None:
        self.read = 0
        self.used = 0
        self.held_out = 0
        self.truncated = 0
        self._dropped: dict[str, int] = {}
        self._examples: dict[str, Pair] = {}

    def drop(self, reason: str, pair: Pair, count: int = 1) -> None:
        """Count `count` pairs under a reason; the first pair ever given for it is its example."""
        self._dropped[reason] = self._dropped.get(reason, 0) + count
        if reason not in self._examples:
            source, target = (
                text if len(text) <= _SHOWN else text[:_SHOWN] + "…" for text in (pair.source, pair.target)
            )
            self._examples[reason] = Pair(source=source, target=target, file=pair.file, line=pair.line)

    def close(self) -> Account:
        """The account so far; reasons stand in the order of the rules."""
        reasons = [reason for reason in REASONS if reason in self._dropped]
        return Account(
            read=self.read,
            used=self.used,
            held_out=self.held_out,
            dropped={reason: self._dropped[reason] for reason in reasons},
            examples={reason: self._examples[reason] for reason in reasons},
            truncated=self.truncated,
        )
