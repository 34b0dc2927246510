"""What notebooks show: values as tables, and outputs that change. IPython is used where it runs, and never needed."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, TypeVar
from uuid import uuid4

T = TypeVar("T")

DELAY_SECONDS, PAUSE_SECONDS = 2.0, 0.5
"""Seconds before a progress bar appears, and between changes of an output."""


def as_table(header: Sequence[str], rows: Iterable[Sequence[object]], text: str = "", notes: Iterable[str] = ()) -> str:
    """Return HTML: a text, a table if there are rows, and notes, all escaped."""
    head, *lines = (f"<tr>{''.join(map(_cell, row))}</tr>" for row in (header, *rows))
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    table = f"<table><thead>{head}</thead>{''.join(lines)}</table>" if lines else ""
    return (f'<p dir="auto"><strong>{escape(text)}</strong></p>' if text else "") + table + below


def _cell(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else escape(str(value))
    return f'<td dir="auto" style="text-align:start">{text}</td>'


class LiveOutput:
    """One output of a notebook's cell, which `show` replaces. Outside notebooks it shows nothing."""

    def __init__(self) -> None:
        shell: Any = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
        self._active = hasattr(shell, "kernel")  # not in IPython on a terminal
        self._shell, self._id, self._shown, self._next = shell, uuid4().hex, False, 0.0

    def is_due(self, *, last: bool = False) -> bool:
        """Return whether to show something now: the last change is a while ago, or `last`: this is the last one."""
        return self._active and (last or time.monotonic() >= self._next)

    def show(self, html: str, text: str) -> None:
        """Replace what is shown; call only if `is_due`.  text: for what cannot show HTML."""
        values = {"text/html": html, "text/plain": text}
        self._shell.display_pub.publish(values, transient={"display_id": self._id}, update=self._shown)
        self._shown, self._next = True, time.monotonic() + PAUSE_SECONDS


def with_bar(items: Iterable[T], what: str, *, total: int) -> Iterator[T]:
    """Yield the items; in a notebook, if it takes over two seconds, show a bar of those that are done.

    what: such as "translated".  total: the number of items.
    """
    output, begun = LiveOutput(), time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        seconds = time.monotonic() - begun
        if seconds > DELAY_SECONDS and output.is_due(last=done == total):
            rate = done / seconds
            text = f"{what}: {done:,} of {total:,}, {rate:,.1f} a second, {(total - done) / rate:,.0f} s left"
            output.show(f'<progress value="{done}" max="{total}"></progress> {escape(text)}', text)
