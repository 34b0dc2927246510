"""[decoding]: how targets are searched by default; every call may choose otherwise."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from translume.config.base import Settings
from translume.errors import nearest

STRATEGIES = {
    "beam": "translume.decoding.beam_search:BeamSearch",
    "greedy": "translume.decoding.greedy:Greedy",
}
"""What builds each strategy: a class with `of(settings, keys)`, imported when it is asked for."""


class DecodingSettings(Settings):
    """[decoding]: defaults of `translate`."""

    strategy: str = "beam"
    """How the next tokens are chosen: "beam" or "greedy"."""
    beam: int = Field(default=5, ge=1)
    """Targets kept per sentence by beam search."""
    nbest: int = Field(default=1, ge=1)
    """Targets returned per sentence; at most `beam`."""
    length_penalty: float = 1.0
    """Exponent of the length in a hypothesis's score; 0 ranks by log-probability alone."""
    length_penalty_form: Literal["power", "gnmt"] = "power"
    """log_prob / length ** p ("power") or / ((5 + length) / 6) ** p ("gnmt", Wu et al. 2016); the end mark counts."""
    stop: Literal["optimal", "first"] = "optimal"
    """"optimal" ends when no live hypothesis can win; "first" at the first `beam` finished ones."""
    min_length: int = Field(default=0, ge=0)
    """Fewest target tokens, end mark not counted."""
    max_length_ratio: float = Field(default=2.0, gt=0.0)
    """Most target tokens per source token, each sentence by its own length."""
    max_length_extra: int = Field(default=10, ge=1)
    """Added to `max_length_ratio` times the source length."""
    max_length: int = Field(default=0, ge=0)
    """Most target tokens, end mark counted; 0: by the ratio alone."""
    prefix: str = ""
    """Text that every target begins with, outside `max_length_ratio`; in a line of parts, the first part's."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most source tokens in a batch, padding counted."""
    max_length_action: Literal["error", "truncate"] = "error"
    """What to do with a single sentence that is longer than the model reads: stop, or cut it and warn."""
    calibrated: bool = False
    """Rank by beliefs at the temperature that `translume evaluate --fit-temperature` stored with the model."""
    unsmooth: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Rank by beliefs without this much label smoothing, p' = max(p − ε/V, 0) / (1 − ε) (Liang et al. 2022); 0: as is.

    Best the `label_smoothing` of the training. Neither this nor `calibrated` changes the log-probabilities reported.
    """

    @field_validator("strategy")
    @classmethod
    def _strategy_is_known(cls, name: str) -> str:
        if name not in STRATEGIES:
            raise ValueError(f"found {name!r}{nearest(name, STRATEGIES)}")
        return name

    @model_validator(mode="after")
    def _one_cure_is_enough(self) -> Self:
        if self.calibrated and self.unsmooth:
            raise ValueError(
                "calibrated and unsmooth both make up for label smoothing, wanted at most one of them; "
                "set calibrated = false or unsmooth = 0"
            )
        return self
