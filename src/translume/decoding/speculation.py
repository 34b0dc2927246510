"""Several tokens a model call: a draft is read at once, and what the model itself would not have said is taken back.

Draft and verify (Stern et al. 2018, section 3; Leviathan et al. 2023, for a target that is always the likeliest). What
is drafted changes how often the model is called and nothing else: the one decoding loop still asks for one belief
after another, with its own strategy and rules, and chooses every token itself. Where it chose what was drafted, the
belief about the token after it is there already.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.decoding.step import SearchState

MOST_ROWS = 4
"""Sentences at a time that are drafted for; of more, one is soon wrong, and a block costs what it has rows."""


class Rewindable(SearchState, Protocol):
    """A state that can go back."""

    def rewind(self, length: int) -> Self:
        """The state after the first `length` tokens, bos counted; the one it was made from becomes stale."""


R = TypeVar("R", bound=Rewindable)


class BlockStep(Protocol[R]):
    """A step that reads several tokens at once."""

    def __call__(self, prefix: Tensor, state: R, count: int) -> tuple[Iterator[NextToken], R]:
        """The beliefs about what follows each of the last `count` tokens of prefix [N, 1 + t], first to last.

        And the state that has read it. A belief may be made when it is asked for. Before, the state has read all but
        the last `count` or more.
        """


@runtime_checkable
class BlockStepper(Protocol):
    """What translates and reads several tokens at once: the plain model and the engine do."""

    def steps(self, prefix: Tensor, state: Any, count: int) -> tuple[Iterator[NextToken], Any]:
        """A `BlockStep` over its states."""


class Drafter(Protocol):
    """Guesses at what comes next; it may be wrong, but should be quick."""

    def propose(self, prefix: Tensor, sentences: Tensor, most: int) -> Tensor:
        """[N, m], m at most `most`: ids that may follow prefix [N, 1 + t], which begins with bos.

        sentences: [N], the number of each row's sentence.  A row's draft ends before its first −1, or its first eos.
        """


@dataclass(frozen=True, slots=True)
class Drafted(Generic[R]):
    """A state, what it has read ahead, and what was believed there. Only the newest may be used.

    inner: has read `length` tokens of the prefix, bos counted, and then `ahead` [N, m].
    beliefs: the m after each of these; none of them was asked for yet.
    sentences: [N].  limits: [N], most tokens of each row's sentence.
    """

    inner: R
    sentences: Tensor
    limits: Tensor
    ahead: Tensor
    beliefs: Iterator[NextToken]
    length: int = 0

    def back(self) -> R:
        """The inner state when it has forgotten what it read ahead."""
        return self.inner.rewind(self.length) if self.ahead.size(1) else self.inner

    def select(self, rows: Tensor) -> "Drafted[R]":
        """Rows [M] of this one, without what was read ahead; this one becomes stale."""
        return Drafted(
            inner=self.back().select(rows),
            sentences=self.sentences[rows],
            limits=self.limits[rows],
            ahead=self.ahead.new_empty(rows.numel(), 0),
            beliefs=iter(()),
            length=self.length,
        )


class Speculation(Generic[R]):
    """A step for the loop made of a block step and a drafter; for one search.

    Sentences go together: a block is as long as the shortest draft of any of them, and is left where one of them goes
    another way. So none waits for another, and no more calls are made than without drafts.

    calls: [B], how often each sentence's model was called so far.
    """

    def __init__(self, step: BlockStep[R], drafter: Drafter, *, eos: int, size: int, length: int) -> None:
        """size: V; a drafted id that is none ends its draft.  length: most tokens of a draft."""
        self._step, self._drafter, self._eos, self._size, self._length = step, drafter, eos, size, length
        self.calls = torch.zeros(0, dtype=torch.long)

    def start(self, state: R, limits: Tensor) -> Drafted[R]:
        """The state before the first token.  limits: [B], those of the search: nothing is read beyond them."""
        self.calls = torch.zeros_like(limits)
        none = limits.new_empty(limits.numel(), 0)
        return Drafted(state, torch.arange(limits.numel(), device=limits.device), limits, none, iter(()))

    def __call__(self, prefix: Tensor, state: Drafted[R]) -> tuple[NextToken, Drafted[R]]:
        """The belief about the token after prefix [N, 1 + t], and the state that has read it."""
        length = prefix.size(1)
        if length == state.length + 1 and state.ahead.size(1) and torch.equal(prefix[:, -1], state.ahead[:, 0]):
            return next(state.beliefs), replace(state, length=length, ahead=state.ahead[:, 1:])
        drafts = self._drafts(prefix, state)
        beliefs, inner = self._step(torch.cat([prefix, drafts], 1), state.back(), 1 + drafts.size(1))
        self.calls[state.sentences] += 1
        belief = next(beliefs)
        return belief, replace(state, inner=inner, ahead=drafts, beliefs=beliefs, length=length)

    def _drafts(self, prefix: Tensor, state: Drafted[R]) -> Tensor:
        """[N, m], of ids: as far as there is a draft for every row, and no further than a limit."""
        # The belief after the last token of a draft must still be about a token within the limit.
        most = min(self._length, int(state.limits.min()) - prefix.size(1))
        if most < 1 or prefix.size(0) > MOST_ROWS:
            return state.ahead[:, :0]
        drafts = self._drafter.propose(prefix, state.sentences, most)[:, :most]
        good = (drafts >= 0) & (drafts < self._size) & (drafts != self._eos)
        return drafts[:, : int(good.all(0).cumprod(0).sum())]
