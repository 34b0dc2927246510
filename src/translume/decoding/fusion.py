"""A language model of the target that has a say in the search: shallow fusion (Gülçehre et al. 2015, section 4.1)."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from translume.belief import NextToken
from translume.decoding.reshaped import Reshaped
from translume.decoding.step import Attentive, S, SearchState, Step


class LanguageModel(Protocol):
    """A step over target prefixes alone: no source, but the translator's target vocabulary, in its order of ids."""

    def start(self, count: int) -> Any:
        """The state before the first token of `count` rows; it has `select(rows)`, as any state."""

    def step(self, prefix: Tensor, state: Any) -> tuple[NextToken, Any]:
        """A `Step` over such states; prefix [N, 1 + t] begins with the translator's bos."""


class Fused(Reshaped):
    """log p + λ · log p_lm: what a search ranks by; `TopK.log_probs` stay log p, the translator's own.

    No distribution, and never above 0. What is drawn (`sample`) is drawn in proportion to p · p_lm ** λ.
    """

    normalised = False

    def __init__(self, belief: NextToken, other: NextToken, weight: float) -> None:
        """other: the language model's belief about the same rows and tokens.  weight: λ, above 0."""
        super().__init__(belief)
        self._other, self._weight = other, weight

    def _reshape(self, log_probs: Tensor) -> Tensor:
        return log_probs + self._weight * self._other.log_probs()


@dataclass(frozen=True, slots=True)
class FusedState:
    """What the translator and the language model remember of the same rows."""

    translator: SearchState
    language: SearchState

    def select(self, rows: Tensor) -> "FusedState":
        return FusedState(self.translator.select(rows), self.language.select(rows))

    @property
    def attention(self) -> Tensor | None:
        """The translator's; see `Attentive`."""
        return self.translator.attention if isinstance(self.translator, Attentive) else None


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """A language model and λ, how much it has to say; above 0, so that it only lowers and "optimal" stays honest."""

    model: LanguageModel
    weight: float

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"the weight of a language model is {self.weight}, wanted above 0")

    def start(self, state: SearchState, count: int) -> FusedState:
        """A translator's state of `count` rows with the language model's beside it."""
        return FusedState(state, self.model.start(count))

    def over(self, step: Step[S]) -> "FusedStep":
        """The step with its beliefs fused; it raises ValueError when the two know another number of tokens."""
        return FusedStep(self, step)


@dataclass(frozen=True, slots=True)
class FusedStep:
    """A translator's step and a language model's, taken side by side."""

    fusion: Fusion
    step: Step[Any]

    def __call__(self, prefix: Tensor, state: FusedState) -> tuple[NextToken, FusedState]:
        belief, translator = self.step(prefix, state.translator)
        other, language = self.fusion.model.step(prefix, state.language)
        if other.size != belief.size:
            raise ValueError(f"the language model knows {other.size} tokens, wanted the translator's {belief.size}")
        return Fused(belief, other, self.fusion.weight), FusedState(translator, language)
