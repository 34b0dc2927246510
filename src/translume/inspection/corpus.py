"""The corpus lens: calibration, ranks, frequencies and suspicious pairs of a corpus, under forced decoding.

p is a probability, log_p its logarithm in nats, nll is −log p. The rank of a token is
one more than the number of likelier tokens; if several tokens tie for the first place, one has rank 1, the others 2.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.errors import DataError, suggest_keywords
from translume.evaluation.calibration import CalibrationSums
from translume.inspection.passes import entropies
from translume.inspection.values import BandView, CorpusLens, NeverPredicted, PairView, PlaceView, RankCount
from translume.lazy import Tensor, no_grad, torch
from translume.text import Tokenizer
from translume.translator import Translator
from translume.translator.planning import Line, Reading, windows
from translume.translator.scoring import ScoredPair, TokenBeliefs, beliefs_of_pairs, score_pairs

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
        self.tokenizer = tokenizer
        self.sums = CalibrationSums(tokenizer.specials.eos, size)
        self._references = torch.zeros(size, 3, dtype=torch.float64)  # by token: count, count at rank 1, nll
        self._predicted = torch.zeros(size, dtype=torch.bool)
        self._ranks = torch.zeros(len(RANKS) + 1, dtype=torch.long)
        self._places = torch.zeros(PLACES, 3, dtype=torch.float64)  # count, entropy, nll

    def add(self, judged: TokenBeliefs) -> Tensor:
        """Add the statistics of m tokens; return their log p [m], on the CPU."""
        log_probs, best, own = self.sums.add(judged.belief, judged.labels)
        above = (log_probs > own[:, None].to(log_probs.dtype)).count_nonzero(-1).cpu()
        entropy = entropies(log_probs).double().cpu()
        labels, best, own = judged.labels.cpu(), best.cpu(), own.cpu()
        right = best == labels
        rank = torch.where(right, 1, above.clamp(min=1) + 1)
        self._predicted[best] = True
        one = torch.ones_like(own)
        self._references.index_add_(0, labels, torch.stack([one, right.double(), -own], 1))
        self._ranks += torch.bucketize(rank, torch.tensor(RANKS)).bincount(minlength=len(RANKS) + 1)
        self._places.index_add_(0, judged.places.cpu().clamp(max=PLACES - 1), torch.stack([one, entropy, -own], 1))
        return own

    def mean(self, nll: float, tokens: float) -> float | None:
        """Return the mean nll per token; None if it is undefined."""
        return nll / tokens if self.sums.normalised and tokens and nll < torch.inf else None

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
                entropy=entropy / tokens if self.sums.normalised else None,
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
        band[self.sums.eos] = -1
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
                    reliability=self.sums.tokens.reliability(ids) if steps else None,
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
        return tuple(
            NeverPredicted(text=name, tokens=int(count))
            for name, count in zip(self.tokenizer.tokens(ids.tolist()), counts[ids].tolist(), strict=True)
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
    for window in windows(lengths.readable(numbered(pairs)), lines=WINDOW_LINES):
        _add_window(translator, window, statistics, suspects, hardest, progress)
        count += len(window)
    lengths.check_not_empty(count)
    never, sums = statistics.never_predicted(), statistics.sums
    return CorpusLens(
        schema="corpus/2",
        pairs=count,
        too_long=lengths.too_long,
        first_too_long=lengths.first,
        truncated=lengths.truncated,
        tokens=sums.count,
        normalised=sums.normalised,
        nll=None if sums.impossible else statistics.mean(sums.nll, sums.count),
        impossible=sums.impossible,
        reliability=sums.tokens.reliability(),
        end=sums.ends.reliability(),
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


def judge_lines(translator: Translator, lines: Sequence[Line], settings: DecodingSettings) -> list[PairView]:
    """What `inspect_corpus` lists about a pair for the target of each line, in order.

    Raises LineError for a line that cannot be scored.
    """
    scores = translator.score_lines(lines, settings)
    priors = translator.score_lines([replace(line, text="") for line in lines], settings)
    return [
        _pair_view(line.number, line.text, line.target or "", score.token_log_probs, score.tokens, prior.log_prob)
        for line, score, prior in zip(lines, scores, priors, strict=True)
    ]


def numbered(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[int, ScoredPair]]:
    """Yield pairs with their line numbers, from 1."""
    for line, pair in enumerate(pairs, start=1):
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
            raise TypeError(f"pairs: line {line}: found {pair!r:.60}, expected two strings, a source and its target")
        source, target = pair
        yield line, ScoredPair(place=f"line {line}", source=source, target=target)


class LengthFilter:
    """Skip and count pairs that are longer than some model reads, and count sources that some model cuts."""

    def __init__(self, *checkpoints: Checkpoint) -> None:
        self.checkpoints = checkpoints
        self.too_long = self.truncated = 0
        self.first: int | None = None

    def readable(self, pairs: Iterable[tuple[int, ScoredPair]]) -> Iterator[tuple[tuple[int, ScoredPair], int]]:
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
    sides = [(checkpoint.target_tokenizer, str(pair.target), model.max_positions - model.target_tags)]
    reading = Reading.from_settings(checkpoint, checkpoint.config.decoding, pair.direction)
    if reading.reader is None and not reading.cuts_lines:
        sides.append((checkpoint.source_tokenizer, pair.source, checkpoint.config.longest_source - model.source_tags))
    return all(len(tokenizer.encode(text)) < longest for tokenizer, text, longest in sides)


def cuts_source(checkpoint: Checkpoint, pair: ScoredPair) -> bool:
    """Return whether a model reads only a part of the source."""
    reading = Reading.from_settings(checkpoint, checkpoint.config.decoding, pair.direction)
    return reading.cuts_lines and len(checkpoint.source_tokenizer.encode(pair.source)) > reading.limit


@no_grad()
def _add_window(
    translator: Translator,
    window: Sequence[tuple[int, ScoredPair]],
    statistics: TokenStatistics,
    suspects: Smallest[PairView],
    hardest: Smallest[PairView],
    progress: ProgressCallback | None,
) -> None:
    """Add the statistics of some pairs, and keep the worst of them."""
    checkpoint, max_tokens = translator.checkpoint, translator.config.decoding.max_tokens
    pairs = [pair for _, pair in window]
    batches = []
    for judged in beliefs_of_pairs(checkpoint, pairs, max_tokens, models=translator.models):
        batches.append((judged.pairs.cpu(), judged.labels.cpu(), statistics.add(judged)))
        if progress is not None:
            progress(int((batches[-1][1] == statistics.sums.eos).sum()))  # one EOS per target
    where, labels, own = (torch.cat(parts) for parts in zip(*batches, strict=True))
    lengths = where.bincount(minlength=len(pairs))
    order = where.argsort(stable=True)
    own_of, labels_of = (torch.split(each[order], lengths.tolist()) for each in (own, labels))
    log_p = torch.stack([each.sum() for each in own_of])
    blank = [replace(pair, without_source=True) for pair in pairs]
    prior = torch.tensor(
        [each.log_prob for each in score_pairs(checkpoint, blank, max_tokens, translator.models)], dtype=torch.float64
    )
    # An impossible target ranks first, whatever its probability without the source.
    gain = torch.where(log_p.isneginf(), log_p, log_p - prior) / lengths
    for values, kept in ((gain, suspects), (log_p / lengths, hardest)):
        for value, index in zip(*(each.tolist() for each in values.sort(stable=True)), strict=True):
            if not kept.accepts(value):
                break
            (line, pair), tokens = window[index], statistics.tokenizer.tokens(labels_of[index].tolist())
            log_probs, without = own_of[index].tolist(), float(prior[index])
            kept.add(value, _pair_view(line, pair.source, str(pair.target), log_probs, tokens, without))


def _pair_view(
    line: int, source: str, target: str, log_probs: Sequence[float], tokens: Sequence[str], prior: float
) -> PairView:
    """Return the view of a pair; log_probs: of each of the target's tokens.  prior: log p(y) after an empty source."""
    log_p = sum(log_probs)
    gain = (log_p - prior) / len(tokens)
    worst = min(range(len(tokens)), key=log_probs.__getitem__)
    return PairView(
        line=line,
        source=source,
        target=target,
        log_p=log_p,
        tokens=len(tokens),
        gain=gain if math.isfinite(gain) else None,
        worst=tokens[worst],
        worst_log_p=log_probs[worst],
    )
