"""How a hypothesis's length enters its score."""

from dataclasses import dataclass
from typing import Literal, Self, TypeVar

from torch import Tensor

from translume.config import DecodingSettings

L = TypeVar("L", float, Tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPenalty:
    """Divides a hypothesis's total by a power of its length L, which counts its own tokens, eos included.

    form: "power" divides by L ** exponent; "gnmt" by ((5 + L) / 6) ** exponent (Wu et al. 2016, equation 14).
    exponent: 0 leaves the total alone; above 0 favours longer hypotheses, below 0 shorter ones.
    """

    form: Literal["power", "gnmt"] = "power"
    exponent: float = 1.0

    @classmethod
    def of(cls, settings: DecodingSettings) -> Self:
        """The penalty of [decoding]."""
        return cls(form=settings.length_penalty_form, exponent=settings.length_penalty)

    def divisor(self, length: L) -> L:
        """What the total of a hypothesis of `length` tokens is divided by."""
        base: L = length if self.form == "power" else (5 + length) / 6
        divisor: L = base**self.exponent
        return divisor

    def score(self, total: Tensor, length: int) -> Tensor:
        """What hypotheses of one `length` are ranked by."""
        return total / self.divisor(float(length))

    def bound(self, total: Tensor, length: int, limits: Tensor) -> Tensor:
        """The best score [B] that hypotheses of `total` [B] and `length` so far can end with, by `limits` [B] tokens.

        Log-probabilities only lower a total, and the divisor is monotone in the length: the best end is the shortest
        or the longest one at no further cost.  A rule that adds a positive bias later is not foreseen.
        """
        return (total / self.divisor(length + 1.0)).maximum(total / self.divisor(limits.float()))
