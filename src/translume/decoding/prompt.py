"""Decode after a prompt: the tokens before the first one that a search chooses."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.decoding.step import AttentionState, SearchState, Step


@dataclass(frozen=True, slots=True)
class PromptedState:
    """The decoder state of N rows and their prompts [N, P], whose first column takes the place of bos."""

    inner: SearchState
    prompts: Tensor

    @property
    def attention(self) -> Tensor | None:
        """[N, S]: attention of the last step, if the inner state has it; see `AttentionState`."""
        return self.inner.attention if isinstance(self.inner, AttentionState) else None

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
