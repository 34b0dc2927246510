"""Standard error: notes, progress bars that appear after two seconds, colours only on a terminal."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

DELAY_SECONDS = 2.0
"""Seconds before a progress bar appears."""


QUIET = "translume.quiet"
"""The name of --quiet in the context of a command."""


def is_quiet() -> bool:
    """Return whether --quiet was given. It is known in the main thread only."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def note(text: str) -> None:
    """Print a line on standard error, unless --quiet was given."""
    if not is_quiet():
        warn(text)


def warn(text: str) -> None:
    """Print a line on standard error, also with --quiet."""
    click.echo(text, err=True)


def console() -> "Console":
    """Return rich's console on standard error: colours only on a terminal, and not with NO_COLOR."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def on_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr.isatty()


class ProgressBar:
    """Counts what is done. Shows a bar after two seconds, on a terminal only."""

    def __init__(self, what: str, *, unit: str, total: int | None = None, prints: bool = False) -> None:
        """prints: the command prints lines meanwhile, so there is no bar if standard output is a terminal too."""
        self.done = 0
        self._what, self._unit, self._total = what, unit, total
        self._visible = on_terminal() and not is_quiet() and not (prints and sys.stdout.isatty())
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, done: int) -> None:
        """Set the number of items done."""
        self.done = done
        seconds = time.monotonic() - self._started
        if self._progress is None and self._visible and seconds > DELAY_SECONDS:
            self._start()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, rate=f"{done / seconds:,.0f} {self._unit}/s")

    def expect(self, total: int) -> None:
        """Set the number of items in all."""
        self._total = total

    def advance(self, count: int = 1) -> None:
        """Add to the number of items done."""
        self.update(self.done + count)

    def hint(self) -> str:
        """Return how to continue after an interruption, if the items are lines of the input."""
        if not self.done:
            return "Interrupted before the first line; the same command starts again."
        return f"Interrupted after line {self.done}; continue with `tail -n +{self.done + 1}`"

    def _start(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console(),
            transient=True,
        )
        self._task = self._progress.add_task(self._what, total=self._total, rate="")
        self._progress.start()
