"""What settings want of a search, and what they make of what it finds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from translume.config import DecodingSettings
from translume.decoding import Hypothesis, strategy_from
from translume.text import Tokenizer
from translume.translator.risk import least_risk
from translume.translator.values import TextHypothesis


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wanted:
    """Settings as a search reads them.

    search: with as many hypotheses as a utility ranks.  width: hypotheses kept a sentence where nothing is constrained.
    attentive: whether it asks what was read of the source.  ranked: whether the best is chosen otherwise than by score.
    """

    settings: DecodingSettings
    search: DecodingSettings
    width: int
    attentive: bool
    ranked: bool

    @classmethod
    def of(cls, settings: DecodingSettings) -> Self:
        """What [decoding] wants."""
        strategy = strategy_from(settings)
        ranked = settings.utility != "none" and strategy.width > 1
        return cls(
            settings=settings,
            search=settings.model_copy(update={"nbest": strategy.width}) if ranked else settings,
            width=strategy.width,
            attentive=strategy.coverage is not None,
            ranked=ranked,
        )

    def best(self, found: Sequence[Hypothesis], tokenizer: Tokenizer) -> list[TextHypothesis]:
        """What a search found for a piece as it is given back, best first; tokenizer: of the target."""
        read = [TextHypothesis.of(each, tokenizer) for each in found]
        return least_risk(read, self.settings.utility, self.settings.nbest) if self.ranked else read
