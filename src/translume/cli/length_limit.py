"""Counts of translations that end at their length limit, and of sources that were cut, for standard error."""

from typing import TYPE_CHECKING

from translume.cli.terminal import warn

if TYPE_CHECKING:
    from translume.translator import Translation


class LimitCount:
    """The number of translations, of those that reached their limit, and the limits of these in tokens.

    Hypotheses that were joined from several sentences have no limit of their own.  truncated: sources that were cut.
    """

    def __init__(self) -> None:
        self.translations = 0
        self.reached = 0
        self.truncated = 0
        self._limits: set[int] = set()

    def add(self, translation: "Translation") -> None:
        """Count a translation."""
        self.translations += 1
        self.truncated += any(each.startswith("truncated:") for each in translation.warnings)
        if translation.reached_limit:
            self.reached += 1
            best = translation.hypotheses[0]
            if best.terms is not None:
                self._limits.add(len(best.ids))

    def report(self) -> None:
        """Print the counts in one line if a translation reached its limit."""
        if self.reached:
            warn(str(self))

    def __str__(self) -> str:
        which = "their length limit"
        if self._limits:
            least, most = min(self._limits), max(self._limits)
            which = f"the length limit of {least:,}" + ("" if least == most else f" to {most:,}") + " tokens"
        many = "translation" if self.translations == 1 else "translations"
        return f"{self.reached:,} of {self.translations:,} {many} reached {which}; --max-length N sets another"
