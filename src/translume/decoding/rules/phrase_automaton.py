"""Phrases as words, recognised byte by byte, whichever tokens spell them.

A phrase stands as words where no word's character stands before its first, if that is one itself, nor after its last.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

WHITE: Final = frozenset(b" \t\n\v\f\r")
SPACES: Final = 4
"""Most white space between two words of a phrase: more than that parts them."""
BEGIN: Final = 256
"""The symbol before a text's first byte."""
START: Final = 0
HIT: Final = 1
"""The state in which a phrase was said; no byte leads out of it."""
MIDDLE: Final = 2
"""The state somewhere in a text, perhaps within a character, where no phrase is being said."""

Tracker = bytes | bool | None
"""What stands before the next byte: a word's character (True), another or none (False), or the first bytes of one.

None: something that was not read, and counts as a word's."""
Active = frozenset[tuple[int, int]]
"""Nodes of phrases that are being said, each with the white space read there."""
State = tuple[Tracker, Active, bool]
"""The last: whether a phrase is over if no word's character follows."""


class PhraseAutomaton:
    """Where each byte leads, over states that tell which phrases are being said.

    table: [states, 257] int32, the state after each byte, and after `BEGIN`.  ends: [states], True where the text may
    not stop: a phrase has just been said.  window: bytes of a text's end that decide its state.
    Characters above U+07FF that `letters` does not name are taken for no word's: a phrase beside them is recognised.
    """

    def __init__(self, phrases: Sequence[str], word: Callable[[str], bool], letters: Iterable[str] = ()) -> None:
        """phrases: words parted by single spaces.  word: whether a character is part of words."""
        known = {each for each in {*letters, *"".join(phrases)} if not each.isascii() and word(each)}
        known |= {chr(code) for code in range(0x80, 0x800) if word(chr(code))}
        self._ascii = [word(chr(code)) for code in range(128)]
        self._known = {each.encode() for each in known}
        self._partial = {each[:length] for each in self._known for length in range(1, len(each))}
        # Nodes 0 and 1: where phrases begin that want no word's character before them, and the others.
        self._children: list[dict[int, int]] = [{}, {}]
        self._over: list[bool | None] = [None, None]  # whether a word's character may not follow; None: not over
        for phrase in phrases:
            self._add(phrase, word)
        self.window = max(len(each.encode()) + (SPACES - 1) * each.count(" ") for each in phrases) + 4
        nothing: Active = frozenset()
        self._numbers: dict[State | None, int] = {
            (False, nothing, False): START,
            None: HIT,
            (None, nothing, False): MIDDLE,
        }
        self._rows: dict[State, NDArray[np.int32]] = {}
        self.table = self._table()
        self.ends = np.array([state is None or state[2] for state in self._numbers])

    def _add(self, phrase: str, word: Callable[[str], bool]) -> None:
        node = 0 if word(phrase[0]) else 1
        for byte in phrase.encode():
            if byte not in self._children[node]:
                self._children[node][byte] = len(self._children)
                self._children.append({})
                self._over.append(None)
            node = self._children[node][byte]
        self._over[node] = word(phrase[-1])

    def _table(self) -> NDArray[np.int32]:
        """[states, 257], of all states that can be reached; each row once."""
        rows: list[NDArray[np.int32]] = []
        while len(rows) < len(self._numbers):
            for state in list(self._numbers)[len(rows) :]:
                row = np.full(256, HIT, dtype=np.int32) if state is None else self._row(state)
                rows.append(np.append(row, np.int32(START)))
        return np.stack(rows)

    def _row(self, state: State) -> NDArray[np.int32]:
        """[256], the number of the state after each byte."""
        if state in self._rows:
            return self._rows[state]
        tracker, active, pending = state
        if active:
            # Most bytes end what is being said: only those that go on with it lead elsewhere than without it.
            row = self._row((tracker, frozenset(), pending)).copy()
            going = {byte for node, spaces in active for byte in self._expected(node, spaces)}
        else:
            row, going = np.empty(256, dtype=np.int32), set(range(256))
        for byte in going:
            after = self._after(state, byte)
            row[byte] = self._numbers.setdefault(after, len(self._numbers))
        self._rows[state] = row
        return row

    def _expected(self, node: int, spaces: int) -> Iterable[int]:
        children = self._children[node]
        more = 32 in children or 0 < spaces < SPACES
        return WHITE | children.keys() if more else children.keys()

    def _after(self, state: State, byte: int) -> State | None:
        """The state after one more byte; None if a phrase was said by then."""
        tracker, active, pending = state
        after: Tracker
        if tracker is None and 0x80 <= byte < 0xC0:  # goes on with a character whose first byte was not read
            return state
        if isinstance(tracker, bytes) and tracker + bytes([byte]) in self._known:
            after, begins = True, None
        elif isinstance(tracker, bytes) and tracker + bytes([byte]) in self._partial:
            after, begins = tracker + bytes([byte]), None
        else:
            before = tracker is True or tracker is None  # a broken character is no word's
            if pending and isinstance(tracker, bytes):
                return None
            after = self._ascii[byte] if byte < 128 else (bytes([byte]) if bytes([byte]) in self._partial else False)
            begins = (1,) if before else (0, 1)
        if pending and after is False:
            return None
        active = active | {(node, 0) for node in begins or ()}
        found = frozenset(each for node, spaces in active for each in self._next(node, spaces, byte))
        over = {self._over[node] for node, _ in found}
        if False in over:
            return None
        still = pending and after is not True
        return after, found, still or True in over

    def _next(self, node: int, spaces: int, byte: int) -> Iterable[tuple[int, int]]:
        if byte in WHITE and 0 < spaces < SPACES:
            yield node, spaces + 1
        child = self._children[node].get(32 if byte in WHITE else byte)
        if child is not None:
            yield child, 1 if byte in WHITE else 0
