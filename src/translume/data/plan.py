"""The batches of an epoch, in an order that depends only on the corpus, the seed and the epoch."""

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from translume.data.batch import Batch, Ragged
from translume.data.corpus import TokenizedCorpus
from translume.errors import SettingsError

_CHUNK = 1 << 18
_KEYED = 0xFFFF


class BatchPlan:
    """The batches of one epoch; `batch(i)` builds any of them without building the others.

    Every pair is in exactly one batch (with a file weight of 2.5: in two, and a seeded half of the pairs in a third).
    Pairs are shuffled, sorted by length (pairs of equal length stay shuffled) and divided into batches in which width
    times count is at most `max_tokens` (width: the longer side with bos, eos and padding). Then batches are shuffled.
    `dropout` is the probability of BPE-dropout: each side is segmented again, seeded by (seed, epoch, pair, side),
    which may make a batch wider. Noise is drawn by the same numbers (`Noise.apply`). Documents are cut into blocks
    (`TokenizedCorpus.of_epoch`), which are then the pairs.

    Takes 16 bytes per pair during construction, then 4. Raises SettingsError if a single pair exceeds `max_tokens`.
    """

    _attempts = 1
    """How often a side is segmented again, each time with half the dropout, until it is no longer than allowed."""

    def __init__(
        self, corpus: TokenizedCorpus, *, max_tokens: int, seed: int, epoch: int, dropout: float = 0.0
    ) -> None:
        corpus = self.corpus = corpus.of_epoch(seed, epoch)
        self.seed, self.epoch, self.dropout = seed, epoch, dropout
        generator = np.random.default_rng([seed, epoch])
        self._order = _sorted_by_length(corpus, shuffled_items(corpus, generator), generator)
        self._bounds = _cut(corpus, self._order, max_tokens)
        self._shuffled = generator.permutation(len(self._bounds) - 1)

    def __len__(self) -> int:
        return len(self._shuffled)

    def batch(self, index: int, rows: slice = slice(None)) -> Batch:
        """Return the batch at a position of the epoch, from 0, or only some of its rows. Thread-safe."""
        return self._read(self.numbers(index)[rows], self.corpus.limits)

    def _read(self, numbers: NDArray[np.uint32], longest: tuple[int | None, int | None]) -> Batch:
        """Return the batch of some pairs.

        longest: number of tokens of a source and a target that subword dropout must not exceed, without marks and tags.
        """
        source, target = self.corpus.sides(numbers)
        if self.dropout > 0:
            source = source if self.corpus.frames is not None else self._dropped(source, numbers, 0, longest[0])
            target = self._dropped(target, numbers, 1, longest[1])
        if self.corpus.noise is not None:
            seeds = [_seed(self.seed, self.epoch, number, 2) for number in numbers.tolist()]
            source, target = self.corpus.noise.apply(source, target, seeds)
        source_tokenizer, vocabulary = self.corpus.source_tokenizer, self.corpus.target_tokenizer
        lines, tags = self.corpus.numbers(numbers), self.corpus.tags_of(numbers)
        batch: Batch = self.corpus.task.make_batch(source, target, source_tokenizer, vocabulary, lines, tags)
        return batch

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from a position to the end of the epoch."""
        return map(self.batch, range(start, len(self)))

    def examples(self, rows: slice = slice(None)) -> list[Batch]:
        """Return a batch of each shape if there are few shapes; here none.  rows: as for `batch`."""
        return []

    def numbers(self, index: int) -> NDArray[np.uint32]:
        """Return the numbers of the pairs or blocks [B] in the batch at a position."""
        place = self._shuffled[index]
        return self._order[self._bounds[place] : self._bounds[place + 1]]

    def _dropped(self, side: Ragged, numbers: NDArray[np.uint32], which: int, limit: int | None) -> Ragged:
        tokenizer = (self.corpus.source_tokenizer, self.corpus.target_tokenizer)[which]
        sequences: list[list[int]] = []
        for number, start, length in zip(numbers.tolist(), side.starts.tolist(), side.lengths.tolist(), strict=True):
            ids = side.tokens[start : start + length].tolist()
            seed = _seed(self.seed, self.epoch, number, which)
            drawn = (tokenizer.drop(ids, self.dropout / 2**attempt, seed) for attempt in range(self._attempts))
            sequences.append(next((each for each in drawn if limit is None or len(each) <= limit), ids))
        return Ragged.from_sequences(sequences)


def _seed(*parts: int) -> int:
    """Return a 63-bit seed that depends on all parts."""
    digest = blake2b(",".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def shuffled_items(corpus: TokenizedCorpus, generator: np.random.Generator) -> NDArray[np.uint32]:
    """Return the numbers of the pairs to read, shuffled; a pair of weight 2 occurs twice."""
    if all(weight == 1 for weight in corpus.weights):
        items = np.arange(corpus.pairs, dtype=np.uint32)
    else:
        parts = [np.zeros(0, np.uint32)]
        for weight, first, end in zip(corpus.weights, corpus.first, corpus.first[1:], strict=False):
            numbers = np.arange(first, end, dtype=np.uint32)
            parts += [numbers] * int(weight)
            part = round((weight - int(weight)) * len(numbers))
            if 0 < weight < 1 and len(numbers):
                part = max(part, 1)  # no file is left out, and an epoch is never empty
            if part:
                again = numbers.copy()
                generator.shuffle(again)
                parts.append(again[:part])
        items = np.concatenate(parts)
    generator.shuffle(items)
    return items


def _sorted_by_length(
    corpus: TokenizedCorpus, items: NDArray[np.uint32], generator: np.random.Generator
) -> NDArray[np.uint32]:
    """Return the items sorted by target length, then source length; a stable sort.

    One 64-bit key holds both lengths and the position, so the sort is in place. Source lengths alternately rise and
    fall: where one target length ends and the next begins, the sources on both sides have similar lengths.
    """
    keys = np.empty(len(items), np.uint64)
    falling = int(generator.integers(2))
    for begin in range(0, len(items), _CHUNK):
        chunk = items[begin : begin + _CHUNK]
        source, target = (np.minimum(each, _KEYED).astype(np.uint64) for each in corpus.read_lengths(chunk))
        source = np.where((target & 1) == falling, np.uint64(_KEYED) - source, source)
        position = np.arange(begin, begin + len(chunk), dtype=np.uint64)
        keys[begin : begin + _CHUNK] = target << np.uint64(48) | source << np.uint64(32) | position
    keys.sort()
    order = np.empty_like(items)
    for begin in range(0, len(items), _CHUNK):
        order[begin : begin + _CHUNK] = items[keys[begin : begin + _CHUNK] & np.uint64(0xFFFFFFFF)]
    return order


def _cut(corpus: TokenizedCorpus, order: NDArray[np.uint32], max_tokens: int) -> NDArray[np.int64]:
    """Return the bounds of the batches in `order`, each as large as fits. Loops over batches, not over pairs."""
    bounds = [0]
    begin = 0
    while begin < len(order):
        window = order[begin : begin + _CHUNK]
        width = widths_of(corpus, window, max_tokens)
        last = begin + len(window) == len(order)
        inside = 0
        while inside < len(width):
            rows = max_tokens // int(width[inside])
            if inside + rows > len(width) and not last and inside:
                break
            reach = np.maximum.accumulate(width[inside : inside + rows])
            fits = reach * np.arange(1, len(reach) + 1) <= max_tokens
            count = len(fits) if fits[-1] else int(fits.argmin())
            inside += count
            bounds.append(begin + inside)
        begin += inside
    return np.array(bounds, np.int64)


def widths_of(corpus: TokenizedCorpus, numbers: NDArray[np.uint32], max_tokens: int) -> NDArray[np.int64]:
    """Return the length of the longer side of each pair, with tags and one mark.

    Raises SettingsError if one of them is above `max_tokens`.
    """
    tags = (0, 0) if corpus.tags is None else (corpus.tags.source.shape[1], corpus.tags.target.shape[1])
    source, target = corpus.read_lengths(numbers)
    width = np.maximum(source + tags[0], target + tags[1]) + 1
    if int(width.max(initial=0)) > max_tokens:
        place = corpus.place(int(numbers[int(width.argmax())]) + corpus.base)
        raise SettingsError(
            f"training.max_tokens: {max_tokens}, but {place} alone has {int(width.max())} tokens; "
            "expected more, or a smaller data.cleaning.max_tokens"
        )
    return width
