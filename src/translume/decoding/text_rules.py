"""Rules over the text that tokens spell: banned phrases and a text prefix, independent of the tokenization.

A phrase is matched as words: no word character may stand before its first character, if that is a word character, nor
after its last.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from translume.belief import Bias
from translume.decoding.rules import RuleContext, prefix_too_long

WHITE: Final = frozenset(b" \t\n\v\f\r")
SPACES: Final = 4
"""Maximum white space between two words of a phrase; with more, the phrase does not match."""
BEGIN: Final = 256
"""The symbol before a text's first byte."""
START: Final = 0
"""The state at the beginning of a text."""
HIT: Final = 1
"""The state after a phrase has been matched; no byte leads out of it."""
MIDDLE: Final = 2
"""The state somewhere in a text, possibly within a character, with no phrase begun."""

Tracker = bytes | bool | None
"""What precedes the next byte: a word character (True), another or none (False), or the first bytes of a character.

None: text outside the window, which counts as a word character."""
Active = frozenset[tuple[int, int]]
"""Trie nodes of the phrases begun, each with the amount of white space read there."""
State = tuple[Tracker, Active, bool]
"""The last element: whether a phrase is complete unless a word character follows."""


class PhraseAutomaton:
    """A deterministic automaton over bytes that recognises phrases as words.

    table: [states, 257] int32, the state after each byte and after `BEGIN`.  ends: [states], True where the text may
    not end because a phrase is complete.  window: number of bytes at a text's end that determine its state.
    Characters above U+07FF that are not in `letters` do not count as word characters: phrases beside them match.
    """

    def __init__(self, phrases: Sequence[str], word: Callable[[str], bool], letters: Iterable[str] = ()) -> None:
        """phrases: words separated by single spaces.  word: whether a character is a word character."""
        known = {each for each in {*letters, *"".join(phrases)} if not each.isascii() and word(each)}
        known |= {chr(code) for code in range(0x80, 0x800) if word(chr(code))}
        self._ascii = [word(chr(code)) for code in range(128)]
        self._known = {each.encode() for each in known}
        self._partial = {each[:length] for each in self._known for length in range(1, len(each))}
        # Two tries, with roots 0 and 1: phrases that begin with a word character, and the others.
        self._children: list[dict[int, int]] = [{}, {}]
        self._over: list[bool | None] = [None, None]  # whether a word character may not follow; None: not a phrase end
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
        """Return [states, 257], one row for each reachable state."""
        rows: list[NDArray[np.int32]] = []
        while len(rows) < len(self._numbers):
            for state in list(self._numbers)[len(rows) :]:
                row = np.full(256, HIT, dtype=np.int32) if state is None else self._row(state)
                rows.append(np.append(row, np.int32(START)))
        return np.stack(rows)

    def _row(self, state: State) -> NDArray[np.int32]:
        """Return [256], the number of the state after each byte."""
        if state in self._rows:
            return self._rows[state]
        tracker, active, pending = state
        if active:
            # Bytes that do not continue a phrase lead to the same state as with no phrase begun.
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
        """Return the state after one more byte; None if a phrase is complete before it."""
        tracker, active, pending = state
        after: Tracker
        if tracker is None and 0x80 <= byte < 0xC0:  # the rest of a character that begins outside the window
            return state
        if isinstance(tracker, bytes) and tracker + bytes([byte]) in self._known:
            after, begins = True, None
        elif isinstance(tracker, bytes) and tracker + bytes([byte]) in self._partial:
            after, begins = tracker + bytes([byte]), None
        else:
            before = tracker is True or tracker is None  # an incomplete character is no word character
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
        self._after = torch.from_numpy(self._table)
        self._bytes, self._lengths = torch.from_numpy(matrix), torch.from_numpy(lengths)
        self._forbidden: dict[int, Tensor] = {}

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if self._bytes.device != prefix.device:
            self._bytes, self._lengths, self._after = (
                each.to(prefix.device) for each in (self._bytes, self._lengths, self._after)
            )
            self._forbidden.clear()
        states = self._states(prefix[:, 1:])
        rows, ids = [], []
        for state in sorted(set(states.tolist())):  # few: most texts contain no part of a phrase
            found = self._forbidden_after(state, prefix.device)
            if found.numel():
                here = (states == state).nonzero()[:, 0]
                rows.append(here.repeat_interleave(found.numel()))
                ids.append(found.repeat(here.numel()))
        return Bias.forbid(torch.cat(rows), torch.cat(ids)) if rows else None

    def _states(self, tokens: Tensor) -> Tensor:
        """Return [N], the state after the texts of tokens [N, t]; only their last bytes are read."""
        count, window = tokens.size(0), self._window
        if tokens.size(1) == 0:
            return torch.full((count,), START, dtype=torch.int32, device=tokens.device)
        last = tokens[:, -window:]  # [N, w]
        lengths = self._lengths[last]
        begin = window - lengths.flip(1).cumsum(1).flip(1)  # of each token in the window
        width = int(lengths.max())
        column = begin[..., None] + torch.arange(width, device=tokens.device)  # [N, w, width]
        inside = (torch.arange(width, device=tokens.device) < lengths[..., None]) & (column >= 0)
        rows, places, which = inside.nonzero(as_tuple=True)
        text = torch.full((window, count), BEGIN, device=tokens.device)
        text[column[rows, places, which], rows] = self._bytes[last[rows, places], which]
        state = torch.where((begin[:, 0] >= 0) & (tokens.size(1) <= window), START, MIDDLE).int()
        for symbols in text:  # byte by byte
            state = self._after[state.long(), symbols]
        return state

    def _forbidden_after(self, state: int, device: torch.device) -> Tensor:
        """Return the ids that may not follow in a state; computed when the state first occurs."""
        if state not in self._forbidden:
            reached = np.full(len(self._order), state, dtype=np.int32)
            for symbols, longer in zip(self._sorted, self._longer, strict=True):
                reached[:longer] = self._table[reached[:longer], symbols[:longer]]
            # Tokens that spell nothing, such as eos, do not change the state and are always allowed.
            which = self._ends[reached] & (np.arange(len(reached)) < self._longer[0])
            self._forbidden[state] = torch.from_numpy(np.sort(self._order[which])).to(device)
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

    def beginning_with(self, text: bytes) -> list[int]:
        """Return the tokens whose bytes begin with `text`, which must not be empty."""
        first = bisect_left(self._sorted, text)
        # UTF-8 has no byte 0xFF, so this sorts after everything that begins with the text.
        return self._ids[first : bisect_left(self._sorted, text + b"\xff", lo=first)]

    def shorter_than(self, text: bytes) -> Iterator[tuple[int, list[int]]]:
        """Yield (length, tokens) for each proper prefix of `text` that tokens spell exactly."""
        for length in range(1, min(len(text), self.longest + 1)):
            begin = text[:length]
            first = bisect_left(self._sorted, begin)
            last = first
            while last < len(self._sorted) and self._sorted[last] == begin:
                last += 1
            if last > first:
                yield length, self._ids[first:last]

    def reach(self, text: bytes) -> int:
        """Return how many bytes of `text` a sequence of tokens can spell; `len(text)` if it can be spelled."""
        reached = {0}
        for place in range(len(text)):
            if place in reached:
                if self.beginning_with(text[place:]):
                    return len(text)
                reached.update(place + length for length, _ in self.shorter_than(text[place:]))
        return max(reached)


class TextPrefix:
    """Forces targets to begin with a text; the model chooses the tokens, and the last one may spell more than the text.

    Tokens after which the rest would not fit the limit are forbidden. The prefix is part of the hypothesis: it counts
    towards its length, its log_prob and its limit. Raises SearchError in the first step if a limit is too small.
    """

    def __init__(self, spellings: Spellings, text: bytes, which: Sequence[bool]) -> None:
        """text: UTF-8 as tokens spell it, a marker of the first word included.  which: the sentences it applies to.

        Raises ValueError if no tokens spell the text.
        """
        needs = _needs(spellings, text)
        if needs[0] is None:
            raise ValueError(f"no tokens spell {text!r}")
        self._fewest, self._length = needs[0], len(text)
        self._which = torch.tensor(which, dtype=torch.bool)
        self._lengths = torch.tensor(spellings.lengths)
        self._ids, self._rest, self._starts = _choices(spellings, text, needs)

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step >= self._length:  # every token spells at least one byte
            return None
        if self._which.device != prefix.device:
            tables = (self._which, self._lengths, self._ids, self._rest, self._starts)
            self._which, self._lengths, self._ids, self._rest, self._starts = (
                each.to(prefix.device) for each in tables
            )
        forced = self._which[context.sentences]  # [N]
        if context.step == 0:
            self._check(context, forced)
        spelled = self._lengths[prefix[:, 1:]].sum(1)
        rows = (forced & (spelled < self._length)).nonzero()[:, 0]
        if rows.numel() == 0:
            return None
        places = spelled[rows]
        first, counts = self._starts[places], self._starts[places + 1] - self._starts[places]
        each = rows.repeat_interleave(counts)
        # The choices at a place are consecutive: first, first + 1, … for each row.
        shift = first - (counts.cumsum(0) - counts)
        choice = torch.arange(each.numel(), device=each.device) + shift.repeat_interleave(counts)
        fits = context.step + 1 + self._rest[choice] <= context.limits[each]
        allowed = torch.ones(prefix.size(0), context.size, dtype=torch.bool, device=prefix.device)
        allowed[rows] = False
        allowed[each[fits], self._ids[choice[fits]]] = True
        return Bias.only(allowed)

    def _check(self, context: RuleContext, forced: Tensor) -> None:
        short = forced & (context.limits < self._fewest)
        if bool(short.any()):
            row = int(short.nonzero()[0, 0])
            raise prefix_too_long(self._fewest, int(context.limits[row]), int(context.sentences[row]))


def _needs(spellings: Spellings, text: bytes) -> list[int | None]:
    """Return the minimum number of tokens that spell the rest of `text` from each byte on; None if it is impossible."""
    needs: list[int | None] = [None] * len(text) + [0]
    for place in reversed(range(len(text))):
        rest = text[place:]
        if spellings.beginning_with(rest):
            needs[place] = 1
            continue
        after = [needs[place + length] for length, _ in spellings.shorter_than(rest)]
        needs[place] = min((1 + need for need in after if need is not None), default=None)
    return needs


def _choices(spellings: Spellings, text: bytes, needs: Sequence[int | None]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens allowed at all places, the fewest tokens needed after each, and each place's first index."""
    ids: list[int] = []
    rest: list[int] = []
    starts = [0]
    for place in range(len(text)):
        last = spellings.beginning_with(text[place:])
        ids += last
        rest += [0] * len(last)
        for length, tokens in spellings.shorter_than(text[place:]):
            need = needs[place + length]
            if need is not None:
                ids += tokens
                rest += [need] * len(tokens)
        starts.append(len(ids))
    return torch.tensor(ids, dtype=torch.long), torch.tensor(rest, dtype=torch.long), torch.tensor(starts)
