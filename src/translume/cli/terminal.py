"""What people see on standard error: notes, bars that appear after two seconds, colours where there is a terminal."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

PATIENCE_SECONDS = 2.0
"""What takes less is not worth a bar."""


def note(text: str) -> None:
    """A line for people, on standard error."""
    click.echo(text, err=True)


def console() -> "Console":
    """rich's console on standard error: colours only on a terminal, and not under NO_COLOR."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def on_terminal() -> bool:
    """Whether somebody watches standard error."""
    return sys.stderr.isatty()


class Meter:
    """Counts what is done; after two seconds a bar on the terminal, never a byte anywhere else."""

    def __init__(self, what: str, *, unit: str, total: int | None = None, prints: bool = False) -> None:
        """prints: the verb writes lines meanwhile, which would run into a bar on the same terminal."""
        self.done = 0
        self._what, self._unit, self._total = what, unit, total
        self._watched = on_terminal() and not (prints and sys.stdout.isatty())
        self._begun = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def to(self, done: int) -> None:
        """`done` are done in all."""
        self.done = done
        seconds = time.monotonic() - self._begun
        if self._progress is None and self._watched and seconds > PATIENCE_SECONDS:
            self._start()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, rate=f"{done / seconds:,.0f} {self._unit}/s")

    def advance(self, count: int = 1) -> None:
        """`count` more are done."""
        self.to(self.done + count)

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
