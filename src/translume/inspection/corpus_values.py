"""Results of the corpus lens and of comparing two models, as dataclasses that convert to JSON.

p is a probability, log_p its logarithm in nats, nll is −log p; a log_p of −inf is null in JSON. The rank of a token is
one more than the number of likelier tokens; if several tokens tie for the first place, one has rank 1, the others 2.
"""

from dataclasses import dataclass
from typing import Literal

from translume.inspection.plain import Document
from translume.reliability import Reliability


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView:
    """One pair of the corpus; lines count from 1.

    log_p: of the target with its end mark, given the source.  tokens: of the target, with the end mark.
    gain: (log p(y|x) − log p(y)) / tokens, where p(y) is the probability after an empty source. About zero or negative
    for a target that is unrelated to its source; None if either is −∞.
    worst: the target token with the lowest probability; worst_log_p: its log p.
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
    """Reference tokens with a rank of at most `most`, and above the previous group's; None: no upper bound."""

    most: int | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceView:
    """Reference tokens at one position (from 1; the last view holds all further ones), with means in nats.

    entropy: of the predicted distributions; None if the head gives no distribution.  nll: None in the same case, and if
    a token is impossible.
    """

    place: int
    tokens: int
    entropy: float | None
    nll: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BandView:
    """Tokens of similar frequency, from `least` to `most` occurrences (None: no upper bound), without the end mark.

    types: distinct reference tokens in this band.  tokens: their occurrences in the references.  nll: their mean nll.
    first: the fraction that was the likeliest token. Both are None without tokens (nll also as in PlaceView).
    reliability: of the steps whose likeliest token is in this band. Banding by the reference's token would make a
    well-calibrated model look overconfident on rare tokens. None without steps.
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
    """A token that occurs `tokens` times in the references but was never the likeliest one at any step."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A part of a reference to which two models give different log p.

    before: the reference up to the part.  text: the part; empty for the end mark.
    """

    line: int
    source: str
    before: str
    text: str
    log_p: float
    other_log_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How one model continues where two translations diverge.

    text: its own continuation (empty: the end mark).  log_p: by this model.  of_other: this model's log p of the other
    model's continuation.
    """

    text: str
    log_p: float
    of_other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where the translations of two models diverge: the shared beginning, and how each model continues."""

    line: int
    source: str
    shared: str
    text: str
    other_text: str
    own: Continuation
    other: Continuation


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusComparison:
    """Two models compared on one corpus: on its references, and on the models' own translations.

    unit: "token" if both models split targets into the same tokens; else "piece": the text between two positions where
    both tokenizers split, whose log p is the sum over the tokens of either model.
    log_p, other_log_p: of all references.  better, worse: pairs whose reference is more, less probable under the first
    model.  gaps: the parts of references with the largest differences.
    same: pairs with equal translations.  partings: the divergences of the other pairs for which the two models disagree
    most, by the sum of both models' differences in log p.
    """

    unit: Literal["token", "piece"]
    pairs: int
    log_p: float
    other_log_p: float
    better: int
    worse: int
    gaps: tuple[Gap, ...]
    same: int
    partings: tuple[Divergence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusLens(Document):
    """Statistics of a model's predictions on a parallel corpus, under forced decoding.

    too_long: pairs left out because a side exceeds the model's length; first_too_long: the line of the first one.
    normalised: whether the head gives a distribution.  nll: per token; None if not normalised or if a token is
    impossible.  impossible: reference tokens of probability 0.
    reliability: of the likeliest token of every step.  end: of p(end) at every step, right if the reference ends there.
    frequency: whether bands count tokens in the training targets or in this corpus.
    suspects: pairs with the smallest gain, smallest first, impossible ones before; likely misaligned.
    hardest: pairs with the lowest log p per token.
    types: distinct reference tokens.  never_types: those that were never the likeliest token; never_tokens: their
    occurrences; never_predicted: the most frequent ones first.
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
