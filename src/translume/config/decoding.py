"""[decoding]: how targets are searched by default; every call may choose otherwise."""

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from translume.config.base import Names, Settings
from translume.errors import nearest

STRATEGIES = {
    "beam": "translume.decoding.beam_search:BeamSearch",
    "diverse": "translume.decoding.diverse:DiverseBeam",
    "greedy": "translume.decoding.greedy:Greedy",
    "sampling": "translume.decoding.sampling:Sampling",
    "stochastic": "translume.decoding.stochastic_beam:StochasticBeam",
}
"""What builds each strategy: a class with `of(settings, keys)` and `reads`, imported when it is asked for."""

MOST = 65_536
"""Most targets that are kept, drawn or returned for one sentence: more fill the memory before a word is found."""

PLACEHOLDERS = ("number", "url", "tag")
"""Kinds of what a target may have to take over from its source."""


class DecodingSettings(Settings):
    """[decoding]: defaults of `translate`."""

    table: ClassVar[str] = "decoding"

    strategy: str = "beam"
    """How the next tokens are chosen: "beam", "diverse", "greedy", "sampling" or "stochastic" (drawn, none twice)."""
    beam: int = Field(default=5, ge=1, le=MOST)
    """Targets kept per sentence by beam search, of all groups together if it is diverse."""
    nbest: int = Field(default=1, ge=1, le=MOST)
    """Targets returned per sentence; at most `beam`, or `samples`."""
    length_penalty: float = 1.0
    """Exponent of the length in a hypothesis's score; 0 ranks by log-probability alone."""
    length_penalty_form: Literal["power", "gnmt"] = "power"
    """log_prob / length ** p ("power") or / ((5 + length) / 6) ** p ("gnmt", Wu et al. 2016); the end mark counts."""
    coverage_penalty: float = Field(default=0.0, ge=0.0)
    """β of the coverage penalty, β · Σ_s log(min(Σ_t a_ts, 1)), added to a score (Wu et al. 2016); 0: none."""
    stop: Literal["optimal", "first"] = "optimal"
    """"optimal" ends when no live hypothesis can win; "first" at the first `patience` · `beam` finished ones."""
    patience: float = Field(default=1.0, gt=0.0)
    """With stop "first": how many times `beam` must have finished (Kasai et al. 2022)."""
    groups: int = Field(default=0, ge=0)
    """Groups of a diverse beam, a divisor of `beam`; 0: as many as `beam`."""
    diversity: float = Field(default=0.5, ge=0.0)
    """What a token costs in a diverse beam for each time that an earlier group chose it (Vijayakumar et al. 2018)."""
    min_length: int = Field(default=0, ge=0)
    """Fewest target tokens, end mark not counted."""
    max_length_ratio: float = Field(default=2.0, gt=0.0)
    """Most target tokens per source token, each sentence by its own length."""
    max_length_extra: int = Field(default=10, ge=1)
    """Added to `max_length_ratio` times the source length."""
    max_length: int = Field(default=0, ge=0)
    """Most target tokens, end mark counted; 0: by the ratio alone."""
    prefix: str = ""
    """Text that every target begins with, outside `max_length_ratio`; in a line of parts, the first part's.

    As the tokenizer normalises it; a target may go on with its last word.
    """
    ban: Names = ()
    """Words and phrases that no target holds as words; "@FILE" names a file with one a line, "@@x" means "@x"."""
    no_repeat_ngram: int = Field(default=0, ge=0)
    """No target has the same n tokens in a row twice (Paulus et al. 2018); 0: it may."""
    repetition_penalty: float = Field(default=1.0, ge=1.0)
    """What the probability of tokens that a target has already is divided by, in ranking; 1: nothing."""
    vocabulary: str = ""
    """A file with one text or token a line: targets are made of the tokens that these have; empty: of all."""
    terminology: str = ""
    """A file of terms, `source TAB target` a line: where a source holds one, its target holds its translation.

    Lines with the same source term are alternatives; for "beam" and "greedy".
    """
    placeholders: Names = ()
    """What shall stand in a target as in its source, or there is a warning: any of "number", "url", "tag"."""
    alignment: bool = False
    """Align each target with its source by cross-attention, in one more pass over what was found."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most source tokens in a batch, padding counted."""
    max_length_action: Literal["error", "truncate"] = "error"
    """What to do with a single sentence that is longer than the model reads: stop, or cut it and warn."""
    samples: int = Field(default=1, ge=1, le=MOST)
    """Targets drawn per sentence: "sampling" draws equal ones too, "stochastic" none twice."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """What is drawn: for a sentence always the same with the same seed, whatever is translated beside it."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Targets are drawn from p ** (1/T): closer to the likeliest ones below 1, more mixed above."""
    top_k: int = Field(default=0, ge=0)
    """Draw only from the k likeliest next tokens (Fan et al. 2018); 0: from all."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Draw only from the fewest next tokens that have this probability together (Holtzman et al. 2020); 1: from all."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Draw only next tokens at least this many times as likely as the likeliest (Nguyen et al. 2024); 0: all."""
    epsilon: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Draw only next tokens with at least this probability, or the likeliest (Hewitt et al. 2022); 0: all."""
    eta: float = Field(default=0.0, ge=0.0, lt=1.0)
    """ε of η-sampling: as `epsilon` with min(ε, √ε · e^−entropy), less where much is possible (Hewitt et al. 2022)."""
    utility: Literal["none", "chrf", "bleu"] = "none"
    """Rank what was found by its mean sentence chrF or BLEU against all that was found (minimum Bayes risk)."""
    calibrated: bool = False
    """Rank by beliefs at the temperature that `translume evaluate --fit-temperature` stored with the model."""
    unsmooth: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Rank by beliefs without this much label smoothing, p' = max(p − ε/V, 0) / (1 − ε) (Liang et al. 2022); 0: as is.

    Best the `label_smoothing` of the training, which must have been spread over "all" tokens. Neither this nor
    `calibrated` changes the log-probabilities reported.
    """

    @field_validator("strategy")
    @classmethod
    def _strategy_is_known(cls, name: str) -> str:
        if name not in STRATEGIES:
            raise ValueError(f"found {name!r}{nearest(name, STRATEGIES)}")
        return name

    @field_validator("placeholders")
    @classmethod
    def _placeholders_are_known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in PLACEHOLDERS:
                raise ValueError(f"found {kind!r}{nearest(kind, PLACEHOLDERS)}")
        return kinds

    @model_validator(mode="after")
    def _one_cure_is_enough(self) -> Self:
        if self.calibrated and self.unsmooth:
            raise ValueError(
                "calibrated and unsmooth both make up for label smoothing, wanted at most one of them; "
                "set calibrated = false or unsmooth = 0"
            )
        return self


def names_file(banned: str) -> bool:
    """Whether an entry of `ban` is "@FILE"; "@@x" is the text "@x"."""
    return banned.startswith("@") and not banned.startswith("@@")
