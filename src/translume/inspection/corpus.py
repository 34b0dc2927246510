"""The corpus lens: calibration, ranks, frequencies and suspicious pairs of a corpus, under forced decoding.

p is a probability, log_p its logarithm in nats, nll is −log p; a log_p of −inf is null in JSON. The rank of a token is
one more than the number of likelier tokens; if several tokens tie for the first place, one has rank 1, the others 2.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, TypeVar

import torch
from pydantic import TypeAdapter
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.errors import DataError, suggest_keywords
from translume.inspection.json_values import Document, to_json_values
from translume.reliability import BINS, Bins, Reliability
from translume.text import Tokenizer
from translume.translator import TargetScore, Translator
from translume.translator.jobs import Job
from translume.translator.planning import Line, LineError, Reading, windows
from translume.translator.scoring import ScoredPair, TokenBeliefs, beliefs_of_pairs, score_lines, score_pairs


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

    def to_dict(self) -> dict[str, Any]:
        """Return the pair as a JSON object."""
        values: dict[str, Any] = to_json_values(self)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCount:
    """Reference tokens with a rank of at most `most`, and above the previous group's; None: no upper bound."""

    most: int | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceView:
    """Reference tokens at one position, from 1, with means in nats.

    and_later: whether the tokens at all later positions are included, as at the last one, 30.  entropy: of the
    predicted distributions; None if the head gives no distribution.  nll: None in the same case, and if a token is
    impossible.
    """

    place: int
    tokens: int
    entropy: float | None
    nll: float | None
    and_later: bool


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
    truncated: pairs whose source was cut, as in training.
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
    truncated: int
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


WINDOW_LINES = 512
"""Pairs processed together; per-token numbers are kept in memory for this many pairs at a time."""

ProgressCallback = Callable[[int], object]
"""Called with the number of pairs processed since the last call."""
RANKS = (1, 2, 5, 10, 100)
"""Upper bounds of the rank groups; one more group holds all higher ranks."""
PLACES = 30
"""Target positions with statistics of their own; the last one includes all further positions."""
BANDS = (0, 9, 99, 999, 9_999, 99_999)
"""Upper bounds of the frequency bands; one more band holds all higher frequencies."""

T = TypeVar("T")


class Smallest(Generic[T]):
    """The `most` entries with the smallest values, smallest first; earlier entries win ties."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: list[float] = []
        self._entries: list[T] = []

    def accepts(self, value: float) -> bool:
        """Return whether an entry of this value would be kept."""
        return len(self._values) < self._most or (self._most > 0 and value < self._values[-1])

    def add(self, value: float, entry: T) -> None:
        """Add an entry if its value is small enough."""
        place = bisect_right(self._values, value)
        self._values.insert(place, value)
        self._entries.insert(place, entry)
        del self._values[self._most :], self._entries[self._most :]

    def entries(self) -> tuple[T, ...]:
        """Return the kept entries."""
        return tuple(self._entries)


class TokenStatistics:
    """Sums over all reference tokens of a corpus; memory is proportional to the vocabulary, not the corpus."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        size = len(tokenizer)
        self.tokenizer, self.end_mark = tokenizer, tokenizer.specials.eos
        self.tokens = 0
        self.impossible = 0
        self.normalised = True
        self.nll = 0.0
        self.bins = Bins(BINS, size)  # grouped by the likeliest token
        self.ends = Bins()
        self._references = torch.zeros(size, 3, dtype=torch.float64)  # by token: count, count at rank 1, nll
        self._predicted = torch.zeros(size, dtype=torch.bool)
        self._ranks = torch.zeros(len(RANKS) + 1, dtype=torch.long)
        self._places = torch.zeros(PLACES, 3, dtype=torch.float64)  # count, entropy, nll

    def add(self, judged: TokenBeliefs) -> Tensor:
        """Add the statistics of m tokens; return their log p [m], on the CPU."""
        belief, labels = judged.belief, judged.labels
        log_probs = belief.log_probs()
        own = log_probs.gather(1, labels[:, None])[:, 0]
        confidence, best = log_probs.max(-1)
        ended = log_probs[:, self.end_mark].exp()
        above = (log_probs > own[:, None]).count_nonzero(-1).cpu()
        # Clamp so that p = 0 contributes 0, not 0 · −∞ = NaN.
        least = torch.finfo(log_probs.dtype).min
        entropy = -log_probs.exp().mul_(log_probs.clamp(min=least)).sum(-1).double().cpu()
        labels, best, own = labels.cpu(), best.cpu(), own.double().cpu()
        right = best == labels
        rank = torch.where(right, 1, above.clamp(min=1) + 1)
        self.bins.add(confidence.exp(), right, best)
        self.ends.add(ended, labels == self.end_mark)
        self.normalised = self.normalised and belief.normalised
        self.tokens += len(labels)
        self.impossible += int(own.isneginf().sum())
        self.nll -= float(own.sum())
        self._predicted[best] = True
        one = torch.ones_like(own)
        self._references.index_add_(0, labels, torch.stack([one, right.double(), -own], 1))
        self._ranks += torch.bucketize(rank, torch.tensor(RANKS)).bincount(minlength=len(RANKS) + 1)
        places = judged.places.cpu().clamp(max=PLACES - 1)
        self._places.index_add_(0, places, torch.stack([one, entropy, -own], 1))
        return own

    def mean(self, nll: float, tokens: float) -> float | None:
        """Return the mean nll per token; None if it is undefined."""
        return nll / tokens if self.normalised and tokens and nll < torch.inf else None

    def ranks(self) -> tuple[RankCount, ...]:
        """Return the number of tokens in each rank group."""
        return tuple(
            RankCount(most=most, tokens=count) for most, count in zip((*RANKS, None), self._ranks.tolist(), strict=True)
        )

    def places(self) -> tuple[PlaceView, ...]:
        """Return entropy and nll by position."""
        return tuple(
            PlaceView(
                place=number,
                tokens=int(tokens),
                entropy=entropy / tokens if self.normalised else None,
                nll=self.mean(nll, tokens),
                and_later=number == PLACES,
            )
            for number, (tokens, entropy, nll) in enumerate(self._places.tolist(), start=1)
            if tokens
        )

    def bands(self, frequencies: Tensor | None) -> tuple[BandView, ...]:
        """Group tokens by `frequencies` [V] (default: their count in the corpus); empty bands are left out."""
        counts = self._references[:, 0] if frequencies is None else frequencies
        band = torch.bucketize(counts.long(), torch.tensor(BANDS))
        band[self.end_mark] = -1
        views = []
        for number, (least, most) in enumerate(zip((0, *(each + 1 for each in BANDS)), (*BANDS, None), strict=True)):
            ids = (band == number).nonzero()[:, 0]
            tokens, first, nll = self._references[ids].sum(0).tolist()
            steps = bool(self._predicted[ids].any())
            if not tokens and not steps:
                continue
            views.append(
                BandView(
                    least=least,
                    most=most,
                    types=int((self._references[ids, 0] > 0).sum()),
                    tokens=int(tokens),
                    nll=self.mean(nll, tokens),
                    first=first / tokens if tokens else None,
                    reliability=self.bins.reliability(ids) if steps else None,
                )
            )
        return tuple(views)

    def types(self) -> int:
        """Return the number of distinct reference tokens."""
        return int((self._references[:, 0] > 0).sum())

    def never_predicted(self) -> tuple[NeverPredicted, ...]:
        """Return reference tokens that were never the likeliest, most frequent first, ties by smaller id."""
        counts = self._references[:, 0].masked_fill(self._predicted, 0.0)
        ids = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
        names = self.tokenizer.tokens(ids.tolist())
        return tuple(
            NeverPredicted(text=name, tokens=int(count))
            for name, count in zip(names, counts[ids].tolist(), strict=True)
        )


@suggest_keywords
def inspect_corpus(
    translator: Translator,
    pairs: Iterable[tuple[str, str]],
    *,
    show: int = 10,
    frequencies: Sequence[int] | None = None,
    progress: ProgressCallback | None = None,
) -> CorpusLens:
    """Compute corpus statistics of a model's predictions for any number of pairs, with `show` entries per list.

    frequencies [V]: how often each target token occurs in the training targets (default: in the corpus itself).
    Pairs with a side that is longer than the model reads are left out and counted. Raises DataError if no pair is left
    or if `frequencies` does not have one entry per token.
    """
    statistics = TokenStatistics(translator.checkpoint.target_tokenizer)
    known = None if frequencies is None else torch.as_tensor(frequencies)
    size = len(statistics.tokenizer)
    if known is not None and known.shape != (size,):
        raise DataError(f"corpus: found {len(known):,} frequencies, expected {size:,}, one for each token")
    suspects, hardest = Smallest[PairView](show), Smallest[PairView](show)
    lengths = LengthFilter(translator.checkpoint)
    count = 0
    for window in windows(lengths.of(numbered(pairs)), lines=WINDOW_LINES):
        _add_window(translator, window, statistics, suspects, hardest, progress)
        count += len(window)
    lengths.check_not_empty(count)
    never = statistics.never_predicted()
    return CorpusLens(
        schema="corpus/2",
        pairs=count,
        too_long=lengths.too_long,
        first_too_long=lengths.first,
        truncated=lengths.truncated,
        tokens=statistics.tokens,
        normalised=statistics.normalised,
        nll=statistics.mean(statistics.nll, statistics.tokens),
        impossible=statistics.impossible,
        reliability=statistics.bins.reliability(),
        end=statistics.ends.reliability(),
        frequency="corpus" if known is None else "training",
        bands=statistics.bands(known),
        ranks=statistics.ranks(),
        places=statistics.places(),
        suspects=suspects.entries(),
        hardest=hardest.entries(),
        types=statistics.types(),
        never_types=len(never),
        never_tokens=sum(each.tokens for each in never),
        never_predicted=never[:show],
        comparison=None,
    )


def judge_lines(translator: Translator, lines: Sequence[Line], settings: DecodingSettings) -> Iterator[PairView]:
    """Yield what `inspect_corpus` lists about a pair for the target of each line, in order.

    Raises LineError for the first line that cannot be scored, after those before it.
    """
    scores, failed = list[TargetScore](), None
    try:
        for score in score_lines(translator.checkpoint, lines, settings, translator.models):
            scores.append(score)
    except LineError as error:
        failed = error
    scored = lines[: len(scores)]
    blank = [replace(line, text="") for line in scored]
    priors = score_lines(translator.checkpoint, blank, settings, translator.models)
    for line, score, prior in zip(scored, scores, priors, strict=True):
        gain = (score.log_prob - prior.log_prob) / len(score.tokens)
        worst = min(range(len(score.tokens)), key=score.token_log_probs.__getitem__)
        yield PairView(
            line=line.number,
            source=line.text,
            target=line.target or "",
            log_p=score.log_prob,
            tokens=len(score.tokens),
            gain=gain if -torch.inf < gain < torch.inf else None,
            worst=score.tokens[worst],
            worst_log_p=score.token_log_probs[worst],
        )
    if failed is not None:
        raise failed


JUDGE: Final = Job(name=f"{__name__}:JUDGE", results=TypeAdapter(list[PairView]), run=judge_lines)
"""What is listed about each pair of a corpus, for filtering. Settings as for `SCORE`."""


def numbered(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[int, ScoredPair]]:
    """Yield pairs with their line numbers, from 1."""
    for line, (source, target) in enumerate(pairs, start=1):
        yield line, ScoredPair(place=f"line {line}", source=source, target=target)


class LengthFilter:
    """Skip and count pairs that are longer than some model reads, and count sources that some model cuts."""

    def __init__(self, *checkpoints: Checkpoint) -> None:
        self.checkpoints = checkpoints
        self.too_long = self.truncated = 0
        self.first: int | None = None

    def of(self, pairs: Iterable[tuple[int, ScoredPair]]) -> Iterator[tuple[tuple[int, ScoredPair], int]]:
        """Yield the pairs that all models can read, with their sizes in characters."""
        for line, pair in pairs:
            if all(can_read(checkpoint, pair) for checkpoint in self.checkpoints):
                self.truncated += any(cuts_source(checkpoint, pair) for checkpoint in self.checkpoints)
                yield (line, pair), len(pair.source) + len(str(pair.target))
            else:
                self.too_long += 1
                self.first = self.first or line

    def check_not_empty(self, left: int) -> None:
        """Raise DataError if no pair is left."""
        if left:
            return
        if self.too_long:
            raise DataError(f"corpus: all {self.too_long:,} pairs are longer than the model reads")
        raise DataError("corpus: found no pairs, expected at least one")


def can_read(checkpoint: Checkpoint, pair: ScoredPair) -> bool:
    """Return whether both sides are short enough for a model, or the source is cut. Files are not read here."""
    model = checkpoint.config.model
    sides = [(checkpoint.target_tokenizer, str(pair.target), model.target_tags)]
    reading = Reading.of(checkpoint, checkpoint.config.decoding, pair.direction)
    if reading.reader is None and not reading.cuts_lines:
        sides.append((checkpoint.source_tokenizer, pair.source, model.source_tags))
    return all(len(tokenizer.encode(text)) + tags < model.max_positions for tokenizer, text, tags in sides)


def cuts_source(checkpoint: Checkpoint, pair: ScoredPair) -> bool:
    """Return whether a model reads only a part of the source."""
    reading = Reading.of(checkpoint, checkpoint.config.decoding, pair.direction)
    return reading.cuts_lines and len(checkpoint.source_tokenizer.encode(pair.source)) > reading.limit


@torch.no_grad()
def _add_window(
    translator: Translator,
    window: Sequence[tuple[int, ScoredPair]],
    statistics: TokenStatistics,
    suspects: Smallest[PairView],
    hardest: Smallest[PairView],
    progress: ProgressCallback | None,
) -> None:
    """Add the statistics of some pairs, and keep the worst of them."""
    checkpoint, most = translator.checkpoint, translator.config.decoding.max_tokens
    pairs = [pair for _, pair in window]
    found = []
    for judged in beliefs_of_pairs(checkpoint, pairs, most, models=translator.models):
        found.append((judged.pairs.cpu(), judged.labels.cpu(), statistics.add(judged)))
        if progress is not None:
            progress(int((found[-1][1] == statistics.end_mark).sum()))  # one end mark per target
    where, labels, own = (torch.cat(parts) for parts in zip(*found, strict=True))
    lengths = where.bincount(minlength=len(pairs))
    order = where.argsort(stable=True)
    own_of, labels_of = (torch.split(each[order], lengths.tolist()) for each in (own, labels))
    log_p = torch.stack([each.sum() for each in own_of])
    blank = [replace(pair, without_source=True) for pair in pairs]
    prior = torch.tensor(
        [each.log_prob for each in score_pairs(checkpoint, blank, most, translator.models)], dtype=torch.float64
    )
    # An impossible target ranks first, whatever its probability without the source.
    gain = torch.where(log_p.isneginf(), log_p, log_p - prior) / lengths

    def view(index: int) -> PairView:
        worst = int(own_of[index].argmin())
        line, pair = window[index]
        value = float(gain[index])
        return PairView(
            line=line,
            source=pair.source,
            target=str(pair.target),
            log_p=float(log_p[index]),
            tokens=int(lengths[index]),
            gain=value if -torch.inf < value < torch.inf else None,
            worst=statistics.tokenizer.tokens([int(labels_of[index][worst])])[0],
            worst_log_p=float(own_of[index][worst]),
        )

    for values, kept in ((gain, suspects), (log_p / lengths, hardest)):
        for value, index in zip(*(each.tolist() for each in values.sort(stable=True)), strict=True):
            if not kept.accepts(value):
                break
            kept.add(value, view(index))
