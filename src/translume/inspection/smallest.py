"""The few of many that have the smallest value, in memory of a few."""

from bisect import bisect_right
from typing import Generic, TypeVar

T = TypeVar("T")


class Smallest(Generic[T]):
    """The `most` entries of the smallest value, smallest first; of equal ones those that came first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: list[float] = []
        self._entries: list[T] = []

    def takes(self, value: float) -> bool:
        """Whether an entry of this value would stay for now."""
        return len(self._values) < self._most or (self._most > 0 and value < self._values[-1])

    def add(self, value: float, entry: T) -> None:
        """Consider an entry."""
        place = bisect_right(self._values, value)
        self._values.insert(place, value)
        self._entries.insert(place, entry)
        del self._values[self._most :], self._entries[self._most :]

    def found(self) -> tuple[T, ...]:
        """Those that stayed."""
        return tuple(self._entries)
