"""What the corpus lens shows, as plain values: numbers, texts and tuples, ready for JSON; nothing here computes.

Everywhere p is a probability, log_p its logarithm in nats, nll −log p; a log_p of −inf is null in JSON. A token's rank
is one more than the number of likelier tokens; of several that are likeliest together, one has rank 1 and the others 2.
"""

from dataclasses import dataclass
from typing import Any, Literal

from translume.inspection.plain import from_plain, plain
from translume.reliability import Reliability


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView:
    """One pair, by its line from 1.

    log_p: of the target with its end mark, given the source.  tokens: of the target, the end mark counted.
    gain: (log p(y|x) − log p(y)) / tokens, what the source says for the target, y without a source being the target
    after a blank one; about zero or below for a target that has nothing to do with its source. None where one is −∞.
    worst: the target's token of the lowest probability, and worst_log_p its log p.
    """

    line: int
    source: str
    target: str
    log_p: float
    tokens: int
    gain: float | None
    worst: str
    worst_log_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCount:
    """How many reference tokens had a rank up to `most` (and above the group before); None: any rank."""

    most: int | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceView:
    """Reference tokens at a place from 1 (the last: from there on): how many, mean entropy and mean nll, in nats.

    entropy: of all steps there; None where the head gives no distribution, as nll, which is None too where a token is
    impossible.
    """

    place: int
    tokens: int
    entropy: float | None
    nll: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BandView:
    """Tokens of like frequency, from `least` to `most` occurrences (None: any more); the end mark is in none.

    types: how many tokens of the vocabulary references hold of it.  tokens: reference tokens.  nll: of these, and
    first: the share of them that was the likeliest token; None where there are none (nll: as in PlaceView).
    reliability: of the steps whose likeliest token is of this band, however frequent the reference's is: were it by
    the reference's, a model that is as sure as it should be would look too sure of rare tokens. None without steps.
    """

    least: int
    most: int | None
    types: int
    tokens: int
    nll: float | None
    first: float | None
    reliability: Reliability | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverPredicted:
    """A token that references hold `tokens` times and that was nowhere in the corpus the likeliest one."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A part of a reference that two models judge differently: its log p by the model and by the other one.

    before: the reference until there.  text: the part; empty for the end mark.
    """

    line: int
    source: str
    before: str
    text: str
    log_p: float
    other_log_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What a model says where two translations part: its own `text` (empty: it ends) with its log p, and what log p it
    gives to what the other one says.
    """

    text: str
    log_p: float
    of_other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where two models' translations of a source part: what they share until there, and what each says of it."""

    line: int
    source: str
    shared: str
    text: str
    other_text: str
    own: Opinion
    other: Opinion


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusComparison:
    """Two models on one corpus: of the same references, and of their own translations.

    unit: what is compared. "token" where both cut targets alike; "piece" where they do not: what stands between two
    places at which both cut, whose log p is the sum over either model's tokens.
    log_p, other_log_p: of all references.  better, worse: pairs whose reference the model gives more, less than the
    other one.  gaps: where they differ most about references.
    same: pairs that both translate alike.  partings: of the others, those where each is surest of its own against the
    other's, by the sum of both models' differences.
    """

    unit: Literal["token", "piece"]
    pairs: int
    log_p: float
    other_log_p: float
    better: int
    worse: int
    gaps: tuple[Gap, ...]
    same: int
    partings: tuple[Parting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusLens:
    """A corpus as a model sees it, under forced decoding.

    too_long: pairs that were left out because a side is longer than the model reads, first_too_long the first one's
    line.  normalised: whether the head gives a distribution.  nll: a token; None where it does not or a token is
    impossible.  impossible: reference tokens without any probability.
    reliability: of the likeliest token of every step.  end: of the end mark at every step: how sure, and whether the
    reference ends there.
    frequency: whether bands go by how often a token stands in the training targets, or in the corpus's own.
    suspects: the pairs of the smallest gain, smallest first, impossible ones before: likely misaligned.
    hardest: the pairs of the lowest log p a token.
    types: distinct reference tokens.  never_types: how many of them were never the likeliest anywhere in the corpus,
    never_tokens their occurrences; never_predicted: the most frequent ones first.
    """

    schema: Literal["corpus/2"]
    pairs: int
    too_long: int
    first_too_long: int | None
    tokens: int
    normalised: bool
    nll: float | None
    impossible: int
    reliability: Reliability
    end: Reliability
    frequency: Literal["training", "corpus"]
    bands: tuple[BandView, ...]
    ranks: tuple[RankCount, ...]
    places: tuple[PlaceView, ...]
    suspects: tuple[PairView, ...]
    hardest: tuple[PairView, ...]
    types: int
    never_types: int
    never_tokens: int
    never_predicted: tuple[NeverPredicted, ...]
    comparison: CorpusComparison | None

    def to_dict(self) -> dict[str, Any]:
        """The lens as JSON knows it."""
        content: dict[str, Any] = plain(self)
        return content

    @classmethod
    def from_dict(cls, content: object) -> "CorpusLens":
        """What `to_dict` wrote; DataError for anything else."""
        return from_plain(cls, content)
