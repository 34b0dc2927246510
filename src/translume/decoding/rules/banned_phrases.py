"""Phrases that are never said, however they are spelled."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from translume.belief import Bias
from translume.decoding.rules.phrase_automaton import BEGIN, MIDDLE, START, PhraseAutomaton
from translume.decoding.rules.rule import RuleContext


class BannedPhrases:
    """Forbids a token with which the text would hold, or end with, one of the phrases as words.

    Whatever tokens spell it: text is matched, not tokens. A longer word that begins with a phrase, such as "hundert"
    with "hund", can be said by a token that goes on beyond the phrase's end, and by no other.
    """

    def __init__(self, spelled: Sequence[bytes], phrases: Sequence[str], word: Callable[[str], bool]) -> None:
        """spelled: the bytes that each id adds to a text.  phrases: at least one; words parted by single spaces.

        word: whether a character is part of words.
        """
        letters = set("".join(each.decode(errors="ignore") for each in spelled))
        automaton = PhraseAutomaton(phrases, word, letters)
        self._table, self._ends, self._window = automaton.table, automaton.ends, automaton.window
        lengths = np.array([len(each) for each in spelled])
        self._order = np.argsort(-lengths, kind="stable")  # longest first
        self._longer = (lengths[:, None] > np.arange(max(lengths.max(), 1))).sum(0)  # how many have a byte j
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
        for state in sorted(set(states.tolist())):  # few: most texts say no part of a phrase
            found = self._forbidden_after(state, prefix.device)
            if found.numel():
                here = (states == state).nonzero()[:, 0]
                rows.append(here.repeat_interleave(found.numel()))
                ids.append(found.repeat(here.numel()))
        return Bias.forbid(torch.cat(rows), torch.cat(ids)) if rows else None

    def _states(self, said: Tensor) -> Tensor:
        """[N], the state after the texts of tokens [N, t]; their last bytes alone decide it."""
        count, window = said.size(0), self._window
        if said.size(1) == 0:
            return torch.full((count,), START, dtype=torch.int32, device=said.device)
        last = said[:, -window:]  # [N, w]
        lengths = self._lengths[last]
        begin = window - lengths.flip(1).cumsum(1).flip(1)  # of each token in the window
        width = int(lengths.max())
        column = begin[..., None] + torch.arange(width, device=said.device)  # [N, w, width]
        inside = (torch.arange(width, device=said.device) < lengths[..., None]) & (column >= 0)
        rows, places, which = inside.nonzero(as_tuple=True)
        text = torch.full((window, count), BEGIN, device=said.device)
        text[column[rows, places, which], rows] = self._bytes[last[rows, places], which]
        state = torch.where((begin[:, 0] >= 0) & (said.size(1) <= window), START, MIDDLE).int()
        for symbols in text:  # byte by byte, as an automaton reads; no more than the window
            state = self._after[state.long(), symbols]
        return state

    def _forbidden_after(self, state: int, device: torch.device) -> Tensor:
        """The ids that may not follow in a state; found when it is first met."""
        if state not in self._forbidden:
            reached = np.full(len(self._order), state, dtype=np.int32)
            for symbols, longer in zip(self._sorted, self._longer, strict=True):
                reached[:longer] = self._table[reached[:longer], symbols[:longer]]
            # A token that spells nothing, as eos, changes nothing, and may follow whatever could be said.
            which = self._ends[reached] & (np.arange(len(reached)) < self._longer[0])
            self._forbidden[state] = torch.from_numpy(np.sort(self._order[which])).to(device)
        return self._forbidden[state]
