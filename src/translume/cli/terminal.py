"""Standard streams: notes, JSON, progress bars that appear after two seconds, and streams that are closed or full."""

import errno
import io
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from translume.parallel import Closing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.text import Text

    from translume.translator import Translation

T = TypeVar("T")

DELAY_SECONDS = 2.0
"""Seconds before a progress bar appears."""

QUIET = "translume.quiet"
"""The name of --quiet in the context of a command."""


def is_quiet() -> bool:
    """Return whether --quiet was given. It is known in the main thread only."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def undecoded_byte(text: str) -> int:
    """Return the first byte that Python could not decode in an argument or a file name, or 0.

    It stands in the text as a surrogate.
    """
    return next((ord(each) - 0xDC00 for each in text if "\udc80" <= each <= "\udcff"), 0)


def expected_text() -> str:
    """Return what is expected of names; if the locale is not UTF-8, how to change it."""
    if sys.getfilesystemencoding() == "utf-8":
        return "expected UTF-8 text"
    name = next((name for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "LANG")
    locale = os.environ.get(name, "C")
    return f"which is not text in the locale {name}={locale}; set LC_ALL=C.UTF-8 or PYTHONUTF8=1"


def note(text: str) -> None:
    """Print a line on standard error, unless --quiet was given."""
    if not is_quiet():
        warn(text)


def warn(text: str) -> None:
    """Print a line on standard error, also with --quiet."""
    click.echo(text, err=True)


def print_json(value: object) -> None:
    """Print a value on standard output as one line of JSON, with null for −inf."""
    from translume.json_values import to_json

    click.echo(to_json(value))


def print_lines(lines: "Iterable[Text]") -> None:
    """Print formatted lines on standard output; those that are wider than a terminal are wrapped at spaces."""
    from rich.console import Console

    output = Console(highlight=False)
    output.soft_wrap = not output.is_terminal
    for line in lines:
        output.print(line)


def console() -> "Console":
    """Return rich's console on standard error: colours only on a terminal, and not with NO_COLOR."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def on_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr.isatty()


class ProgressBar(Closing):
    """Counts what is done. Shows a bar after two seconds, on a terminal only."""

    def __init__(self, what: str, *, unit: str, total: int | None = None, prints: bool = False) -> None:
        """prints: the command prints lines meanwhile, so there is no bar if standard output is a terminal too."""
        self.done = 0
        self._what, self._unit, self._total = what, unit, total
        self._visible = on_terminal() and not is_quiet() and not (prints and sys.stdout.isatty())
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()

    def update(self, done: int, total: int | None = None) -> None:
        """Set the number of items done, and that of all if it is given."""
        self.done, self._total = done, total or self._total
        seconds = time.monotonic() - self._started
        if self._progress is None and self._visible and seconds > DELAY_SECONDS:
            self._start()
        if self._progress is not None and self._task is not None:
            rate = f"{done / seconds:,.0f} {self._unit}/s"
            self._progress.update(self._task, completed=done, total=self._total, rate=rate)

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


def progress_over(items: Iterable[T], what: str, *, unit: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, with a `ProgressBar` of those that are done."""
    with ProgressBar(what, unit=unit, total=total) as bar:
        for item in items:
            yield item
            bar.advance()


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
            low, high = min(self._limits), max(self._limits)
            which = f"the length limit of {low:,}" + ("" if low == high else f" to {high:,}") + " tokens"
        many = "translation" if self.translations == 1 else "translations"
        return f"{self.reached:,} of {self.translations:,} {many} reached {which}; --max-length N sets another"


def note_truncated(truncated: int, texts: int) -> None:
    """Print how many texts were truncated, if any."""
    if truncated:
        warn(f"{truncated:,} of {texts:,} texts were longer than the model reads and were truncated")


class OutputError(Exception):
    """Standard output cannot be written.  pipe_closed: its reader is gone.

    Not an OSError: click and rich end the process on those of a closed pipe.
    """

    def __init__(self, reason: str, *, pipe_closed: bool = False) -> None:
        super().__init__(f"standard output: {reason}")
        self.pipe_closed = pipe_closed


def open_standard_streams() -> None:
    """Replace sys.stdin, sys.stdout and sys.stderr where they are closed or could fail without a clear error.

    A closed stream gets a descriptor that cannot be read or written, so that no file that is opened later becomes
    standard output. Afterwards writing standard output raises OutputError where it fails, and writing standard error
    never fails: what cannot be written is lost.
    """
    # The wrong direction makes reading standard input and writing standard output fail like closed descriptors.
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest free descriptor, which is `number`
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    if sys.stdout in (None, sys.__stdout__):
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    if sys.stderr in (None, sys.__stderr__):
        sys.stderr = _text(_Errors(2, "w", closefd=False), sys.stderr)


@contextmanager
def flushed_output() -> Iterator[None]:
    """Flush standard output at the end of the block, also if the block raises SystemExit."""
    try:
        yield
    finally:
        sys.stdout.flush()


def abandon_output() -> None:
    """Discard what was printed and will be: standard output cannot be written. Otherwise Python fails at its exit."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


class _Output(io.FileIO):
    """Standard output whose failures are OutputErrors."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError as error:
            reason = "is closed" if error.errno == errno.EBADF else error.strerror or str(error)
            raise OutputError(reason, pipe_closed=error.errno == errno.EPIPE) from None


class _Errors(io.FileIO):
    """Standard error, whose writes never fail."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError:
            return len(content)


def _text(file: io.FileIO, before: Any) -> io.TextIOWrapper:
    """Return a text stream with the encoding of the stream that it replaces."""
    encoding, errors = getattr(before, "encoding", "utf-8"), getattr(before, "errors", "backslashreplace")
    lines = isinstance(file, _Errors) or file.isatty()
    return io.TextIOWrapper(io.BufferedWriter(file), encoding=encoding, errors=errors, line_buffering=lines)


def span(seconds: float) -> str:
    """Return a duration such as "45 s", "12 min" or "3 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
