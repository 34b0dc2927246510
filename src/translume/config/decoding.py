"""[decoding]: defaults of the search; every call may override them."""

from typing import Annotated, Any, ClassVar, Literal, Self, TypedDict

from pydantic import AfterValidator, Field, field_validator, model_validator

from translume.config.base import Ids, Names, OneOf, Options, OptionTables, Settings, part_name, part_names
from translume.errors import nearest

STRATEGIES: dict[str, Any] = {
    "beam": "translume.decoding.beam_search:BeamSearch",
    "diverse": "translume.decoding.diverse:DiverseBeam",
    "greedy": "translume.decoding.beam_search:Greedy",
    "sampling": "translume.decoding.sampling:Sampling",
    "stochastic": "translume.decoding.stochastic_beam:StochasticBeam",
}
"""The class of each strategy, with `from_settings(settings, keys)` and `reads`."""
RULES: dict[str, Any] = {}
"""Functions from [decoding] and the target's tokenizer to a rule; other settings choose our own rules."""

MAX_TARGETS = 65_536
"""Maximum number of targets kept, sampled or returned for one sentence; more would exhaust memory."""

PLACEHOLDERS = ("number", "url", "email", "tag", "variable", "hashtag", "mention")
"""Kinds of text that a target may have to copy from its source."""

OF_SOURCES = (
    "prefix", "terminology", "placeholders", "alignment", "coverage_penalty", "calibrated", "unsmooth",
    "to", "from_", "split", "letterless", "timestamps", "max_length_action", "ctc_weight",
    "utility_model", "draft", "draft_tokens",
)  # fmt: skip
"""Settings for models that read a source, or with a fitted temperature."""


OF_LANGUAGE_MODELS = ("stop_strings",)
"""Settings for language models."""


class DecodingSettings(Settings):
    """[decoding]: defaults of `translate`."""

    table: ClassVar[str] = "decoding"

    to: str = ""
    """Code of the language to translate into, for a model of several; empty if the model has one."""
    from_: str = ""
    """Code of the language of the texts; empty if the model has one, or if it does not read the source's language."""
    strategy: Annotated[str, AfterValidator(part_name("strategy"))] = "beam"
    """How the next tokens are chosen: "beam", "diverse", "greedy", "sampling" or "stochastic" (drawn, none twice)."""
    beam: int = Field(default=5, ge=1, le=MAX_TARGETS)
    """Beam width: hypotheses kept per sentence, over all groups for "diverse"."""
    nbest: int = Field(default=1, ge=1, le=MAX_TARGETS)
    """Number of targets returned per sentence; at most `beam` or `samples`."""
    length_penalty: float = Field(default=1.0, ge=-10.0, le=10.0)
    """Exponent of the length in the score of a hypothesis; 0 ranks by log-probability."""
    length_penalty_form: Literal["power", "gnmt"] = "power"
    """log_prob / length ** p ("power") or / ((5 + length) / 6) ** p ("gnmt", Wu et al. 2016); EOS counts."""
    coverage_penalty: float = Field(default=0.0, ge=0.0)
    """β of the coverage penalty, β · Σ_s log(min(Σ_t a_ts, 1)), added to a score (Wu et al. 2016); 0: none."""
    stop: Literal["optimal", "first"] = "first"
    """"first" ends at the first `patience` · `beam` finished hypotheses; "optimal" when no live one can win."""
    patience: float = Field(default=1.0, gt=0.0)
    """With stop "first": multiple of `beam` that must have finished (Kasai et al. 2022)."""
    groups: int = Field(default=0, ge=0)
    """Number of groups of a diverse beam, a divisor of `beam`; 0: as many as `beam`."""
    diversity: float = Field(default=0.5, ge=0.0, le=1_000_000.0)
    """Penalty of a token for each earlier group of a diverse beam that chose it (Vijayakumar et al. 2018)."""
    min_length: int = Field(default=0, ge=0)
    """Minimum number of target tokens, EOS excluded."""
    max_length_ratio: float = Field(default=0.0, ge=0.0)
    """Maximum number of target tokens per source token, for each sentence; 0: learned from the training data.

    2 if only `max_length_extra` is set, or if the model does not know the lengths in its training data.
    """
    max_length_extra: int = Field(default=0, ge=0)
    """Added to `max_length_ratio` times the source length; 0: learned, or 10 if the ratio is set or is 2."""
    max_length: int = Field(default=0, ge=0)
    """Maximum number of target tokens, EOS included; 0: only the limit by the training data or the ratio."""
    split: Literal["auto", "always", "never"] = "auto"
    """Whether to translate a line sentence by sentence: "auto" for a model that was trained on single sentences.

    "auto" needs languages in [data] that differ. A line that is too long for the model is split with any of these
    values if the languages differ, else only with "always".
    """
    letterless: Literal["auto", "keep", "translate"] = "auto"
    """What to do with a text or sentence without letters, such as "42", "!!!" and "→": "keep" or "translate" it.

    "auto" keeps it if the languages in [data] differ. One with `prefix` or constraints is translated.
    """
    prefix: str = ""
    """Text that every target begins with, outside `max_length_ratio`; in a line of parts, the first part's.

    The tokenizer normalises the text. A target may continue its last word.
    """
    ban: Names = ()
    """Words and phrases that must not occur in a target; "@FILE" names a file, one per line; "@@x" means "@x"."""
    stop_strings: Names = ()
    """Texts that end a text of a language model, which is cut before the first; as `stop` of OpenAI's API."""
    suppress: Ids = ()
    """Ids of tokens that are never generated, as in imported models."""
    suppress_first: Ids = ()
    """Ids of tokens that do not begin a target."""
    ends: Ids = ()
    """Ids of tokens that end a target, for imported models that have several; empty: EOS only."""
    timestamps: bool = False
    """Write when each segment of a recording begins and ends; always done for one that is longer than a window."""
    latest_start: float = Field(default=0.0, ge=0.0)
    """Latest time in a window, in seconds, at which its first segment may begin; 0: any."""
    no_repeat_ngram: int = Field(default=0, ge=0)
    """Never repeat an n-gram of this length in a target (Paulus et al. 2018); 0 allows repetition."""
    repetition_penalty: float = Field(default=1.0, ge=1.0)
    """Divisor of the probability of tokens that the target already has, for ranking; 1 for no penalty."""
    vocabulary: str = ""
    """File with one text or token per line; targets use only their tokens. Empty: all tokens."""
    terminology: str = ""
    """File of terms, one `source TAB target` per line: a target must contain the translations of terms in its source.

    Lines with the same source term are alternatives; for "beam" and "greedy".
    """
    placeholders: Names = ()
    """Warn if a target lacks a "number", "url", "email", "tag", "variable", "hashtag" or "mention" of its source."""
    alignment: bool = False
    """Align each target with its source by cross-attention, in an additional pass over the results."""
    max_tokens: int = Field(default=4096, ge=1)
    """Maximum source tokens in a batch, padding included."""
    max_length_action: Literal["error", "truncate"] = "error"
    """What to do with a sentence longer than `max_positions`: "error" translates it in parts, and is an error for a
    single word and for other tasks; "truncate" cuts it and warns."""
    samples: int = Field(default=1, ge=1, le=MAX_TARGETS)
    """Number of targets sampled per sentence: "sampling" with, "stochastic" without replacement."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of sampling. The same seed gives a sentence the same targets, whatever else is in the batch."""
    temperature: float = Field(default=1.0, ge=1e-6)
    """Sample from p ** (1/T): T below 1 favours likely tokens, above 1 flattens the distribution."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k most likely tokens (Fan et al. 2018); 0: from all."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the smallest set of tokens with this total probability (Holtzman et al. 2020); 1: from all."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Sample from tokens with at least this fraction of the highest probability (Nguyen et al. 2024); 0: all."""
    epsilon: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Sample from tokens with at least this probability, or the most likely one (Hewitt et al. 2022); 0: all."""
    eta: float = Field(default=0.0, ge=0.0, lt=1.0)
    """ε of η-sampling: as `epsilon`, with the threshold min(ε, √ε · e^−entropy) (Hewitt et al. 2022)."""
    utility: Annotated[str, AfterValidator(OneOf("translume.config.evaluation:utility_names"))] = "none"
    """Rank the hypotheses by a metric: "chrf", "bleu", "comet", "comet-kiwi", or one from outside.

    It is the mean against all hypotheses (minimum Bayes risk), or for "comet-kiwi" the score without a reference.
    """
    utility_model: str = ""
    """Model of a learned `utility`, a path or hf://owner/name; empty: the one in [evaluation]."""
    draft: str = ""
    """Folder of a small model with the same vocabularies, which guesses tokens of a text translated alone; empty: none.

    The model checks several guesses in a step. The text is the same. For greedy search and single samples on a CPU.
    """
    draft_tokens: int = Field(default=4, ge=1, le=64)
    """Maximum number of tokens that `draft` guesses for a step."""
    ctc_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    """λ: search for the best (1 − λ) · log p + λ · log p of CTC, for a model with `training.ctc_weight`; 0: by p."""
    calibrated: bool = False
    """Rank by probabilities at the temperature that `translume evaluate --fit-temperature` stored with the model."""
    unsmooth: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Rank by p' = max(p − ε/V, 0) / (1 − ε), which removes label smoothing ε (Liang et al. 2022); 0: by p.

    Use the `label_smoothing` of the training, which must have been spread over "all" tokens. Neither this nor
    `calibrated` changes the log-probabilities reported.
    """
    rules: Annotated[Names, AfterValidator(part_names("rule"))] = ()
    """Rules from outside, which change scores or forbid tokens before each step."""
    options: OptionTables = Field(default_factory=Options)
    """Settings of parts from outside, a table for each."""

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_is_no_text(cls, value: object) -> object:
        if value not in ("optimal", "first"):
            raise ValueError(f"found {value!r}, expected 'optimal' or 'first'; stop_strings has texts that end a text")
        return value

    @field_validator("stop_strings")
    @classmethod
    def _strings_can_end_a_text(cls, strings: tuple[str, ...]) -> tuple[str, ...]:
        if "" in strings:
            raise ValueError("found an empty text, expected one that can end a text")
        if len(strings) > 16:
            raise ValueError(f"found {len(strings)} texts, expected at most 16")
        return strings

    @field_validator("placeholders")
    @classmethod
    def _placeholders_are_known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in PLACEHOLDERS:
                raise ValueError(f"found {kind!r}{nearest(kind, PLACEHOLDERS)}")
        return kinds

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        if 0 < self.max_length < self.min_length:
            raise ValueError(f"min_length: found {self.min_length}, expected at most max_length, {self.max_length}")
        return self

    @model_validator(mode="after")
    def _only_one_correction(self) -> Self:
        if self.calibrated and self.unsmooth:
            raise ValueError(
                "calibrated and unsmooth both make up for label smoothing, expected at most one of them; "
                "set calibrated = false or unsmooth = 0"
            )
        return self


class DecodingOptions(TypedDict, total=False):
    """The settings of `DecodingSettings` as keyword arguments of `translate` and `translate_all`."""

    to: str
    from_: str
    strategy: str
    beam: int
    nbest: int
    length_penalty: float
    length_penalty_form: Literal["power", "gnmt"]
    coverage_penalty: float
    stop: Literal["optimal", "first"]
    patience: float
    groups: int
    diversity: float
    min_length: int
    max_length_ratio: float
    max_length_extra: int
    max_length: int
    split: Literal["auto", "always", "never"]
    letterless: Literal["auto", "keep", "translate"]
    prefix: str
    ban: str | tuple[str, ...] | list[str]
    stop_strings: str | tuple[str, ...] | list[str]
    suppress: tuple[int, ...] | list[int]
    suppress_first: tuple[int, ...] | list[int]
    ends: tuple[int, ...] | list[int]
    timestamps: bool
    latest_start: float
    no_repeat_ngram: int
    repetition_penalty: float
    vocabulary: str
    terminology: str
    placeholders: str | tuple[str, ...] | list[str]
    alignment: bool
    max_tokens: int
    max_length_action: Literal["error", "truncate"]
    samples: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    epsilon: float
    eta: float
    utility: str
    utility_model: str
    draft: str
    draft_tokens: int
    ctc_weight: float
    calibrated: bool
    unsmooth: float
    rules: str | tuple[str, ...] | list[str]
    options: dict[str, dict[str, Any]]


def names_file(banned: str) -> bool:
    """Return whether an entry of `ban` is "@FILE"; "@@x" is the text "@x"."""
    return banned.startswith("@") and not banned.startswith("@@")
