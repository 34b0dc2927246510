"""Training pairs that are read from files as they are needed, buffer by buffer, without a token cache.

An epoch reads each file once: a few at a time, in an order drawn by (seed, epoch). The next `data.shuffle_buffer` pairs
make a buffer, a `TokenizedCorpus` in memory. Several processes share the work: each tokenizes a part, and all put the
same buffer together from these `Share`s. So buffers depend neither on the number of processes nor on where a run was
resumed.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from translume.config.data import CleaningSettings, DataSettings
from translume.config.model import LanguageTags
from translume.data.addresses import size_of
from translume.data.batch import positions_of, starts_of
from translume.data.cleaning import KEPT, Account, Limits, Rules
from translume.data.corpus import STRIDE, TokenizedCorpus, interleaved
from translume.data.denoising import Noise
from translume.data.encoding import Encoder, processes_for
from translume.data.held_out import chunks
from translume.data.lines import unreadable
from translume.data.pairs import Origin, Pair, origins
from translume.data.token_cache import DataFile, checked, ingredients, limits_of, tags_of, values_digest
from translume.errors import DataError
from translume.json_values import JsonValue
from translume.parallel import ProcessLostError, WorkerPool
from translume.tasks import find_task
from translume.text import Labels, Tokenizer

OPEN_FILES: Final = 8
"""Files that are read at a time, in turn, so that a buffer has pairs of several files."""
CHUNK: Final = 1024
"""Maximum number of pairs read from a file before it is the turn of the next."""
SAMPLE_PAIRS: Final = 100_000
SAMPLE_FILES: Final = 64
"""The sample of a stream: so many pairs in all, the first ones of at most so many files."""


@dataclass(frozen=True, slots=True)
class Place(JsonValue):
    """Where a buffer begins.

    epoch, buffer: from 0.  begun: number of files begun, in the order of the epoch.  files: those that are being read,
    as numbers of origins, and the number of pairs read from each.  turn: the index in `files` of the next one to read.
    """

    epoch: int = 0
    buffer: int = 0
    begun: int = 0
    files: tuple[tuple[int, int], ...] = ()
    turn: int = 0


class EpochReader:
    """Reads the pairs of an epoch, a chunk of each open file in turn, from a place on."""

    def __init__(self, origins: Sequence[Origin], seed: int, place: Place) -> None:
        self._origins, self._begun, self._turn = origins, place.begun, place.turn
        self._order = np.random.default_rng([seed, place.epoch]).permutation(len(origins)).tolist()
        self._open = [_OpenFile(number, origins[number], pairs) for number, pairs in place.files]

    def read(self, count: int) -> tuple[int, list[Pair]] | None:
        """Return a number of an origin and its next pairs, at most `count`; None at the end of the epoch."""
        while True:
            while len(self._open) < OPEN_FILES and self._begun < len(self._order):
                number = self._order[self._begun]
                self._open.append(_OpenFile(number, self._origins[number]))
                self._begun += 1
            if not self._open:
                return None
            self._turn %= len(self._open)
            file = self._open[self._turn]
            pairs = file.next(min(count, CHUNK))
            if pairs:
                self._turn += 1
                return file.number, pairs
            del self._open[self._turn]

    def place(self, epoch: int, buffer: int) -> Place:
        """Return the place from which the next pairs will be read."""
        files = tuple((file.number, file.read) for file in self._open)
        return Place(epoch, buffer, self._begun, files, self._turn)


class _OpenFile:
    def __init__(self, number: int, origin: Origin, read: int = 0) -> None:
        """read: number of pairs to skip."""
        self.number, self.read = number, read
        self._pairs = islice(origin.read(), read, None)

    def next(self, count: int) -> list[Pair]:
        """Return the next pairs; none at the end of the file."""
        pairs = next(chunks(self._pairs, count), [])
        self.read += len(pairs)
        return pairs


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The tokenized pairs of one process in a buffer, in the order of the files' lines in it.

    after: where the next buffer begins, in the next epoch if the buffer has no pairs.  read: number of pairs in the
    whole buffer, before cleaning.  account: of this share.  tokens: each source and its target.
    origins, lines, source_lengths, target_lengths: of each pair.
    """

    after: Place
    read: int
    account: Account
    tokens: NDArray[np.int32]
    source_lengths: NDArray[np.int32]
    target_lengths: NDArray[np.int32]
    origins: NDArray[np.int32]
    lines: NDArray[np.int32]

    def to_bytes(self) -> bytes:
        """Return the bytes that `from_bytes` reads."""
        arrays = (self.tokens, self.source_lengths, self.target_lengths, self.origins, self.lines)
        values = {
            "after": self.after.to_dict(),
            "read": self.read,
            "account": self.account.to_dict(),
            "sizes": [len(array) for array in arrays],
        }
        return b"\n".join([json.dumps(values).encode(), np.concatenate(arrays).tobytes()])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` returned."""
        head = data.index(b"\n")
        values = json.loads(data[:head])
        numbers = np.frombuffer(data, np.int32, offset=head + 1)
        arrays = np.split(numbers, np.cumsum(values["sizes"][:-1]))
        return cls(Place.from_dict(values["after"]), values["read"], Account.from_dict(values["account"]), *arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReader:
    """Reads and tokenizes the share of a process.

    limits: of the pairs to keep.  size: of a buffer, in pairs.  rank, ranks: of the processes.
    """

    origins: tuple[Origin, ...]
    cleaning: CleaningSettings
    encoder: Encoder
    limits: Limits
    size: int
    seed: int
    rank: int = 0
    ranks: int = 1

    def shares(self, place: Place) -> Iterator[Share]:
        """Yield the share of each buffer, from a place on, without end. Raises DataError if a file cannot be read.

        A buffer without pairs is the end of an epoch.
        """
        while True:
            reader, epoch = EpochReader(self.origins, self.seed, place), place.epoch
            while place.epoch == epoch:
                share = self._share(reader, place)
                place = share.after
                yield share

    def sample(self) -> Share:
        """Return the first pairs of the files: `SAMPLE_PAIRS` in all, of at most `SAMPLE_FILES` files."""
        heads = _heads(self.origins, SAMPLE_PAIRS)
        return self._tokenized((number, pairs) for number, head in heads for pairs in chunks(head, CHUNK))

    def _share(self, reader: EpochReader, place: Place) -> Share:
        first, end = (rank * self.size // self.ranks for rank in (self.rank, self.rank + 1))
        read = 0

        def own() -> Iterator[tuple[int, list[Pair]]]:
            nonlocal read
            while read < self.size and (chunk := reader.read(self.size - read)):
                number, pairs = chunk
                if own_pairs := pairs[max(first - read, 0) : max(end - read, 0)]:
                    yield number, own_pairs
                read += len(pairs)

        share = self._tokenized(own())
        after = reader.place(place.epoch, place.buffer + 1) if read else Place(place.epoch + 1)
        return replace(share, after=after, read=read)

    def _tokenized(self, numbered: Iterable[tuple[int, list[Pair]]]) -> Share:
        """Return the share, without its place, of pairs with the numbers of their origins, cleaned and tokenized."""
        task = find_task(self.encoder.task)
        rules = Rules(self.cleaning, self.limits, missing_target=task.missing_target, sources=task.reads == "pairs")
        account = Account(unit=task.reads)
        parts: list[tuple[NDArray[np.int32], ...]] = []
        for number, pairs in numbered:
            account.read += len(pairs)
            codes = rules.of_texts(self.encoder.normalised(pairs) if rules.compares else pairs)
            kept = account.keep(pairs, codes)
            encoded = self.encoder.encode(kept)
            codes = rules.of_lengths(encoded.source_lengths, encoded.target_lengths)
            account.truncated += int((encoded.cut & (codes == KEPT)).sum())
            lines = np.fromiter((pair.line for pair in account.keep(kept, codes)), np.int32)
            account.used += len(lines)
            source, target = encoded.sides(np.flatnonzero(codes == KEPT))
            tokens = interleaved(source, target, np.dtype(np.int32))
            lengths = (each.lengths.astype(np.int32) for each in (source, target))
            parts.append((tokens, *lengths, np.full(len(lines), number, np.int32), lines))
        nothing = np.zeros(0, np.int32)
        arrays = [np.concatenate([nothing, *arrays]) for arrays in zip(*parts, strict=True)] or [nothing] * 5
        return Share(Place(), 0, account, *arrays)


def head_pairs(settings: DataSettings, count: int) -> Iterator[Pair]:
    """Yield the first training pairs of each of at most `SAMPLE_FILES` files, `count` in all."""
    for _, head in _heads(origins(settings, "train"), count):
        yield from head


def _heads(origins: Sequence[Origin], count: int) -> Iterator[tuple[int, Iterator[Pair]]]:
    """Yield numbers of origins, evenly spread, and their first pairs."""
    numbers = np.unique(np.linspace(0, len(origins) - 1, min(len(origins), SAMPLE_FILES)).astype(int)).tolist()
    for number in numbers:
        yield number, islice(origins[number].read(), -(-count // len(numbers)))


class Shares:
    """The shares of a process, as bytes. If the files are long, a worker process reads one ahead."""

    def __init__(self, reader: ShareReader, place: Place) -> None:
        files = [file for origin in reader.origins for file in origin.files]
        self._shares, self._pool = reader.shares(place), None
        if processes_for(files) > 1:
            self._pool = WorkerPool(1, partial(reader.shares, place))
            self._ahead = self._pool.submit(_next_share, None)

    def next(self) -> bytes:
        """Return the next share. Raises DataError if a file cannot be read."""
        if self._pool is None:
            return next(self._shares).to_bytes()
        try:
            data = self._ahead()
            self._ahead = self._pool.submit(_next_share, None)
        except ProcessLostError as lost:
            raise DataError(f"tokenizing: {lost}, perhaps because memory ran out") from None
        return data

    def close(self) -> None:
        """End the worker process."""
        if self._pool is not None:
            self._pool.close()


def _next_share(shares: Iterator[Share], _: None) -> bytes:
    return next(shares).to_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The training pairs of a stream.

    digest: of the settings and tokenizers that the pairs depend on, the sizes of the files and a sample.
    sample: the first pairs of the files.  reader: that of a single process.  files: without digests and numbers of
    pairs, which are not known.
    """

    digest: str
    sample: TokenizedCorpus
    reader: ShareReader
    files: tuple[DataFile, ...]

    @property
    def widest(self) -> int:
        """The largest number of tokens of a side, with tags and EOS, or of a block, that a pair may have."""
        tags, limits = self.sample.tags, [each for each in self.reader.limits if each is not None]
        if not limits:
            return self.sample.block_length
        return max(limits) + 1 + (max(tags.source.shape[1], tags.target.shape[1]) if tags is not None else 0)

    def corpus(self, shares: Sequence[Share], base: int) -> TokenizedCorpus:
        """Return the pairs of a buffer, put together from the shares of all processes; `base` as in the corpus."""
        return replace(_joined(shares, self.sample), digest=self.digest, base=base)


def open_stream(
    settings: DataSettings,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | Labels,
    *,
    seed: int,
    max_positions: tuple[int, int] | None = None,
    language_tags: LanguageTags = "none",
    look: Callable[[list[Pair]], object] | None = None,
) -> Stream:
    """Return the training pairs as a stream, after reading the sample; `look` is called with its pairs.

    seed: of the order of the files.  Other arguments as for `prepare`. Raises DataError if a file cannot be read, or if
    no pair of the sample is left after cleaning.
    """
    places, task = origins(settings, "train"), find_task(settings.task)
    readable, limits = limits_of(settings, max_positions=max_positions, language_tags=language_tags, cleaned=True)
    tokenizers = (source_tokenizer, target_tokenizer)
    reader = ShareReader(
        origins=places,
        cleaning=settings.cleaning,
        encoder=Encoder(task.name, *tokenizers, settings.cleaning.too_long, limits[0]),
        limits=limits,
        size=settings.shuffle_buffer,
        seed=seed,
    )
    if look is not None:
        for _, head in _heads(places, SAMPLE_PAIRS):
            for pairs in chunks(head, CHUNK):
                look(pairs)
    share = reader.sample()
    nothing = np.zeros(0, np.int32)
    frame = TokenizedCorpus(
        pairs=0,
        account=share.account,
        digest="",
        source_lengths=nothing,
        target_lengths=nothing,
        origins=places,
        first=(),
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        limits=readable,
        task=task,
        tokens=nothing,
        starts=np.zeros(0, np.int64),
        line_numbers=np.zeros(0, np.uint32),
        block_length=settings.block_length if task.reads == "documents" else 0,
        tags=tags_of(places, tokenizers, language_tags),
        noise=Noise.from_settings(settings, *tokenizers),
    )
    files = tuple(
        DataFile(split="train", path=path, size=_size(path), digest="", pairs=None, weight=1.0)
        for place in places
        for path in place.files
    )
    digest = values_digest(
        {
            **ingredients(settings, settings.cleaning, places, limits, hold_out=False),
            "tokenizers": [each.digest for each in tokenizers],
            "sizes": [file.size for file in files],
            "shuffle_buffer": settings.shuffle_buffer,
            "sample": blake2b(share.tokens.tobytes() + share.source_lengths.tobytes(), digest_size=16).hexdigest(),
        }
    )
    sample = checked(replace(_joined([share], frame), digest=digest), "used")
    return Stream(digest=digest, sample=sample, reader=reader, files=files)


def _size(path: str) -> int:
    try:
        return size_of(path)
    except OSError as error:
        raise DataError(unreadable(path, error)) from None


def _joined(shares: Sequence[Share], frame: TokenizedCorpus) -> TokenizedCorpus:
    """Return the pairs of shares in the order of their origins, with everything else of another corpus."""
    tokens, sources, targets, numbers, lines = (
        np.concatenate([getattr(share, name) for share in shares])
        for name in ("tokens", "source_lengths", "target_lengths", "origins", "lines")
    )
    order = np.argsort(numbers, kind="stable")
    lengths = sources.astype(np.int64) + targets
    small = max(len(frame.source_tokenizer), len(frame.target_tokenizer)) <= 1 << 16
    return replace(
        frame,
        pairs=len(order),
        account=Account.total([share.account for share in shares]),
        source_lengths=sources[order],
        target_lengths=targets[order],
        first=tuple(np.searchsorted(numbers[order], np.arange(len(frame.origins) + 1)).tolist()),
        tokens=_gathered(tokens.astype(np.uint16) if small else tokens, starts_of(lengths)[order], lengths[order]),
        starts=starts_of(lengths[order])[::STRIDE],
        line_numbers=lines[order].astype(np.uint32),
    )


def _gathered(tokens: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the sequences of a flat array that start at `starts`, one after another."""
    gathered = np.empty_like(tokens)
    filled = 0
    for begin in range(0, len(starts), 1 << 14):
        rows = slice(begin, begin + (1 << 14))
        positions = positions_of(starts[rows], lengths[rows])
        gathered[filled : filled + len(positions)] = tokens[positions]
        filled += len(positions)
    return gathered
