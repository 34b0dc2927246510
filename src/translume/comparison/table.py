"""The table that `translume heads` prints: rows of text, with notes on what cannot be compared."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from translume.comparison.heads import Row
from translume.comparison.measuring import BEST, ROWS, Measures
from translume.config import Config

NO_DISTRIBUTION, NO_SUPPORT = "†", "‡"
NOTHING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows and their common settings.  name: of the settings file.  command: the command line that made them."""

    config: Config
    name: str
    command: str
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as values for JSON."""
        return {
            "config": self.name,
            "command": self.command,
            "updates": self.config.training.updates,
            "seed": self.config.training.seed,
            "decoding": self.config.decoding.model_dump(mode="json"),
            "rows": [row.to_dict() for row in self.rows],
        }

    @property
    def measured(self) -> list[tuple[Row, Measures]]:
        """The rows that have measures."""
        return [(row, row.measures) for row in self.rows if row.measures is not None]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics of what was translated."""
        return list(dict.fromkeys(name for _, found in self.measured for name, _, _ in found.scores))

    def to_markdown(self) -> str:
        """Return the table and its notes as Markdown that is readable as plain text."""
        table = "\n".join(aligned(self._head(), [self._cells(row) for row in self.rows]))
        return "\n\n".join([table, *self._notes()])

    def to_page(self) -> str:
        """Return the table as a page with a title and the command that made it."""
        return f"# Output heads on {self.name}\n\n    {self.command}\n\n{self.to_markdown()}\n"

    def _head(self) -> list[str]:
        names = ["head", "parameters", "tokens/s", "peak MB", "nll", *self.metrics, "ECE"]
        return [*names, "head ms", "step ms"]

    def _cells(self, row: Row) -> list[str]:
        found = row.measures
        empty = [NOTHING] * (7 + len(self.metrics))
        if found is None:
            return [row.kind, *empty]
        values = {name: value for name, value, _ in found.scores}
        return [
            row.kind + marks(found),
            f"{found.parameters:,}",
            NOTHING if found.tokens_per_second is None else f"{found.tokens_per_second:,.0f}",
            NOTHING if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f}",
            NOTHING if found.nll is None else f"{found.nll:.3f}{marks(found)}",
            *(f"{values[name]:.2f}" if name in values else NOTHING for name in self.metrics),
            f"{found.ece:.4f}",
            f"{found.head_milliseconds:.2f}",
            f"{found.step_milliseconds:.2f}",
        ]

    def _notes(self) -> Iterator[str]:
        """Yield notes that explain the table, one paragraph each."""
        measured = [found for _, found in self.measured]
        if measured:
            yield self._how(measured[0])
        if not all(found.normalised for found in measured):
            yield (
                f"{NO_DISTRIBUTION} probabilities do not sum to one: the nll cannot be compared with other heads', "
                "the ECE only with care."
            )
        narrow = [(row.kind, found) for row, found in self.measured if not found.full_support]
        if narrow:
            left_out = ", ".join(f"{kind} {found.impossible:,} of {found.tokens:,}" for kind, found in narrow)
            yield (
                f"{NO_SUPPORT} some tokens have zero probability: the nll is the mean over the other reference tokens, "
                f"and looks better the more are left out ({left_out})."
            )
        for row in self.rows:
            if row.failure:
                yield f"{row.kind} failed: {row.failure}"

    def _how(self, first: Measures) -> str:
        decoding, training = self.config.decoding, self.config.training
        search = "greedy search" if decoding.strategy == "greedy" else f"beam {decoding.beam}"
        signatures = "; ".join(f"{name} {signature}" for name, _, signature in first.scores)
        many = "thread" if first.threads == 1 else "threads"
        where = f"{first.threads} {many}" if first.device == "cpu" else "memory is the device's"
        measured_on = f"nll in nats per token and ECE: {first.tokens:,} validation tokens"
        translated = f"{', '.join(self.metrics)}: {first.sentences:,} sentences, {search} ({signatures})"
        return (
            f"{training.updates:,} updates, seed {training.seed}; {first.device}, {where}. {measured_on}; "
            f"{translated}. ms: a decoding step of {ROWS} rows, for their {BEST} best tokens."
        )


def marks(found: Measures) -> str:
    """Return the marks of the notes that apply to a head."""
    return ("" if found.normalised else NO_DISTRIBUTION) + ("" if found.full_support else NO_SUPPORT)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with padded columns: the first left-aligned, the others right-aligned."""
    widths = [max(3, *(len(cell) for cell in column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return f"| {' | '.join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])} |"

    rule = "|".join([f":{'-' * (widths[0] + 1)}", *(f"{'-' * (width + 1)}:" for width in widths[1:])])
    return [line(head), f"|{rule}|", *map(line, rows)]
