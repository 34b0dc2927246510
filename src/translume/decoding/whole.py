"""Searches that a stepper does by itself, from the first token to the last."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from translume.decoding.beam import Hypothesis
from translume.decoding.rules import Rule
from translume.decoding.step import Stepper
from translume.decoding.strategy import Strategy


class WholeSearch(Protocol):
    """A search for B sentences, before its first step or between two."""

    def go_on(self, steps: int) -> bool:
        """Take up to so many steps; whether there are more to take."""

    def found(self) -> list[list[Hypothesis]] | None:
        """What `search` finds, each number bit for bit, once there are no more steps; None: only the loop can say, and
        may have to raise an error."""


@runtime_checkable
class Searcher(Stepper, Protocol):
    """A stepper that does some searches by itself; nobody sees their beams."""

    def whole_search(
        self, state: Any, *, bos: int, eos: int, strategy: Strategy, limits: Tensor, rules: Sequence[Rule]
    ) -> WholeSearch | None:
        """The search that `decode` would begin, with its arguments; None where it is none of those.

        It writes into buffers of its own: the state may be used by the loop afterwards.
        """
