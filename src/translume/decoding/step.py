"""What a search asks of a model: a step, and a state that can be reordered."""

from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from torch import Tensor

from translume.belief import NextToken


class SearchState(Protocol):
    """What a step remembers of N rows; a value: selecting makes another one."""

    def select(self, rows: Tensor) -> Self:
        """The state of rows `rows` [M] of this one, in that order; a row may be taken twice or not at all."""


S = TypeVar("S", bound=SearchState)


@runtime_checkable
class Attentive(Protocol):
    """A state that says what was read of the source, where `AttentiveStepper.start_attentive` asked for it."""

    @property
    def attention(self) -> Tensor | None:
        """[N, S], how much the last step read each source token; a row sums to one.

        Before the first step 0, and 1 where no token stands: nothing is left to be read there. None: nobody asked.
        """


class Step(Protocol[S]):
    """A model, an ensemble, an ONNX session, a table in a test: all that a search knows."""

    def __call__(self, prefix: Tensor, state: S) -> tuple[NextToken, S]:
        """The belief about the token after prefix [N, 1 + t], which begins with bos, and the state that has read it."""


class Stepper(Protocol):
    """What translates: the plain model, or an engine made of it."""

    def start(self, source: Tensor, mask: Tensor) -> Any:
        """The state before the first target token of sources [B, S], read where mask [B, S] is True."""

    def step(self, prefix: Tensor, state: Any) -> tuple[NextToken, Any]:
        """A `Step` over such states."""


@runtime_checkable
class AttentiveStepper(Stepper, Protocol):
    """One that can say what it reads of the source; it computes no attention for whoever does not ask."""

    def start_attentive(self, source: Tensor, mask: Tensor) -> Any:
        """As `start`, and this state and all that follow it are `Attentive`."""
