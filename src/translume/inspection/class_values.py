"""What the inspection of a classifier's answer shows, as plain values; see `values` for the words."""

from dataclasses import dataclass
from typing import Any, Literal

from translume.inspection.pictured import PicturedClass
from translume.inspection.plain import from_plain, plain
from translume.inspection.values import Token, Word

EvidenceMethod = Literal["occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBelief:
    """A class, its probability and that one's logarithm in nats; given: whether it is (one of) the text's."""

    label: str
    p: float
    log_p: float
    given: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How much each token speaks for each of the first classes, [c, S], by a method; the methods are `Attribution`'s.

    "occlusion-mask": the token's state is not pooled; the others' still know of it.
    error: of integrated gradients; None for the other methods.
    """

    method: EvidenceMethod
    values: tuple[tuple[float | None, ...], ...]
    baseline: str
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFacts:
    """What the numbers were computed by; several: whether a text may have several classes, or none."""

    digest: str
    dtype: str
    device: str
    norm: Literal["pre", "post"]
    pooling: Literal["mean", "max", "first", "attention", "ngrams"]
    several: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTrace(PicturedClass):
    """What a classifier believed about one text, and which of its tokens made it believe that.

    source: the text as the model reads it; offsets are of it.  given: as it was given.
    source_tokens: those that were read, the end mark last; `warnings` say where they are not all.
    classes: all of them, the likeliest first. They sum to one, unless a text may have several.
    margin: p of the first less p of the second; with several, the least |p − ½| of any class: how near the answer is
    to another one.
    entropy: of the answer, nats; with several, the sum over all classes' decisions.
    pooling: how much each token's state counts in the text's vector; they sum to one. With "max" and "ngrams", the
    share of the components that are the token's (see `Pooling.weights`); None where it was not asked for.
    evidence: by method, for the first c of `classes`.
    """

    schema: Literal["class/1"]
    facts: ClassFacts
    given: str
    source: str
    warnings: tuple[str, ...]
    source_tokens: tuple[Token, ...]
    source_words: tuple[Word, ...]
    classes: tuple[ClassBelief, ...]
    margin: float
    entropy: float
    pooling: tuple[float, ...] | None
    evidence: tuple[Evidence, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes that the text was given, the likeliest first."""
        return tuple(each.label for each in self.classes if each.given)

    def shown(self, token: Token) -> str:
        """What a token is shown as: its characters, which an unknown one has too, else its piece."""
        return self.source[token.begin : token.end].strip() or token.text

    def to_dict(self) -> dict[str, Any]:
        """The trace as JSON knows it; `docs/trace.schema.json` describes it."""
        content: dict[str, Any] = plain(self)
        return content

    @classmethod
    def from_dict(cls, content: object) -> "ClassTrace":
        """The trace that `to_dict` wrote; DataError for anything else."""
        return from_plain(cls, content)
