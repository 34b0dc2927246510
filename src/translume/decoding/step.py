"""The interface between a search and a model: a step, its state, objects that provide both, and prompts."""

from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from translume.belief import NextToken
from translume.lazy import Tensor, torch


class SearchState(Protocol):
    """The decoder state of N rows. Immutable: `select` returns another state."""

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


def attention_of(state: object) -> Tensor | None:
    """Return the attention [N, S] of a state; None if it does not report it."""
    return state.attention if isinstance(state, AttentionState) else None


class BranchingState(SearchState, Protocol):
    """The state of a `Stepper`, which may reuse its memory in the next step."""

    def branch(self) -> Self:
        """Return a state for steps that leave this one usable. It may share the memory, and must not `select`."""


class Step(Protocol[S]):
    """One decoding step, for example of a model, an ensemble or a table in a test. A search depends only on this."""

    def __call__(self, prefix: Tensor, state: S) -> tuple[NextToken, S]:
        """Return the distribution of the token after prefix [N, 1 + t], which begins with bos, and the new state."""


class Stepper(Protocol):
    """An object that encodes sources and takes decoding steps: the plain model, an engine or an ensemble."""

    def start(self, source: Tensor, mask: Tensor) -> Any:
        """Return the state before the first target token of sources [B, S], read where mask [B, S] is True.

        A `BranchingState`.
        """

    def step(self, prefix: Tensor, state: Any) -> tuple[NextToken, Any]:
        """Take a `Step` over such states."""


@runtime_checkable
class AttentionStepper(Stepper, Protocol):
    """A stepper that can report cross-attention. `start` does not compute it, to save time."""

    def start_with_attention(self, source: Tensor, mask: Tensor) -> Any:
        """As `start`, but this state and its successors are `AttentionState`s."""


@dataclass(frozen=True, slots=True)
class PromptedState:
    """The decoder state of N rows and their prompts [N, P], whose first column takes the place of bos."""

    inner: SearchState
    prompts: Tensor

    @property
    def attention(self) -> Tensor | None:
        """[N, S]: attention of the last step, if the inner state has it; see `AttentionState`."""
        return attention_of(self.inner)

    def select(self, rows: Tensor) -> "PromptedState":
        return PromptedState(self.inner.select(rows), self.prompts.index_select(0, rows))


@dataclass(frozen=True, slots=True)
class PromptedStep:
    """A `Step` that reads the prompt of each row, at once, before the tokens of the search.

    A search counts, scores and returns only its own tokens, and its rules see only these.
    """

    step: Step[Any]

    def __call__(self, prefix: Tensor, state: PromptedState) -> tuple[NextToken, PromptedState]:
        """Return the distribution after a prompt and prefix [N, 1 + t], whose first column is not read."""
        belief, inner = self.step(torch.cat([state.prompts, prefix[:, 1:]], 1), state.inner)
        return belief, PromptedState(inner, state.prompts)
