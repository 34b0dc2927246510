"""Length penalty and coverage penalty of a hypothesis's score."""

from dataclasses import dataclass
from typing import Literal, Self, TypeVar

from translume.config import DecodingSettings
from translume.lazy import Tensor, torch

L = TypeVar("L", float, Tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPenalty:
    """Divides a hypothesis's total by a power of its length L, which counts its own tokens, eos included.

    form: "power" divides by L ** exponent; "gnmt" by ((5 + L) / 6) ** exponent (Wu et al. 2016, equation 14).
    exponent: 0 leaves the total unchanged; above 0 favours longer hypotheses, below 0 shorter ones.
    """

    form: Literal["power", "gnmt"] = "power"
    exponent: float = 1.0

    @classmethod
    def from_settings(cls, settings: DecodingSettings) -> Self:
        """Return the length penalty of [decoding]."""
        return cls(form=settings.length_penalty_form, exponent=settings.length_penalty)

    def divisor(self, length: L) -> L:
        """Return the divisor for a hypothesis of `length` tokens."""
        base: L = length if self.form == "power" else (5 + length) / 6
        divisor: L = base**self.exponent
        return divisor

    def score(self, total: Tensor, length: int) -> Tensor:
        """Return the scores of hypotheses that all have `length` tokens."""
        return total / self.divisor(float(length))

    def bound(self, total: Tensor, length: int, limits: Tensor) -> Tensor:
        """Return an upper bound [B] of the final score of hypotheses with `total` [B] and `length` tokens so far.

        limits: [B], maximum lengths. Log-probabilities only lower a total and the divisor is monotone in the length,
        so the best final score is that of the shortest or of the longest possible hypothesis at no further cost.
        """
        return (total / self.divisor(length + 1.0)).maximum(total / self.divisor(limits.float()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage penalty β · Σ_s log(min(Σ_t a_ts, 1)), at most 0 (Wu et al. 2016, equation 15).

    a_ts is the attention to source token s in the step that wrote token t, eos included. All source tokens count,
    EOS included. Like the length penalty, it ranks complete hypotheses; the beam is chosen by totals without it.

    weight: β, at least 0.
    """

    weight: float

    @classmethod
    def from_settings(cls, settings: DecodingSettings) -> Self | None:
        """Return the coverage penalty of [decoding], or None so that no attention is computed."""
        return cls(weight=settings.coverage_penalty) if settings.coverage_penalty else None

    def score(self, attended: Tensor) -> Tensor:
        """Return the penalties [N] for sums of attention [N, S]; padding must hold 1."""
        # A sum that underflowed to 0 must not make a score −inf. In fp64, rounding errors do not depend on the order.
        clamped = attended.clamp(torch.finfo(attended.dtype).tiny, 1.0).double()
        return (self.weight * clamped.log().sum(-1)).to(attended.dtype)
