"""Rules over the text that tokens spell: banned phrases and a text prefix, independent of the tokenization.

A phrase is matched as words: no word character may stand before its first character, if that is a word character, nor
after its last.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from translume.belief import Bias
from translume.decoding.rules import RuleContext, prefix_too_long
from translume.lazy import Tensor, torch

WHITE: Final = list(b" \t\n\v\f\r")
SPACES: Final = 4
"""Maximum white space between two words of a phrase; with more, the phrase does not match."""
START: Final = 0
"""The state at the beginning of a text."""
HIT: Final = 1
"""The state after a phrase has been matched; no byte leads out of it."""
MIDDLE: Final = 2
"""The state somewhere in a text, possibly within a character, with no phrase begun."""

NONE: Final = -1
"""No trie node: no phrase has begun."""

Tracker = bytes | bool | None
"""What precedes the next byte: a word character (True), another or none (False), or the first bytes of a character.

None: text outside the window, which counts as a word character."""
State = tuple[Tracker, int, int, bool]
"""What precedes; the node of the longest phrase begun, or `NONE`; the amount of white space read at that node; whether
a phrase is complete unless a word character follows."""


class PhraseAutomaton:
    """A deterministic automaton over bytes that recognises phrases as words (Aho and Corasick 1975).

    The longest phrase begun determines the shorter ones, so the number of states is linear in the size of the phrases.

    table: [states, 256] int32, the state after each byte.  ends: [states], True where the text may not end because a
    phrase is complete.  window: number of bytes at a text's end that determine its state.
    Characters above U+07FF that are not in `letters` do not count as word characters: phrases beside them match.
    """

    def __init__(self, phrases: Sequence[str], word: Callable[[str], bool], letters: Iterable[str] = ()) -> None:
        """phrases: words separated by single spaces.  word: whether a character is a word character."""
        known = {each for each in {*letters, *"".join(phrases)} if not each.isascii() and word(each)}
        known |= {chr(code) for code in range(0x80, 0x800) if word(chr(code))}
        self._ascii = [word(chr(code)) for code in range(128)]
        self._known = {each.encode() for each in known}
        self._partial = {each[:length] for each in self._known for length in range(1, len(each))}
        self._reads: dict[Tracker, list[tuple[Tracker, tuple[int, ...]]]] = {}
        # Two tries, with roots 0 and 1: phrases that begin with a word character, and the others.
        self._children: list[dict[int, int]] = [{}, {}]
        # Whether a phrase ends at a node, or at the node of a shorter phrase begun: one that a word character may
        # follow, and one that it may not.
        self._complete, self._pending = [False, False], [False, False]
        for phrase in phrases:
            self._add(phrase, word)
        self._trackers: list[Tracker] = [False] * len(self._children)
        self._shorter = [NONE] * len(self._children)  # the node of the next longest phrase begun
        self.window = max(len(each.encode()) + (SPACES - 1) * each.count(" ") for each in phrases) + 4
        self._states: list[State | None] = [(False, NONE, 0, False), None, (None, NONE, 0, False)]
        self._numbers = {state: number for number, state in enumerate(self._states)}  # START, HIT, MIDDLE
        self._rows: dict[tuple[Tracker, int, int], NDArray[np.int32]] = {}
        self.table = self._table()
        self.ends = np.array([state is None or state[3] for state in self._states])

    def _add(self, phrase: str, word: Callable[[str], bool]) -> None:
        node = 0 if word(phrase[0]) else 1
        for byte in phrase.encode():
            if byte not in self._children[node]:
                self._children[node][byte] = len(self._children)
                self._children.append({})
                self._complete.append(False)
                self._pending.append(False)
            node = self._children[node][byte]
        (self._pending if word(phrase[-1]) else self._complete)[node] = True

    def _table(self) -> NDArray[np.int32]:
        """Return [states, 256], one row for each state."""
        for node, white in list(self._linked()):
            tracker, shorter, children = self._trackers[node], self._shorter[node], self._children[node]
            for spaces in range(1, SPACES + 1) if white else (0,):
                # Bytes that do not continue the longest phrase continue a shorter one, whose row is known, or none.
                same = self._idle_row(tracker) if shorter == NONE else self._rows[tracker, shorter, spaces]
                row = self._rows[tracker, node, spaces] = same.copy()
                if 0 < spaces < SPACES:
                    row[WHITE] = self._number((tracker, node, spaces + 1, False))
                for byte, child in children.items():
                    row[WHITE if byte == 32 else byte] = self._begun(child, int(byte == 32))
        table: list[NDArray[np.int32]] = []
        for state in self._states:  # rows of idle states add states
            if state is None:
                table.append(np.full(256, HIT, dtype=np.int32))
                continue
            tracker, node, spaces, pending = state
            row = self._idle_row(tracker) if node == NONE else self._rows[tracker, node, spaces]
            table.append(self._pending_row(tracker, row) if pending else row)
        return np.stack(table)

    def _linked(self) -> Iterator[tuple[int, bool]]:
        """Yield the nodes by depth, each with whether its last byte is white space, after linking it to others."""
        queue = deque((root, byte, child) for root in (1, 0) for byte, child in self._children[root].items())
        while queue:
            parent, byte, node = queue.popleft()
            tracker = self._trackers[parent]
            self._trackers[node], begins = self._read(tracker)[byte]
            below = self._shorter[parent]
            while below != NONE and byte not in self._children[below]:
                below = self._shorter[below]
            # A phrase that begins with a word character begins only where another one may begin, too.
            roots = (1,) * (parent == 0) if parent < 2 else begins if below == NONE else (below,)
            self._shorter[node] = shorter = self._child(roots, byte)
            if shorter != NONE:
                self._complete[node] |= self._complete[shorter]
                self._pending[node] |= self._pending[shorter]
            queue.extend((node, each, child) for each, child in self._children[node].items())
            yield node, byte == 32

    def _child(self, nodes: Iterable[int], byte: int) -> int:
        """Return the child of the first node that has one for a byte, or `NONE`."""
        return next((self._children[node][byte] for node in nodes if byte in self._children[node]), NONE)

    def _number(self, state: State) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def _begun(self, node: int, spaces: int) -> int:
        """Return the number of the state in which a node is that of the longest phrase begun."""
        return HIT if self._complete[node] else self._number((self._trackers[node], node, spaces, self._pending[node]))

    def _idle_row(self, tracker: Tracker) -> NDArray[np.int32]:
        """Return [256], the number of the state after each byte where no phrase has begun."""
        if (tracker, NONE, 0) not in self._rows:
            row = self._rows[tracker, NONE, 0] = np.full(256, START, dtype=np.int32)
            for byte, (after, begins) in enumerate(self._read(tracker)):
                node = self._child(begins, byte)
                row[byte] = self._number((after, NONE, 0, False)) if node == NONE else self._begun(node, 0)
        return self._rows[tracker, NONE, 0]

    def _pending_row(self, tracker: Tracker, row: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the row of a state where a phrase is complete unless a word character follows.

        row: of the same state otherwise.
        """
        row = row.copy()
        for byte, (after, begins) in enumerate(self._read(tracker)):
            if after is False or (isinstance(tracker, bytes) and begins):  # an incomplete character
                row[byte] = HIT
            elif isinstance(after, bytes) and (state := self._states[row[byte]]) is not None:
                row[byte] = self._number((*state[:3], True))
        return row

    def _read(self, tracker: Tracker) -> list[tuple[Tracker, tuple[int, ...]]]:
        """Return for each byte what precedes the next one, and the roots of the phrases that may begin with it."""
        if tracker not in self._reads:
            self._reads[tracker] = [self._read_byte(tracker, byte) for byte in range(256)]
        return self._reads[tracker]

    def _read_byte(self, tracker: Tracker, byte: int) -> tuple[Tracker, tuple[int, ...]]:
        if tracker is None and 0x80 <= byte < 0xC0:  # the rest of a character that begins outside the window
            return None, ()
        if isinstance(tracker, bytes) and (character := tracker + bytes([byte])) in self._known:
            return True, ()
        if isinstance(tracker, bytes) and character in self._partial:
            return character, ()
        after = self._ascii[byte] if byte < 128 else (bytes([byte]) if bytes([byte]) in self._partial else False)
        return after, (1,) if tracker is True or tracker is None else (0, 1)


class PhraseTables(NamedTuple):
    """The automaton of `BannedPhrases` and the bytes of tokens, for compiled searches.

    states: [states, 256] int32.  ends: [states].  window: see `PhraseAutomaton`.
    spelled: uint8, the bytes of all tokens, one after the other.  begins: [V + 1], where those of each begin.
    """

    states: NDArray[np.int32]
    ends: NDArray[np.bool_]
    window: int
    spelled: NDArray[np.uint8]
    begins: NDArray[np.int64]


class PrefixTables(NamedTuple):
    """The tokens that `TextPrefix` allows, for compiled searches.

    which: [B], the sentences it applies to.  lengths: [V], the number of bytes that tokens spell.
    ids, left: tokens and the fewest tokens that spell the rest after each; begins: [bytes + 1], the first of them for
    each number of bytes that a target has spelled. Ids are in ascending order for each.
    """

    which: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    ids: NDArray[np.int64]
    left: NDArray[np.int64]
    begins: NDArray[np.int64]


class BannedPhrases:
    """Forbids tokens with which the text would contain, or end with, one of the phrases as words.

    The text is matched, so the ban holds for every tokenization. A longer word that begins with a phrase, such as
    "hundert" with "hund", can be generated only by a token that extends beyond the end of the phrase.
    """

    def __init__(self, spelled: Sequence[bytes], phrases: Sequence[str], word: Callable[[str], bool]) -> None:
        """spelled: the bytes that each id adds to a text.  phrases: at least one; words separated by single spaces.

        word: whether a character is a word character.
        """
        letters = set("".join(each.decode(errors="ignore") for each in spelled))
        automaton = PhraseAutomaton(phrases, word, letters)
        self._table, self._ends, self._window = automaton.table, automaton.ends, automaton.window
        lengths = np.array([len(each) for each in spelled])
        self._order = np.argsort(-lengths, kind="stable")  # longest first
        self._longer = (lengths[:, None] > np.arange(max(lengths.max(), 1))).sum(0)  # number of tokens with a byte j
        matrix = np.zeros((len(spelled), max(lengths.max(), 1)), dtype=np.int64)
        for id_, each in enumerate(spelled):
            matrix[id_, : len(each)] = np.frombuffer(each, dtype=np.uint8)
        self._sorted = np.ascontiguousarray(matrix[self._order].T)
        self._spelled = spelled
        self._recent: dict[tuple[int, ...], int] = {}  # the states of the last call; replaced, so threads may share it
        self._forbidden: dict[int, Tensor] = {}

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        states = torch.tensor(self._states(prefix[:, 1:].tolist()), device=prefix.device)
        rows, ids = [], []
        for state in sorted(set(states.tolist())):  # few: most texts contain no part of a phrase
            forbidden = self._forbidden_after(state).to(prefix.device)
            if forbidden.numel():
                here = (states == state).nonzero()[:, 0]
                rows.append(here.repeat_interleave(forbidden.numel()))
                ids.append(forbidden.repeat(here.numel()))
        return Bias.forbid(torch.cat(rows), torch.cat(ids)) if rows else None

    @cached_property
    def tables(self) -> PhraseTables:
        """The automaton and the bytes of tokens."""
        spelled = np.frombuffer(b"".join(self._spelled) or b"\0", np.uint8)
        begins = np.array([0, *accumulate(map(len, self._spelled))])
        return PhraseTables(np.ascontiguousarray(self._table), self._ends, self._window, spelled, begins)

    def _states(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Return the state after the text of each row of tokens.

        A row that continues one of the last call reads only its last token.
        """
        before, states = self._recent, {}
        for row in map(tuple, rows):
            state = before.get(row[:-1])
            state = self._read(START, row) if state is None else self._read(state, row[-1:])
            # A forced prefix may contain a phrase, which no longer counts at a distance.
            states[row] = self._read_end(row) if state == HIT else state
        self._recent = states
        return [states[tuple(row)] for row in rows]

    def _read(self, state: int, tokens: Iterable[int]) -> int:
        for token in tokens:
            for byte in self._spelled[token]:
                state = int(self._table[state, byte])
        return state

    def _read_end(self, tokens: Sequence[int]) -> int:
        """Return the state after the last bytes of a text, those that determine it without an earlier phrase."""
        text = b"".join(self._spelled[token] for token in tokens[-self._window :])
        whole = len(text) <= self._window and len(tokens) <= self._window
        state = START if whole else MIDDLE
        for byte in text[-self._window :]:
            state = int(self._table[state, byte])
        return state

    def _forbidden_after(self, state: int) -> Tensor:
        """Return the ids that may not follow in a state; computed when the state first occurs."""
        if state not in self._forbidden:
            reached = np.full(len(self._order), state, dtype=np.int32)
            for symbols, longer in zip(self._sorted, self._longer, strict=True):
                reached[:longer] = self._table[reached[:longer], symbols[:longer]]
            # Tokens that spell nothing, such as eos, do not change the state and are always allowed.
            which = self._ends[reached] & (np.arange(len(reached)) < self._longer[0])
            self._forbidden[state] = torch.from_numpy(np.sort(self._order[which]))
        return self._forbidden[state]


class Spellings:
    """Looks up tokens by the bytes they spell; tokens that spell nothing, or are not allowed, are left out."""

    def __init__(self, spelled: Sequence[bytes]) -> None:
        """spelled: the bytes of each id; empty to leave the token out."""
        self.lengths = tuple(map(len, spelled))
        self.longest = max(self.lengths, default=0)
        pairs = sorted((each, id_) for id_, each in enumerate(spelled) if each)
        self._sorted = [each for each, _ in pairs]
        self._ids = [id_ for _, id_ in pairs]
        self._of: dict[bytes, list[int]] = {}
        for each, id_ in pairs:
            self._of.setdefault(each, []).append(id_)

    def beginning_with(self, text: bytes) -> list[int]:
        """Return the tokens whose bytes begin with `text`, which must not be empty."""
        if len(text) > self.longest:
            return []
        first = bisect_left(self._sorted, text)
        # UTF-8 has no byte 0xFF, so this sorts after everything that begins with the text.
        return self._ids[first : bisect_left(self._sorted, text + b"\xff", lo=first)]

    def shorter_than(self, text: bytes) -> Iterator[tuple[int, list[int]]]:
        """Yield (length, tokens) for each proper prefix of `text` that tokens spell exactly."""
        for length in range(1, min(len(text), self.longest + 1)):
            if (tokens := self._of.get(text[:length])) is not None:
                yield length, tokens

    def reach(self, text: bytes) -> int:
        """Return how many bytes of `text` a sequence of tokens can spell; `len(text)` if it can be spelled."""
        reached = {0}
        for place in range(len(text)):
            if place in reached:
                rest = self.rest(text, place)
                if self.beginning_with(rest):
                    return len(text)
                reached.update(place + length for length, _ in self.shorter_than(rest))
        return max(reached)

    def rest(self, text: bytes, place: int) -> bytes:
        """Return the rest of `text` from `place` on, as far as a token can match it: up to one byte over the longest.

        A copy of the whole rest for each place would take quadratic time.
        """
        return text[place : place + self.longest + 1]


class TextPrefix:
    """Forces targets to begin with a text; the model chooses the tokens, and the last one may spell more than the text.

    what: the spellings and the text.
    Tokens after which the rest would not fit the limit are forbidden. The prefix is part of the hypothesis: it counts
    towards its length, its log_prob and its limit. Raises SearchError in the first step if a limit is too small.
    """

    def __init__(self, spellings: Spellings, text: bytes, which: Sequence[bool]) -> None:
        """text: UTF-8 as tokens spell it, a marker of the first word included.  which: the sentences it applies to.

        Raises ValueError if no tokens spell the text.
        """
        self.what = spellings, text
        needs = _needs(spellings, text)
        if needs[0] is None:
            raise ValueError(f"no tokens spell {text!r}")
        self._fewest, self._length = needs[0], len(text)
        choices = _choices(spellings, text, needs)
        self.tables = PrefixTables(np.array(which, np.bool_), np.array(spellings.lengths), *choices)
        """The tokens that may follow."""
        self._tensors: list[Tensor] = []

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step >= self._length:  # every token spells at least one byte
            return None
        if not self._tensors or self._tensors[0].device != prefix.device:
            self._tensors = [torch.from_numpy(array).to(prefix.device) for array in self.tables]
        which, lengths, ids, left, starts = self._tensors
        forced = which[context.sentences]  # [N]
        if context.step == 0:
            self._check(context, forced)
        spelled = lengths[prefix[:, 1:]].sum(1)
        rows = (forced & (spelled < self._length)).nonzero()[:, 0]
        if rows.numel() == 0:
            return None
        places = spelled[rows]
        first, counts = starts[places], starts[places + 1] - starts[places]
        owners = rows.repeat_interleave(counts)
        # The choices at a place are consecutive: first, first + 1, … for each row.
        shift = first - (counts.cumsum(0) - counts)
        choice = torch.arange(owners.numel(), device=owners.device) + shift.repeat_interleave(counts)
        fits = context.step + 1 + left[choice] <= context.limits[owners]
        allowed = torch.ones(prefix.size(0), context.size, dtype=torch.bool, device=prefix.device)
        allowed[rows] = False
        allowed[owners[fits], ids[choice[fits]]] = True
        return Bias.only(allowed)

    def fits(self, limits: ArrayLike) -> bool:
        """Return whether the text fits the limits [B]; if not, the first call raises SearchError."""
        which, most = self.tables.which, np.asarray(limits)
        return which.size == most.size and not (which & (most < self._fewest)).any()

    def _check(self, context: RuleContext, forced: Tensor) -> None:
        short = forced & (context.limits < self._fewest)
        if bool(short.any()):
            row = int(short.nonzero()[0, 0])
            raise prefix_too_long(self._fewest, int(context.limits[row]), int(context.sentences[row]))


def _needs(spellings: Spellings, text: bytes) -> list[int | None]:
    """Return the minimum number of tokens that spell the rest of `text` from each byte on; None if it is impossible."""
    needs: list[int | None] = [None] * len(text) + [0]
    for place in reversed(range(len(text))):
        rest = spellings.rest(text, place)
        if spellings.beginning_with(rest):
            needs[place] = 1
            continue
        after = [needs[place + length] for length, _ in spellings.shorter_than(rest)]
        needs[place] = min((1 + need for need in after if need is not None), default=None)
    return needs


def _choices(spellings: Spellings, text: bytes, needs: Sequence[int | None]) -> list[NDArray[np.int64]]:
    """Return the tokens allowed at all places, the fewest tokens needed after each, and each place's first index.

    The tokens of a place are in ascending order.
    """
    ids: list[int] = []
    rest: list[int] = []
    starts = [0]
    for place in range(len(text)):
        rest_of_text = spellings.rest(text, place)
        last = spellings.beginning_with(rest_of_text)
        ids += last
        rest += [0] * len(last)
        for length, tokens in spellings.shorter_than(rest_of_text):
            need = needs[place + length]
            if need is not None:
                ids += tokens
                rest += [need] * len(tokens)
        begin = starts[-1]
        order = sorted(range(begin, len(ids)), key=ids.__getitem__)
        ids[begin:], rest[begin:] = [ids[each] for each in order], [rest[each] for each in order]
        starts.append(len(ids))
    return [np.array(each, np.int64) for each in (ids, rest, starts)]
