"""A tokenized corpus: memory-mapped arrays of ids, written once, read by any number of processes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from translume.checksums import BlockSums, CheckedArray, DamagedBlockError, unsealed
from translume.config.data import ContextSettings, DataSettings
from translume.config.languages import Direction
from translume.data.batch import BatchTags, Ragged, positions_of, starts_of
from translume.data.cleaning import NO_LIMITS, Account, Limits
from translume.data.denoising import Noise
from translume.data.pairs import Origin, origins
from translume.errors import DataError
from translume.tasks import Task, find_task
from translume.text import Labels, Tokenizer

FORMAT = 1
STRIDE = 32
ARRAYS = ("tokens", "source_lengths", "target_lengths", "starts", "lines")
FRAME_ARRAYS = ("frames", "frame_lengths")
"""Further arrays of a corpus whose sources are frames."""
PAIR_ARRAYS = ("source_lengths", "target_lengths", "lines", "document_hashes")
"""The arrays with a value for each pair; the last only if the corpus has documents."""
_TYPES = {
    "starts": "int64", "lines": "uint32", "document_hashes": "uint64", "frames": "float16", "frame_lengths": "int32",
}  # fmt: skip
"""The types of the arrays that are the same in all caches."""
LEGACY = {"token", "length", "frame_size", "parts", "files", "account", "sizes", "format", "digest"}
"""Names in the index of an earlier version, which has no checksums."""
_PAIRS, _RECORDINGS = 1 << 16, 64
"""Pairs in memory at a time when all are read, and those with frames."""


class DamagedCacheError(Exception):
    """A cache folder is incomplete or damaged. It is rebuilt; users never see this error."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedCorpus:
    """Pairs of ids without bos and eos, by number from 0 to `pairs` - 1, in the order of the files.

    The arrays are memory-mapped; planning an epoch reads 4 bytes of lengths per pair. `limits` are the lengths of the
    longest source and target that the model can read, in tokens without EOS.
    """

    pairs: int
    account: Account
    digest: str
    source_lengths: NDArray[Any]
    target_lengths: NDArray[Any]
    origins: tuple[Origin, ...]
    first: tuple[int, ...]
    """For each origin, the number of its first pair; one more at the end: `pairs`."""
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer | Labels
    limits: Limits
    task: Task
    tokens: NDArray[Any] = field(repr=False)
    starts: NDArray[np.int64] = field(repr=False)
    """Start of every 32nd pair in `tokens`, ¼ byte per pair instead of 8. Adding lengths gives the other starts."""
    line_numbers: NDArray[np.uint32] = field(repr=False)
    block_length: int = 0
    """Above 0: the pairs are documents, targets with EOS tokens and without sources, to be cut into such blocks."""
    temperature: float = 1.0
    """`data.sampling_temperature`: how the shares of the directions in an epoch are flattened."""
    tags: BatchTags | None = field(default=None, repr=False)
    """The ids of the tags of languages in each origin: [origins, 0 or 1] of sources and of targets; None: no tags."""
    noise: Noise | None = field(default=None, repr=False)
    """The noise to add to the sources, which are the targets; None: pairs are learned as they are."""
    base: int = 0
    """What `numbers` adds to the numbers of the pairs, so that those of buffers of a stream differ."""
    documents: NDArray[np.int64] | None = field(default=None, repr=False)
    """If the pairs are blocks: for each, the number of its document."""
    frames: NDArray[Any] | None = field(default=None, repr=False)
    """If the sources are frames: those of all pairs, [n, F]. The ids of a source then only stand for its positions."""
    frame_ends: NDArray[np.int64] | None = field(default=None, repr=False)
    """The end of the frames of each pair in `frames`."""
    document_hashes: NDArray[np.uint64] | None = field(default=None, repr=False)
    """A number for each pair that is the same for consecutive pairs of one document; None: there are no documents."""
    context: ContextSettings = field(default_factory=ContextSettings)
    """The pairs before each pair that `sides` returns with it, as far as they are of its document."""
    window: int = 0
    """The length of the longest side with its context, in tokens without EOS."""
    stored: Mapping[str, CheckedArray] = field(default_factory=dict, repr=False)
    """If the pairs are in a cache: "tokens" and "frames", whose blocks are checked when they are first used."""

    def __len__(self) -> int:
        return self.pairs

    @property
    def without_pairs(self) -> str:
        """A line that names the first file of which no pair is used, and how many there are; empty if there is none."""
        counts = zip(self.origins, pairwise(self.first), strict=False)
        files = [origin.file for origin, (begin, end) in counts if begin == end]
        return f"{len(files):,} of {len(self.origins):,} files without usable pairs: {files[0]}" if files else ""

    @property
    def weights(self) -> tuple[float, ...]:
        """Number of times that the pairs of each origin are read in an epoch."""
        weights = [origin.weight for origin in self.origins]
        if self.temperature == 1:
            return tuple(weights)
        counts = np.diff(self.first).tolist()
        return sampling_weights([origin.direction for origin in self.origins], counts, weights, self.temperature)

    def source(self, index: int) -> NDArray[Any]:
        """Return the ids of one source [S], without eos."""
        start = int(self._checked_starts(np.array([index]))[0])
        return self.tokens[start : start + int(self.source_lengths[index])]

    def target(self, index: int) -> NDArray[Any]:
        """Return the ids of one target [T], without bos and eos."""
        start = int(self._checked_starts(np.array([index]))[0]) + int(self.source_lengths[index])
        return self.tokens[start : start + int(self.target_lengths[index])]

    def sides(self, indices: NDArray[Any]) -> tuple[Ragged, Ragged]:
        """Return the sources, ids or frames, and the targets of the pairs with these numbers [B].

        Raises DataError if the cache is damaged there.
        """
        if self.context.used:
            numbers = indices.astype(np.int64)
            return self._window(numbers, target=False), self._window(numbers, target=True)
        starts = self._checked_starts(indices)
        lengths = self.source_lengths[indices].astype(np.int64)
        source = Ragged(self.tokens, starts, lengths)
        if self.frames is not None and self.frame_ends is not None:
            numbers = indices.astype(np.int64)
            begins = np.where(numbers > 0, self.frame_ends[numbers - 1], 0)
            self._check("frames", begins, self.frame_ends[numbers])
            source = Ragged(self.frames, begins, self.frame_ends[numbers] - begins)
        return source, Ragged(self.tokens, starts + lengths, self.target_lengths[indices].astype(np.int64))

    def read_lengths(self, indices: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of what `sides` returns for the pairs with these numbers [B]."""
        if self.context.used:
            numbers = indices.astype(np.int64)
            return self._reach(numbers, target=False)[1], self._reach(numbers, target=True)[1]
        return self.source_lengths[indices].astype(np.int64), self.target_lengths[indices].astype(np.int64)

    @property
    def shortened(self) -> str:
        """A line that says how many pairs have less context than their documents do; empty if none has."""
        if not self.context.used:
            return ""
        full, every = replace(self, window=1 << 62), np.arange(self.pairs)
        sides = zip(self.read_lengths(every), full.read_lengths(every), strict=True)
        short = int(np.any([own != whole for own, whole in sides], 0).sum())
        return f"{short:,} of {self.pairs:,} pairs with less context, to fit {self.window:,} tokens" if short else ""

    def _reach(self, numbers: NDArray[np.int64], *, target: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first pairs of the windows of one side, and the lengths of these with separators, [B] each.

        A window that is longer than `window` loses the sentences that are farthest from its last one.
        """
        assert self.document_hashes is not None
        lengths = self.target_lengths if target else self.source_lengths
        count = self.context.target if target else self.context.source
        first, total = numbers.copy(), lengths[numbers].astype(np.int64)
        continues = np.ones(len(numbers), np.bool_)
        for back in range(1, count + 1):
            before = np.maximum(numbers - back, 0)
            longer = total + lengths[before] + 1
            continues &= (numbers >= back) & (longer <= self.window)
            continues &= self.document_hashes[before] == self.document_hashes[numbers]
            first, total = first - continues, np.where(continues, longer, total)
        return first, total

    def _window(self, numbers: NDArray[np.int64], *, target: bool) -> Ragged:
        """Return one side of each pair [B] after those before it in its document, with an EOS after each of them."""
        first, total = self._reach(numbers, target=target)
        counts = numbers - first + 1
        pairs = positions_of(first, counts)  # of all windows, one after the other
        starts, lengths = self._checked_starts(pairs), self.source_lengths[pairs].astype(np.int64)
        if target:
            starts, lengths = starts + lengths, self.target_lengths[pairs].astype(np.int64)
        tokenizer: Any = self.target_tokenizer if target else self.source_tokenizer
        tokens = np.full(int(lengths.sum()) + len(pairs), tokenizer.specials.eos)
        tokens[positions_of(starts_of(lengths + 1), lengths)] = self.tokens[positions_of(starts, lengths)]
        return Ragged(tokens, starts_of(lengths + 1)[starts_of(counts)], total)

    def tags_of(self, indices: NDArray[Any]) -> BatchTags | None:
        """Return the tags of the pairs with these numbers [B]."""
        if self.tags is None:
            return None
        origin = np.searchsorted(self.first, indices, side="right") - 1
        return BatchTags(self.tags.source[origin], self.tags.target[origin])

    @property
    def longest(self) -> int:
        """The length of the longest source or target with its tag, or of a block or window, in tokens."""
        sides = (self.source_lengths, self.target_lengths)
        longest = max(self.window, *(int(lengths.max(initial=0)) for lengths in sides))
        return min(longest, self.block_length) if self.block_length else longest + (self.tags is not None)

    def of_epoch(self, seed: int, epoch: int) -> "TokenizedCorpus":
        """Return the pairs that an epoch reads: these, or the blocks of the documents.

        In epoch 0 the first block of a document begins at its start and has `block_length` tokens; in later ones, a
        document that is longer than a block begins with a block of a length drawn by (seed, epoch). Each token is in
        one block.
        """
        if not self.block_length:
            return self
        longest, lengths = self.block_length, self.target_lengths.astype(np.int64)
        first = np.full(self.pairs, longest, np.int64)
        if epoch:
            drawn = np.random.default_rng([seed, epoch, longest]).integers(1, longest + 1, self.pairs)
            first = np.where(lengths > longest, drawn, first)
        counts = 1 + -(-np.maximum(lengths - first, 0) // longest)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        owner = np.repeat(np.arange(self.pairs), counts)
        place = np.arange(len(owner)) - bounds[owner]  # of a block in its document
        begin = np.where(place > 0, first[owner] + (place - 1) * longest, 0)
        end = np.minimum(first[owner] + place * longest, lengths[owner])
        starts = np.cumsum(lengths) - lengths
        return replace(
            self,
            pairs=len(owner),
            source_lengths=np.zeros(len(owner), self.source_lengths.dtype),
            target_lengths=(end - begin).astype(self.target_lengths.dtype),
            first=tuple(int(bounds[number]) for number in self.first),
            starts=(starts[owner] + begin)[::STRIDE],
            line_numbers=self.line_numbers[owner],
            block_length=0,
            documents=owner,
        )

    def numbers(self, indices: NDArray[Any]) -> tuple[int, ...]:
        """Return the numbers of pairs [B] in the corpus that `of_epoch` was called on, from `base`."""
        numbers = indices if self.documents is None else self.documents[indices]
        return tuple((numbers.astype(np.int64) + self.base).tolist())

    def place(self, number: int) -> str:
        """Return the file and line of a pair, such as "train.en:812".  number: one of `numbers`."""
        number -= self.base
        origin = int(np.searchsorted(self.first, number, side="right")) - 1
        return f"{self.origins[origin].file}:{int(self.line_numbers[number])}"

    def _checked_starts(self, indices: NDArray[Any]) -> NDArray[np.int64]:
        """Return where the tokens of pairs start, after checking those of both sides."""
        starts = self._starts(indices)
        lengths = self.source_lengths[indices].astype(np.int64) + self.target_lengths[indices]
        self._check("tokens", starts, starts + lengths)
        return starts

    def checked_frames(self) -> NDArray[Any] | None:
        """Return `frames` after checking all of them. Raises DataError if the cache is damaged."""
        if self.frames is not None:
            self._check("frames", np.zeros(1, np.int64), np.array([len(self.frames)]))
        return self.frames

    def _check(self, name: str, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        array = self.stored.get(name)
        try:
            if array is not None:
                array.check(begins, ends)
        except DamagedBlockError as error:
            folder = self.stored[name].path.parent
            raise DataError(f"{error}; delete {folder}, and the same command prepares the data again") from None

    def _starts(self, indices: NDArray[Any]) -> NDArray[np.int64]:
        indices = np.asarray(indices, np.int64)
        block, inside = np.divmod(indices, STRIDE)
        column = np.arange(STRIDE)
        before = np.minimum(block[:, None] * STRIDE + column, self.pairs - 1)  # [B, 32]
        lengths = self.source_lengths[before].astype(np.int64) + self.target_lengths[before]
        starts: NDArray[np.int64] = self.starts[block] + np.where(column < inside[:, None], lengths, 0).sum(1)
        return starts


def sampling_weights(
    groups: Sequence[Direction], counts: Sequence[int], weights: Sequence[float], temperature: float
) -> tuple[float, ...]:
    """Return the number of times that an epoch reads each of some origins, whose directions are `groups`.

    A direction with n pairs, times their weights, has a share ∝ n ** (1/temperature) (Arivazhagan et al. 2019), and an
    epoch has as many pairs as without temperature.  counts: the pairs of each origin.
    """
    sizes: dict[Direction, float] = {}
    for group, count, weight in zip(groups, counts, weights, strict=True):
        sizes[group] = sizes.get(group, 0.0) + count * weight
    shares = {group: size ** (1 / temperature) for group, size in sizes.items()}
    scale = sum(sizes.values()) / (sum(shares.values()) or 1.0)
    factors = {group: scale * shares[group] / size if size else 0.0 for group, size in sizes.items()}
    return tuple(weight * factors[group] for group, weight in zip(groups, weights, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Number types of the arrays in a cache.  frame_size: number of values of a frame; 0: sources are ids.

    documents: whether each pair has the number of its document.
    """

    token: str
    length: str
    frame_size: int = 0
    documents: bool = False

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return ARRAYS + PAIR_ARRAYS[-1:] * self.documents + FRAME_ARRAYS * bool(self.frame_size)

    def counts(self, pairs: int, tokens: int, frames: int) -> dict[str, int]:
        """Return the number of values of each of `arrays`."""
        sizes = {"tokens": tokens, "starts": -(-pairs // STRIDE), "frames": frames * self.frame_size}
        return {name: sizes.get(name, pairs) for name in self.arrays}

    def type_of(self, array: str) -> np.dtype[Any]:
        """Return the type of one of `arrays`."""
        types = {"tokens": self.token, "source_lengths": self.length, "target_lengths": self.length, **_TYPES}
        return np.dtype(types[array])


class Writer:
    """Appends pairs to the files of one part ("all", "used" or "held_out") of an unfinished cache."""

    def __init__(
        self, folder: Path, part: str, layout: Layout, counts: Mapping[str, Any] | None = None, *, over: bool = False
    ) -> None:
        """counts: what `sync` returned in another process, to continue its files.

        over: write over existing files from their beginning; `close` cuts them off.
        Raises DamagedCacheError if the files are not as long as `counts` says.
        """
        self._layout = layout
        self.pairs = self.tokens = self.frames = 0
        self.first: list[int] = []
        if counts is not None:
            self.pairs, self.tokens, self.frames = (int(counts[name]) for name in ("pairs", "tokens", "frames"))
            self.first = list(map(int, counts["first"]))
        self._files: dict[str, IO[bytes]] = {}
        self._sums: dict[str, BlockSums] = {}
        for name, count in layout.counts(self.pairs, self.tokens, self.frames).items():
            path, size = folder / f"{part}.{name}", count * layout.type_of(name).itemsize
            if counts is not None and (not path.exists() or path.stat().st_size < size):
                self.abandon()
                raise DamagedCacheError(str(path))
            self._sums[name] = BlockSums(counts["sums"][name] if counts else (), size)
            self._files[name] = path.open("wb" if counts is None and not over else "r+b")
            if not over:
                self._files[name].truncate(size)
            self._files[name].seek(size)

    def begin_origin(self) -> None:
        """Start the next origin."""
        self.first.append(self.pairs)

    def append(
        self, source: Ragged, target: Ragged, own: Mapping[str, NDArray[Any]], frames: Sequence[NDArray[Any]] = ()
    ) -> None:
        """Append pairs; `own` are the other `PAIR_ARRAYS` [B], and `frames` those of each source if it is no text."""
        arrays = {
            "tokens": interleaved(source, target, self._layout.type_of("tokens")),
            "source_lengths": source.lengths,
            "target_lengths": target.lengths,
            **own,
        }
        if self._layout.frame_size:
            arrays["frames"] = np.concatenate([*frames, np.zeros((0, self._layout.frame_size))])
            arrays["frame_lengths"] = np.array([len(each) for each in frames])
        self.extend(arrays)

    def extend(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Append pairs.  arrays: all arrays of the layout but "starts"; "tokens" interleaved, "frames" [n, F]."""
        lengths = arrays["source_lengths"].astype(np.int64) + arrays["target_lengths"]
        starts = starts_of(lengths) + self.tokens
        for name, array in {**arrays, "starts": starts[-self.pairs % STRIDE :: STRIDE]}.items():
            content = np.ascontiguousarray(array, self._layout.type_of(name)).tobytes()
            self._files[name].write(content)
            self._sums[name].add(content)
        self.pairs += len(lengths)
        self.tokens += int(lengths.sum())
        self.frames += len(arrays.get("frames", ()))

    def sync(self) -> dict[str, Any]:
        """Write everything to the disk, and return the counts with which another process can continue."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        counts = {"pairs": self.pairs, "tokens": self.tokens, "frames": self.frames, "first": list(self.first)}
        return {**counts, "sums": {name: [*each.sums] for name, each in self._sums.items()}}

    def close(self) -> dict[str, object]:
        """Sync and close the files, and return this part's entry of the index."""
        for file in self._files.values():
            file.truncate()
        counts = self.sync()
        self.abandon()
        return {**counts, "first": [*self.first, self.pairs]}

    def abandon(self) -> None:
        """Close the files of a cache that will not be used."""
        for file in self._files.values():
            file.close()


def separate(
    folder: Path, layout: Layout, counts: Mapping[str, Any], chosen: NDArray[np.int64]
) -> dict[str, dict[str, object]]:
    """Divide the part "all": the pairs with the numbers `chosen` become "held_out", the others "used".

    counts: what `Writer.sync` returned for "all". Its files become those of "used", so that no second copy of the pairs
    takes room on the disk. Returns the entries of the index. Raises DataError if they are damaged.
    """
    pairs, tokens, frames = (int(counts[name]) for name in ("pairs", "tokens", "frames"))
    sizes = layout.counts(pairs, tokens, frames)
    for name in sizes:
        (folder / f"all.{name}").rename(folder / f"used.{name}")
    try:
        arrays = {name: each.check_all() for name, each in _mapped(folder, "used", layout, sizes, counts).items()}
    except DamagedBlockError as error:
        raise DataError(f"{error}; the same command prepares the data again") from None
    held = np.zeros(pairs, np.bool_)
    held[chosen] = True
    # The held-out pairs of a block are copied before the others are written over it.
    writers = {"held_out": Writer(folder, "held_out", layout), "used": Writer(folder, "used", layout, over=True)}
    step = _RECORDINGS if layout.frame_size else _PAIRS
    try:
        token = frame = 0
        for first, end in pairwise([*counts["first"], pairs]):
            for writer in writers.values():
                writer.begin_origin()
            for begin in range(first, end, step):
                rows = slice(begin, min(begin + step, end))
                block = {name: arrays[name][rows] for name in PAIR_ARRAYS if name in arrays}
                lengths = block["source_lengths"].astype(np.int64) + block["target_lengths"]
                block["tokens"] = arrays["tokens"][token : token + int(lengths.sum())]
                token += len(block["tokens"])
                repeats = {"tokens": lengths}
                if layout.frame_size:
                    repeats["frames"] = block["frame_lengths"] = arrays["frame_lengths"][rows]
                    block["frames"] = arrays["frames"][frame : frame + int(block["frame_lengths"].sum())]
                    frame += len(block["frames"])
                for name, writer in writers.items():
                    chosen_rows = held[rows] == (name == "held_out")
                    masks = {each: np.repeat(chosen_rows, count) for each, count in repeats.items()}
                    writer.extend({each: array[masks.get(each, chosen_rows)] for each, array in block.items()})
        return {name: writers[name].close() for name in ("used", "held_out")}
    finally:
        for writer in writers.values():
            writer.abandon()


def interleaved(source: Ragged, target: Ragged, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return source 0, target 0, source 1, target 1, … as one array."""
    lengths = np.stack([source.lengths, target.lengths], 1).reshape(-1)
    starts = np.stack([source.starts, target.starts + len(source.tokens)], 1).reshape(-1)
    tokens: NDArray[Any] = np.concatenate([source.tokens, target.tokens])[positions_of(starts, lengths)]
    return tokens.astype(dtype)


def read_index(folder: Path) -> dict[str, Any]:
    """Return the index of a finished cache. Raises DamagedCacheError if it is missing, damaged or foreign."""
    try:
        index, _ = unsealed((folder / "index.json").read_text(encoding="utf-8"), LEGACY)
        if index["format"] != FORMAT or index["digest"] != folder.name:
            raise ValueError("it is of another cache")
    except (OSError, ValueError, KeyError) as error:
        raise DamagedCacheError(f"{folder}/index.json: damaged: {error}") from error
    return index


def is_whole(folder: Path) -> bool:
    """Return whether a cache is finished and all its blocks are as they were written."""
    try:
        index = read_index(folder)
        for part in index["parts"]:
            for array in _part(folder, part, index).values():
                array.check_all()
    except (DamagedCacheError, DamagedBlockError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def open_corpus(
    folder: Path,
    part: str,
    origins: tuple[Origin, ...],
    tokenizers: tuple[Tokenizer, Tokenizer | Labels],
    limits: Limits,
    task: Task,
) -> TokenizedCorpus:
    """Open one part of a finished cache. Raises DamagedCacheError if a file is missing, damaged or foreign.

    The blocks of tokens and frames are checked when they are first used; all others are checked here.
    """
    index = read_index(folder)
    try:
        shape, layout = index["parts"][part], _layout(index)
        pairs, first = int(shape["pairs"]), tuple(map(int, shape["first"]))
        account = _renamed(Account.from_dict(index["account"]), dict(zip(index["files"], origins, strict=True)))
        stored = _part(folder, part, index)
        lazy = {name: stored.pop(name) for name in [*stored] if name in ("tokens", "frames")}
        arrays = {name: each.check_all() for name, each in stored.items()}
    except (OSError, ValueError, KeyError, TypeError, DataError, DamagedBlockError) as error:
        raise DamagedCacheError(str(error) if isinstance(error, DamagedBlockError) else f"{folder}: damaged") from error
    return TokenizedCorpus(
        pairs=pairs,
        account=account,
        digest=folder.name,
        source_lengths=arrays["source_lengths"],
        target_lengths=arrays["target_lengths"],
        origins=origins,
        first=first,
        source_tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
        limits=limits,
        task=task,
        tokens=lazy["tokens"].values,
        starts=arrays["starts"],
        line_numbers=arrays["lines"],
        frames=lazy["frames"].values if layout.frame_size else None,
        document_hashes=arrays.get("document_hashes"),
        frame_ends=arrays["frame_lengths"].cumsum(dtype=np.int64) if layout.frame_size else None,
        stored=lazy,
    )


def _layout(index: Mapping[str, Any]) -> Layout:
    frame_size, documents = int(index.get("frame_size", 0)), bool(index.get("documents"))
    return Layout(token=index["token"], length=index["length"], frame_size=frame_size, documents=documents)


def _part(folder: Path, part: str, index: Mapping[str, Any]) -> dict[str, CheckedArray]:
    """Return the arrays of a part of a cache."""
    layout, shape = _layout(index), index["parts"][part]
    counts = layout.counts(int(shape["pairs"]), int(shape["tokens"]), int(shape.get("frames", 0)))
    return _mapped(folder, part, layout, counts, shape)


def _mapped(
    folder: Path, part: str, layout: Layout, counts: Mapping[str, int], shape: Mapping[str, Any]
) -> dict[str, CheckedArray]:
    """Map the arrays of a part.  shape: with the checksums "sums", unless an earlier version wrote it."""
    arrays = {}
    for name, count in counts.items():
        path, dtype = folder / f"{part}.{name}", layout.type_of(name)
        if path.stat().st_size != count * dtype.itemsize:
            raise DamagedBlockError(
                f"{path}: damaged: {path.stat().st_size:,} bytes, expected {count * dtype.itemsize:,}"
            )
        values = np.asarray(np.memmap(path, dtype, mode="r", shape=(count,))) if count else np.zeros(0, dtype)
        if name == "frames":
            values = values.reshape(-1, layout.frame_size)
        arrays[name] = CheckedArray(path, values, shape["sums"][name] if "sums" in shape else None)
    return arrays


def _renamed(account: Account, origins: Mapping[str, Origin]) -> Account:
    """Return the account with its examples under the current paths: the files may have moved since."""
    examples = {
        reason: pair._replace(file=origins[pair.file].file if pair.file in origins else pair.file)
        for reason, pair in account.examples.items()
    }
    directions = {name: _renamed(each, origins) for name, each in account.directions.items()}
    return replace(account, examples=examples, directions=directions)


def texts_of(corpus: TokenizedCorpus, numbers: Sequence[int]) -> tuple[list[str], list[str]]:
    """Read sources and references of some pairs of a corpus again from its files.  numbers: ascending."""
    sources: list[str] = []
    references: list[str] = []
    for origin, first, end in zip(corpus.origins, corpus.first, corpus.first[1:], strict=False):
        wanted = {int(corpus.line_numbers[number]) for number in numbers if first <= number < end}
        if not wanted:
            continue
        for pair in origin.read():
            if pair.line in wanted:
                wanted.discard(pair.line)
                sources.append(pair.source)
                references.append(pair.target)
                if not wanted:
                    break
    return sources, references


def cached_target_counts(
    cache: Path, settings: DataSettings, tokenizers: tuple[Tokenizer, Tokenizer]
) -> NDArray[np.int64] | None:
    """Return the count [V] of each target token in the training pairs, one EOS per pair; None without a cache.

    cache: the folder of token caches. The one built from the training files in `settings` is read, so the counts are
    those after cleaning, even if the files have changed since.
    """
    places = origins(settings, "train") if settings.train or settings.train_source or settings.corpus else ()
    files = [place.file for place in places]
    for folder in sorted(path.parent for path in cache.glob("*/index.json")):
        try:
            if read_index(folder)["files"] != files or not files:
                continue
            corpus = open_corpus(folder, "used", places, tokenizers, NO_LIMITS, find_task(settings.task))
        except (KeyError, DamagedCacheError):
            continue
        counts = np.zeros(len(tokenizers[1]), np.int64)
        for begin in range(0, corpus.pairs, _PAIRS):
            _, target = corpus.sides(np.arange(begin, min(begin + _PAIRS, corpus.pairs)))
            tokens = target.tokens[positions_of(target.starts, target.lengths)]
            if int(tokens.max(initial=0)) >= len(counts):
                return None  # of another vocabulary
            counts += np.bincount(tokens, minlength=len(counts))
        counts[tokenizers[1].specials.eos] += corpus.pairs
        return counts
    return None
