"""Batches of few shapes, for devices on which every new shape costs time.

A bucket is the shape of a batch: `choose_buckets` chooses a few from the lengths of a corpus, and `BucketPlan` divides
the pairs of an epoch among them. A pair goes to the smallest bucket that holds it. Rows without a pair fill up a batch
that has too few; since that would waste much of a small corpus, the pairs of a bucket that do not fill a whole batch
move on to larger buckets where this takes fewer tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from translume.data.batch import Batch
from translume.data.corpus import TokenizedCorpus
from translume.data.plan import BatchPlan, shuffled_items, widths_of
from translume.text import Tokenizer

MAX_BUCKETS: Final = 16
"""Maximum number of buckets."""
EDGES: Final = 48
"""Maximum number of lengths of a side among which those of the buckets are chosen."""
TRIALS: Final = 500
"""Maximum number of changes of the buckets that are tried: a number, since a time would differ between machines."""
STEPS: Final = (1, -1, 2, -2, 3, -3)
"""By how many of these lengths the length of a bucket is changed."""
SAVING: Final = 500
"""A further bucket must save at least this part of the tokens, 1 / 500, since every shape is compiled."""
GROWTH: Final = 3.0
"""A plan takes sides to be longer by this multiple of the probability of BPE-dropout; Multi30k's are, by 3.0 to 3.4."""
_CHUNK = 1 << 18
_NEVER = 1 << 60
_NOWHERE = 1 << 29
"""Tokens in a row of a bucket that does not exist."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bucket:
    """The shape of a batch: `rows` sources of S = `source` and targets of T = `target` tokens, padding included.

    frames: number of frames L of a source, of which the encoder makes S positions; 0 if sources are ids.
    """

    source: int
    target: int
    rows: int
    frames: int = 0

    @property
    def width(self) -> int:
        """Number of tokens of a row: S + T."""
        return self.source + self.target

    def tokens(self, pairs: int) -> int:
        """Return the number of tokens of the batches that so many pairs take, padding included."""
        return -(-pairs // self.rows) * self.rows * self.width


class BucketPlan(BatchPlan):
    """The batches of one epoch in few shapes, otherwise as `BatchPlan`.

    buckets: the shapes.  padding: share of padding among the tokens of all sources and targets of the epoch, rows
    without pairs included. Batches depend on corpus, settings, seed and epoch only.
    With subword dropout p, a plan takes each side to be longer by `GROWTH` · p, and `padding` does so too. If a new
    segmentation does not fit the batch, one is drawn with p/2; if that does not fit either, the side keeps its ids.

    Takes 22 bytes per pair during construction, then 4. Raises SettingsError if a single pair exceeds `max_tokens`.
    """

    _attempts = 2

    def __init__(
        self,
        corpus: TokenizedCorpus,
        *,
        max_tokens: int,
        seed: int,
        epoch: int,
        dropout: float = 0.0,
        buckets: Sequence[Bucket] = (),
    ) -> None:
        """buckets: those that `choose_buckets` returned for the corpus or a sample of it; empty: it is called here."""
        chosen = buckets or choose_buckets(corpus, max_tokens=max_tokens, dropout=dropout)
        self.buckets = tuple(sorted(chosen, key=_rank))
        corpus = self.corpus = corpus.of_epoch(seed, epoch)
        self.seed, self.epoch, self.dropout = seed, epoch, dropout
        self._lengths = _Lengths(corpus, max_tokens, dropout)
        generator = np.random.default_rng([seed, epoch])
        items = shuffled_items(corpus, generator)
        cells = _Cells(self.buckets)
        cell, tokens = np.empty(len(items), np.uint8), 0
        for begin in range(0, len(items), _CHUNK):
            source, target = self._lengths.of_pairs(items[begin : begin + _CHUNK])
            cell[begin : begin + _CHUNK] = cells.indices(source, target)
            tokens += int(source.sum() + target.sum())
        counts = np.bincount(cell, minlength=len(cells))
        amounts = _allot(counts, cells, self.buckets)
        self._order = _grouped(items[np.argsort(cell, kind="stable")], counts, amounts)
        bounds: list[Numbers] = []  # [batches, 3] of each bucket: begin and end in the order, index of the bucket
        padded = end = 0
        for k, (bucket, count) in enumerate(zip(self.buckets, amounts.sum(1).tolist(), strict=True)):
            begin, end = end, end + count
            generator.shuffle(self._order[begin:end])
            starts = np.arange(begin, end, bucket.rows)
            bounds.append(np.stack([starts, np.minimum(starts + bucket.rows, end), np.full_like(starts, k)], 1))
            padded += bucket.tokens(count)
        self._bounds = generator.permutation(np.concatenate(bounds))
        self.padding = 1 - tokens / padded

    def __len__(self) -> int:
        return len(self._bounds)

    def bucket(self, index: int) -> Bucket:
        """Return the shape of the batch at a position of the epoch."""
        return self.buckets[int(self._bounds[index, 2])]

    def numbers(self, index: int) -> NDArray[np.uint32]:
        """Return the numbers of the pairs or blocks in the batch at a position, at most as many as it has rows."""
        begin, end, _ = self._bounds[index]
        return self._order[begin:end]

    def batch(self, index: int, rows: slice = slice(None)) -> Batch:
        """Return the batch at a position of the epoch, from 0, with all rows of its bucket. Thread-safe.

        rows: of `slice(rank, None, size)`, for processes that share a batch, each has ⌈rows / size⌉, with or without
        pairs.
        """
        bucket, numbers = self.bucket(index), self.numbers(index)
        chosen = numbers[rows]
        added = self._lengths.added
        batch = self._read(chosen if len(chosen) else numbers[:1], (bucket.source - added[0], bucket.target - added[1]))
        return self._filled(batch if len(chosen) else batch.without_rows(), bucket, rows)

    def _filled(self, batch: Batch, bucket: Bucket, rows: slice) -> Batch:
        """Return a batch with the shape of a bucket, or of the part of it that `rows` are."""
        classes, vocabulary = self.corpus.task.predicts == "classes", self.corpus.target_tokenizer
        return batch.filled(
            -(-(rows.stop or bucket.rows) // (rows.step or 1)),
            bucket.frames or bucket.source,
            bucket.target,
            source_specials=self.corpus.source_tokenizer.specials,
            target_specials=None if classes else cast(Tokenizer, vocabulary).specials,
        )

    def examples(self, rows: slice = slice(None)) -> list[Batch]:
        """Return a batch of each bucket, one without pairs if the epoch has none.  rows: as for `batch`.

        The shapes are those of all epochs, so that what is made for them does not depend on when it is made.
        """
        places, first = np.unique(self._bounds[:, 2], return_index=True)
        first_of = dict(zip(places.tolist(), first.tolist(), strict=True))
        nothing = self.batch(0).without_rows()
        return [
            self.batch(first_of[number], rows) if number in first_of else self._filled(nothing, bucket, rows)
            for number, bucket in enumerate(self.buckets)
        ]

    def summary(self) -> str:
        """Return a description such as "batches in 12 shapes, 11.3 % padding"."""
        shapes = f"{len(self.buckets)} shape{'s' if len(self.buckets) > 1 else ''}"
        return f"batches in {shapes}, {100 * self.padding:.1f} % padding"


def choose_buckets(
    corpus: TokenizedCorpus,
    *,
    max_tokens: int,
    dropout: float = 0.0,
    widest: tuple[int, int] | None = None,
    scale: float = 1.0,
) -> tuple[Bucket, ...]:
    """Return at most `MAX_BUCKETS` buckets that hold all pairs of a corpus with little padding.

    They depend only on the lengths and weights of the pairs and on the other arguments. Of buckets of simple
    kinds, those with which a plan has the least padding are improved.
    widest: longest source and target, without marks and tags, that a bucket must hold for pairs outside the corpus.
    scale: number of pairs in a plan by that of the corpus.
    Raises SettingsError if a single pair exceeds `max_tokens`.
    """
    if corpus.block_length:  # later epochs cut the documents elsewhere, and each of them about as epoch 1 does
        if corpus.longest >= max_tokens:
            first = corpus.of_epoch(0, 0)
            widths_of(first, np.arange(first.pairs, dtype=np.uint32), max_tokens)
        corpus, widest = corpus.of_epoch(0, 1), (0, corpus.longest)
    histogram = _histogram(corpus, _Lengths(corpus, max_tokens, dropout), widest, scale)
    best = _improved(min(_simple(histogram), key=histogram.cost), histogram)
    return tuple(_with_frames(corpus, histogram.buckets(best)))


# ---- lengths


class _Lengths:
    """The lengths that the pairs of a corpus have in a plan.

    added: number of tokens that batches add to a source and to a target: a mark, and tags of languages.
    """

    def __init__(self, corpus: TokenizedCorpus, max_tokens: int, dropout: float) -> None:
        tags = (0, 0) if corpus.tags is None else (corpus.tags.source.shape[1], corpus.tags.target.shape[1])
        self.added = int(corpus.frames is None) + tags[0], int(corpus.documents is None) + tags[1]
        self.max_tokens, self._corpus, self._dropout = max_tokens, corpus, dropout

    def of_pairs(self, numbers: NDArray[np.uint32]) -> tuple[Numbers, Numbers]:
        """Return S and T of the pairs with these numbers. Raises SettingsError if one exceeds `max_tokens`."""
        widths_of(self._corpus, numbers, self.max_tokens)
        source, target = self._corpus.read_lengths(numbers)
        return self.sources(source), self.targets(target)

    def sources(self, lengths: NDArray[Any]) -> Numbers:
        """Return S of sources of these lengths in the corpus."""
        return self._planned(lengths, 0, self._dropout if self._corpus.frames is None else 0.0)

    def targets(self, lengths: NDArray[Any]) -> Numbers:
        """Return T of targets of these lengths in the corpus."""
        if self._corpus.task.predicts == "classes":
            return np.ones(len(lengths), np.int64)
        return self._planned(lengths, 1, self._dropout)

    def _planned(self, lengths: NDArray[Any], side: int, dropout: float) -> Numbers:
        """Return the lengths after subword dropout, as far as the model and `max_tokens` allow, plus `added`."""
        planned, added = lengths.astype(np.int64), self.added[side]
        if dropout:
            longest = min(self.max_tokens - added, self._corpus.limits[side] or self.max_tokens)
            longer = np.ceil(planned * (1 + GROWTH * dropout)).astype(np.int64)
            planned = np.maximum(planned, np.minimum(longer, longest))
        return planned + added


# ---- which bucket a pair goes to


class _Cells:
    """Groups of pairs that fit the same buckets.

    source, target: S and T [C] of each cell; its pairs are at most as long, and longer than those of the cell before.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._sources = np.unique([bucket.source for bucket in buckets])
        self._targets = np.unique([bucket.target for bucket in buckets])
        source, target = np.meshgrid(self._sources, self._targets, indexing="ij")
        self.source, self.target = source.ravel(), target.ravel()

    def __len__(self) -> int:
        return len(self.source)

    def indices(self, source: Numbers, target: Numbers) -> NDArray[np.uint8]:
        """Return the index of the cell of each pair of lengths: 8 bits suffice for MAX_BUCKETS² cells.

        Raises ValueError if a pair is too long for all of them.
        """
        row, column = np.searchsorted(self._sources, source), np.searchsorted(self._targets, target)
        if (row == len(self._sources)).any() or (column == len(self._targets)).any():
            raise ValueError("a pair is longer than all buckets")
        return (row * len(self._targets) + column).astype(np.uint8)


def _rank(bucket: Bucket) -> tuple[int, int]:
    """Return a key that sorts buckets by their tokens in a row."""
    return bucket.width, bucket.source


def _allot(counts: Numbers, cells: _Cells, buckets: Sequence[Bucket]) -> Numbers:
    """Return how many of the `counts` [C] pairs of each cell go to each of K buckets: [K, C].

    The pairs of a bucket beyond whole batches go to the next buckets that hold them, first those that need the fewest
    tokens there, unless these are more tokens than the rows that they would leave empty.
    Raises ValueError if some pairs do not fit any bucket.
    """
    sources, targets, rows, widths = (
        np.array([getattr(bucket, name) for bucket in buckets]) for name in ("source", "target", "rows", "width")
    )
    count = len(buckets)
    fits = (cells.source <= sources[:, None]) & (cells.target <= targets[:, None])  # [K, C]
    numbers = np.pad(np.where(fits, np.arange(count)[:, None], count), ((0, 1), (0, 0)), constant_values=count)
    following = np.minimum.accumulate(numbers[::-1])[::-1]  # the first bucket from k on that holds a cell
    amounts = np.zeros((count + 1, len(cells)), np.int64)
    amounts[following[0], np.arange(len(cells))] = counts
    if amounts[-1].any():
        raise ValueError("a pair is longer than all buckets")
    widths = np.append(widths, _NOWHERE)
    for k in range(count):
        left = int(amounts[k].sum() % rows[k])
        if left:
            held = amounts[k].nonzero()[0]
            held = held[following[k + 1, held].argsort(kind="stable")]
            onto = following[k + 1, held]
            moved = np.minimum(amounts[k, held].cumsum(), left)
            moved[1:] -= moved[:-1].copy()
            if moved @ (widths[onto] - widths[k]) < (rows[k] - left) * widths[k]:
                amounts[k, held] -= moved
                amounts[onto, held] += moved
    return amounts[:-1]


def _grouped(items: NDArray[np.uint32], counts: Numbers, amounts: Numbers) -> NDArray[np.uint32]:
    """Return the items of the first bucket, then those of the second, …

    items: of the first cell, then of the second, ….  counts [C], amounts [K, C]: see `_allot`.
    """
    ends = counts.cumsum() - counts + amounts.cumsum(0)  # [K, C]
    pieces = zip(ends.ravel().tolist(), amounts.ravel().tolist(), strict=True)
    return np.concatenate([items[end - count : end] for end, count in pieces])


# ---- choosing buckets


Places = tuple[tuple[int, int], ...]
"""Buckets as indices (i, j) of their lengths in a histogram."""


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Counts [I, J] of the pairs of a plan; `sources` [I] and `targets` [J] are the largest lengths of each count."""

    counts: Numbers
    sources: Numbers
    targets: Numbers
    max_tokens: int

    def buckets(self, places: Places) -> list[Bucket]:
        """Return buckets in the order of a plan."""
        sides = [(int(self.sources[i]), int(self.targets[j])) for i, j in places]
        return sorted((Bucket(*lengths, rows=self.max_tokens // max(lengths)) for lengths in sides), key=_rank)

    def cost(self, places: Places) -> int:
        """Return a number ∝ the tokens of all batches of a plan with these buckets, larger the more buckets there are.

        `_NEVER` if a pair fits none of them.
        """
        rows, columns = (np.unique(side) for side in zip(*places, strict=True))
        if rows[-1] < len(self.sources) - 1 or columns[-1] < len(self.targets) - 1:
            return _NEVER
        counts = np.add.reduceat(np.add.reduceat(self.counts, [0, *rows[:-1] + 1], 0), [0, *columns[:-1] + 1], 1)
        buckets = self.buckets(places)
        try:
            amounts = _allot(counts.ravel(), _Cells(buckets), buckets)
        except ValueError:
            return _NEVER
        tokens = sum(bucket.tokens(pairs) for bucket, pairs in zip(buckets, amounts.sum(1).tolist(), strict=True))
        return tokens * (SAVING + len(buckets))


def _histogram(corpus: TokenizedCorpus, lengths: _Lengths, widest: tuple[int, int] | None, scale: float) -> _Histogram:
    """Return the histogram of a corpus, with one more pair that is as long as `widest`; see `choose_buckets`."""
    corner = [] if widest is None else [lengths.sources(np.array(widest[:1])), lengths.targets(np.array(widest[1:]))]
    sides = [np.zeros(lengths.max_tokens + 1, np.int64) for _ in range(2)]
    for numbers, _ in _chunks(corpus):
        for side, lengths_of_side in zip(sides, lengths.of_pairs(numbers), strict=True):
            side += np.bincount(lengths_of_side, minlength=len(side))
    for side, lengths_of_side in zip(sides, corner, strict=False):
        side[lengths_of_side] += 1
    edges = [_edges(side) for side in sides]
    shape = len(edges[0]), len(edges[1])

    def count(pairs: Sequence[Numbers]) -> Numbers:
        places = [np.searchsorted(edge, side) for edge, side in zip(edges, pairs, strict=True)]
        return np.bincount(np.ravel_multi_index(places, shape), minlength=shape[0] * shape[1]).reshape(shape)

    counts = np.zeros(shape)
    for numbers, weight in _chunks(corpus):
        counts += scale * weight * count(lengths.of_pairs(numbers))
    whole = np.ceil(counts).astype(np.int64)
    return _Histogram(whole + count(corner) if corner else whole, edges[0], edges[1], lengths.max_tokens)


def _chunks(corpus: TokenizedCorpus) -> Iterator[tuple[NDArray[np.uint32], float]]:
    """Yield the numbers of the pairs that are read, some at a time, and their weight."""
    for weight, first, end in zip(corpus.weights, corpus.first, corpus.first[1:], strict=False):
        for begin in range(first, end if weight > 0 else first, _CHUNK):
            yield np.arange(begin, min(begin + _CHUNK, end), dtype=np.uint32), weight


def _edges(counts: Numbers) -> Numbers:
    """Return the lengths that buckets may have, at most `EDGES`, ascending.  counts: number of pairs of each length.

    Where lengths are so close that the counts between two of them are equal, padding is least if their density is
    proportional to √count. A gap before the next length counts as often as it is long.
    """
    lengths = counts.nonzero()[0]
    if len(lengths) <= EDGES:
        return lengths
    gaps = np.diff(lengths, append=lengths[-1] + 1)
    mass = np.floor(1024 * np.sqrt(counts[lengths] * gaps)).astype(np.int64).cumsum()  # integers have no rounding
    return np.unique(lengths[np.searchsorted(mass, mass[-1] * np.arange(1, EDGES + 1) // EDGES)])


def _simple(histogram: _Histogram) -> Iterator[Places]:
    """Yield buckets of simple kinds, at most `MAX_BUCKETS`: sides that grow together, and all pairs of some sides."""

    def parts(size: int, count: int) -> list[int]:
        return [max(0, -(-size * part // count) - 1) for part in range(1, count + 1)]

    rows, columns = histogram.counts.shape
    for apart in range(2):  # the longest lengths in a bucket of their own
        for count in range(1, MAX_BUCKETS - apart + 1):
            sources = parts(rows - apart, count)
            others = range(1, (MAX_BUCKETS - apart) // count + 1)
            grids = (product(sources, parts(columns - apart, other)) for other in others)
            for kind in (zip(sources, parts(columns - apart, count), strict=True), *grids):
                yield tuple(dict.fromkeys((*kind, (rows - 1, columns - 1))))


def _improved(places: Places, histogram: _Histogram) -> Places:
    """Return buckets that cost less, after trying small changes of each of them in turn."""
    best, tried, index, unchanged = histogram.cost(places), 0, 0, 0
    while unchanged < len(places) and tried < TRIALS:
        unchanged += 1
        for changed in _changed(places, index % len(places), histogram):
            tried += 1
            cost = histogram.cost(changed)
            if cost < best:
                best, places, unchanged = cost, changed, 0
                break
        index += 1
    return places


def _changed(places: Places, index: int, histogram: _Histogram) -> Iterator[Places]:
    """Yield buckets of which one has a length that is some steps away, is added at such a place, or is left out."""
    before, (i, j), after = places[:index], places[index], places[index + 1 :]
    steps = [(i + step, j) for step in STEPS] + [(i, j + step) for step in STEPS]
    rows, columns = histogram.counts.shape
    others = [(i, j) for i, j in steps if 0 <= i < rows and 0 <= j < columns and (i, j) not in places]
    yield from ((*before, other, *after) for other in others)
    if len(places) < MAX_BUCKETS:
        yield from ((*places[: index + 1], other, *after) for other in others)
    if len(places) > 1:
        yield before + after


def _with_frames(corpus: TokenizedCorpus, buckets: Sequence[Bucket]) -> Iterator[Bucket]:
    """Yield the buckets, with the most frames of a source that has at most S positions if sources are frames."""
    if corpus.frame_ends is None:
        yield from buckets
        return
    frames = np.zeros(int(corpus.source_lengths.max()) + 1, np.int64)
    np.maximum.at(frames, corpus.source_lengths, np.diff(corpus.frame_ends, prepend=0))
    longest = np.maximum.accumulate(frames)
    for bucket in buckets:
        yield replace(bucket, frames=int(longest[bucket.source]))
