"""The interface between a search and a model: a step, its state, and objects that provide both."""

from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from torch import Tensor

from translume.belief import NextToken


class SearchState(Protocol):
    """The decoder state of N rows. A value: `select` returns another state."""

    def select(self, rows: Tensor) -> Self:
        """Return the state of rows `rows` [M] of this one, in that order; rows may be repeated or left out."""


S = TypeVar("S", bound=SearchState)


@runtime_checkable
class AttentionState(Protocol):
    """A state that reports cross-attention; `AttentionStepper.start_with_attention` creates the first one."""

    @property
    def attention(self) -> Tensor | None:
        """[N, S]: attention of the last step to each source token; a row sums to one.

        Before the first step 0 for source tokens and 1 for padding. None: the search was started without attention.
        """


class Step(Protocol[S]):
    """One decoding step of a model, an ensemble, an ONNX session or a table in a test. A search knows nothing else."""

    def __call__(self, prefix: Tensor, state: S) -> tuple[NextToken, S]:
        """Return the distribution of the token after prefix [N, 1 + t], which begins with bos, and the new state."""


class Stepper(Protocol):
    """An object that encodes sources and takes decoding steps: the plain model, an engine or an ensemble."""

    def start(self, source: Tensor, mask: Tensor) -> Any:
        """Return the state before the first target token of sources [B, S], read where mask [B, S] is True."""

    def step(self, prefix: Tensor, state: Any) -> tuple[NextToken, Any]:
        """Take a `Step` over such states."""


@runtime_checkable
class AttentionStepper(Stepper, Protocol):
    """A stepper that can report cross-attention. `start` leaves it out, so that searches without it do not pay."""

    def start_with_attention(self, source: Tensor, mask: Tensor) -> Any:
        """As `start`; this state and all that follow it are an `AttentionState`."""
