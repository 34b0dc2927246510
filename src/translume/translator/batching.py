"""Many texts in bounded memory: windows of lines in their order, batches of like lengths inside a window."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from translume.errors import TranslumeError

WINDOW_LINES = 4096
"""Most lines that are read before the first of them is given back."""
WINDOW_CHARACTERS = 2_000_000
"""Most characters in a window, unless a single line has more."""
SHORTEST = 16
"""Tokens that a shorter text counts for in a search: the logits of thousands of single words would take gigabytes."""
WIDE = 2
"""Hypotheses per sentence up to which a batch of a search may be full; with more of them it is that much smaller.

Some hundred rows keep a core busy; what more of them remember is read from memory, not from the cache.
"""

T = TypeVar("T")


def windows(
    items: Iterable[tuple[T, int]], *, lines: int = WINDOW_LINES, characters: int = WINDOW_CHARACTERS
) -> Iterator[list[T]]:
    """Lists of consecutive items, which come with their sizes in characters.

    An error that the items end in, such as a line that is not UTF-8, comes after the list of those before it.
    """
    window: list[T] = []
    total, broken = 0, None
    try:
        for item, size in items:
            if window and (len(window) == lines or total + size > characters):
                yield window
                window, total = [], 0
            window.append(item)
            total += size
    except TranslumeError as error:
        broken = error
    if window:
        yield window
    if broken is not None:
        raise broken


def batches(lengths: Sequence[int], max_tokens: int, *, shortest: int = 1) -> Iterator[list[int]]:
    """Positions in `lengths`, each once, the longest first, in batches of at most `max_tokens` tokens, padding counted.

    A text of less than `shortest` tokens counts for that many. A single one may be longer than the budget and then
    stands alone.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * max(lengths[batch[0]], shortest) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
