"""[clean]: the filters of `translume data clean` and their thresholds."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from translume.config.base import Names, Settings
from translume.config.data import Columns
from translume.config.tree import build, override, parse_toml, read_text
from translume.errors import SettingsError, nearest

ALWAYS = ("unreadable", "empty")
"""Why pairs are dropped whatever the filters: a row that is no pair, and a side without visible characters."""
OF_PAIRS = (
    "length", "letters", "script", "copy", "numbers", "addresses", "repeats", "separators", "language",
)  # fmt: skip
"""The filters that look at one pair at a time."""
OF_CORPORA = ("ratio", "duplicate", "duplicate_source", "duplicate_target", "boilerplate", "near_duplicate")
"""The filters that compare a pair with all others, after those of pairs."""
OF_MODELS = ("dual", "domain")
"""The filters that score the pairs that all others keep with models."""
FILTERS = (*OF_PAIRS, *OF_CORPORA, *OF_MODELS)
"""All filters, in the order in which they are applied; a pair counts under the first that drops it."""
OPTIONAL = ("language", "duplicate_source", "duplicate_target", "near_duplicate", *OF_MODELS)
"""The filters that are not applied unless they are named: they are slow, also drop good pairs, or need models."""
USUAL = tuple(name for name in FILTERS if name not in OPTIONAL)


def known_filters(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of filters, each once, in their order. Raises ValueError for an unknown one."""
    for name in names:
        if name not in FILTERS:
            raise ValueError(f"no filter '{name}'{nearest(name, FILTERS)}")
    return tuple(name for name in FILTERS if name in names)


class CleanSettings(Settings):
    """[clean]: the filters of `translume data clean`. Lengths are in characters, shares between 0 and 1."""

    table: ClassVar[str] = "clean"

    filters: Annotated[Names, AfterValidator(known_filters)] = USUAL
    """Names of the filters to apply; their order does not matter."""
    columns: Columns = ()
    """Columns of source and target in a table, as `data.columns`."""
    documents: Literal["line", "blank_line"] = "line"
    """"blank_line": lines that are blank in both files end documents; one between two documents is written."""
    min_characters: int = Field(default=1, ge=1)
    """`length`: the shortest side to keep."""
    max_characters: int = Field(default=2000, ge=1)
    """`length`: the longest side to keep."""
    min_letters: float = Field(default=0.3, ge=0.0, le=1.0)
    """`letters`: the least share of letters among the characters of a side, without spaces."""
    source_script: str = "auto"
    """`script`: the script of at least half the letters of a source, as `data.cleaning.source_script`.

    "auto": the one of at least nine tenths of the first 12,288 sources, if there is one. Empty: any.
    """
    target_script: str = "auto"
    """`script`: the same for targets."""
    max_overlap: float = Field(default=0.9, gt=0.0, le=1.0)
    """`copy`: the share of words that both sides have in common, 2 · common / all, from which a pair is a copy."""
    min_shared_numbers: float = Field(default=0.5, ge=0.0, le=1.0)
    """`numbers`: the least share of numbers in digits that both sides have in common, if both have some."""
    max_repeats: float = Field(default=0.5, ge=0.0, le=1.0)
    """`repeats`: the largest share of trigrams of words that occurred before in the same side."""
    max_separators: int = Field(default=3, ge=0)
    """`separators`: how many separators of menus, such as | and •, a side may have."""
    source_language: str = ""
    """`language`: the code of the language of sources, such as "en"; empty: any."""
    target_language: str = ""
    """`language`: the same for targets."""
    min_probability: float = Field(default=0.001, ge=0.0, le=1.0)
    """`language`: the least probability of that language, among all that lingua knows."""
    max_deviations: float = Field(default=4.0, gt=0.0)
    """`ratio`: the largest distance of the log ratio of lengths from its median, in standard deviations.

    The deviation is 1.4826 times the median distance from the median.
    """
    ratio_quantile: float = Field(default=0.0, ge=0.0, lt=1.0)
    """`ratio`: the share of pairs to drop, those farthest from the median, instead of `max_deviations`; 0: none."""
    max_occurrences: int = Field(default=100, ge=1)
    """`boilerplate`: in how many different pairs a source or a target may occur; with more, all of them are dropped."""
    near_bands: int = Field(default=4, ge=1, le=64)
    """`near_duplicate`: the number of fingerprints of a pair, of which one must be equal to that of an earlier pair."""
    near_rows: int = Field(default=8, ge=1, le=64)
    """`near_duplicate`: the number of least hashes in a fingerprint. More rows: only pairs that are more similar."""

    min_dual: float = Field(default=0.003, ge=0.0, le=1.0)
    """`dual`: the least score by two translation models, exp(−|H_f − H_b| − (H_f + H_b) / 2), in nats per token."""
    dual_quantile: float = Field(default=0.0, ge=0.0, lt=1.0)
    """`dual`: the share of the scored pairs to drop, those with the least scores, instead of `min_dual`; 0: none."""
    domain_side: Literal["source", "target"] = "source"
    """`domain`: the texts that the language models score."""
    min_domain: float = 0.0
    """`domain`: the least difference H_general − H_in of the two language models, in nats per token."""
    domain_quantile: float = Field(default=0.0, ge=0.0, lt=1.0)
    """`domain`: the share of the scored pairs to drop, those with the least differences, instead of `min_domain`."""

    @model_validator(mode="after")
    def _language_is_named(self) -> Self:
        if "language" in self.filters and not (self.source_language or self.target_language):
            raise ValueError("the filter 'language' has no source_language and no target_language, expected one")
        return self


class CleanFile(Settings):
    """A file with the table [clean]."""

    clean: CleanSettings = CleanSettings.model_construct()


def read_clean(
    path: Path | None, overrides: Iterable[str], *, only: Sequence[str], also: Sequence[str], skip: Sequence[str]
) -> CleanSettings:
    """Read [clean] from a file, or its defaults, with filters of `only`, with those of `also` and without `skip`.

    Raises SettingsError for a wrong setting and an unknown filter.
    """
    tables = parse_toml(read_text(path), str(path)) if path else {}
    for assignment in overrides:
        override(tables, assignment)
    try:
        known_filters((*only, *also, *skip))
    except ValueError as error:
        raise SettingsError(f"--only, --also, --skip: {error}") from None
    own = tables.setdefault("clean", {})
    if isinstance(own, dict) and isinstance(named := only or own.get("filters", USUAL), list | tuple):
        own["filters"] = [name for name in (*named, *also) if name not in skip]
    return build(CleanFile, tables, (), str(path or "--set")).clean
