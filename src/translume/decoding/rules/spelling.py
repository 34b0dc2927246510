"""What tokens spell, looked up by text: which of them can go on with a text that is given."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Spellings:
    """The bytes that each token adds to a text; tokens that add none, or may not be said, are left out."""

    def __init__(self, spelled: Sequence[bytes]) -> None:
        """spelled: of each id, empty where the token takes no part."""
        self.lengths = tuple(map(len, spelled))
        self.longest = max(self.lengths, default=0)
        pairs = sorted((each, id_) for id_, each in enumerate(spelled) if each)
        self._sorted = [each for each, _ in pairs]
        self._ids = [id_ for _, id_ in pairs]

    def beginning_with(self, text: bytes) -> list[int]:
        """The tokens that spell `text` and perhaps more; text: not empty."""
        first = bisect_left(self._sorted, text)
        # No UTF-8 has a byte 0xFF, so it follows all that begins with the text.
        return self._ids[first : bisect_left(self._sorted, text + b"\xff", lo=first)]

    def shorter_than(self, text: bytes) -> Iterator[tuple[int, list[int]]]:
        """(length, tokens) for each beginning of `text`, not all of it, that tokens spell."""
        for length in range(1, min(len(text), self.longest + 1)):
            begin = text[:length]
            first = bisect_left(self._sorted, begin)
            last = first
            while last < len(self._sorted) and self._sorted[last] == begin:
                last += 1
            if last > first:
                yield length, self._ids[first:last]

    def reach(self, text: bytes) -> int:
        """How many bytes of `text` tokens can spell one after another: all of them if its end can be reached."""
        reached = {0}
        for place in range(len(text)):
            if place in reached:
                if self.beginning_with(text[place:]):
                    return len(text)
                reached.update(place + length for length, _ in self.shorter_than(text[place:]))
        return max(reached)
