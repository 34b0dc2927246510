"""A batch: padded ids of some pairs, as model input."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain

import numpy as np

from translume.lazy import Tensor, torch
from translume.text import Labels, SpecialIds, Tokenizer

GIVEN = -1
"""The label of a token that is read but not predicted."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B pairs, padded to the longest source S and the longest target T (bos and eos included).

    source [B, S] long, eos last; source_mask [B, S] bool; target [B, T] long, bos first; labels [B, T] long, eos last;
    target_mask [B, T] bool: True where there is a token. Frames are [B, L, F] float, their mask [B, L].
    `lines` are the pairs' numbers in the corpus (`place` gives file and line); `tokens` is the number of labels that
    are predicted. The tags of languages stand before the source's ids, and after bos; a tag's label is padding, though
    target_mask is True. Context before a target is read like a tag, but the labels of its tokens and of the EOS after
    it are `GIVEN`.
    For classification, labels are classes [B, 1], or 0 and 1 [B, 1, C] if a text may have several;
    `tokens` is B and target is all zeros.
    Rows after those of the pairs, if any, have weight 0 (see `filled`); `lines`, `tokens` and `len` leave them out.
    """

    source: Tensor
    source_mask: Tensor
    target: Tensor
    labels: Tensor
    target_mask: Tensor
    _: KW_ONLY
    lines: tuple[int, ...]
    tokens: int

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def rows(self) -> int:
        """The number of rows, those of weight 0 included."""
        return self.source.size(0)

    def to(self, device: "torch.device | str") -> "Batch":
        """Return the batch on a device."""
        if torch.device(device) == self.source.device:
            return self
        moved = [t.to(device, non_blocking=True) for t in self._tensors()]
        return Batch(*moved, lines=self.lines, tokens=self.tokens)

    def pinned(self) -> "Batch":
        """Return the batch in pinned memory, from which a GPU can copy it during computations; itself without CUDA."""
        if not torch.cuda.is_available():
            return self
        return Batch(*(tensor.pin_memory() for tensor in self._tensors()), lines=self.lines, tokens=self.tokens)

    def record_stream(self, stream: "torch.Stream") -> None:
        """Keep the memory of a batch on a GPU until this stream has used it; for batches that another stream copied."""
        for tensor in self._tensors():
            tensor.record_stream(stream)

    def halves(self) -> tuple["Batch", "Batch"]:
        """Return the first and second half of a batch that does not fit the device's memory. Padding stays.

        Each has half of the pairs and half of the rows of weight 0; the first half of a single pair has no pair.
        """
        pairs, rows = len(self), self.rows
        middle, filled = pairs // 2, pairs + (rows - pairs) // 2
        counted = self.target_mask & (self.labels != GIVEN)
        tags = (int(counted.sum()) - self.tokens) // max(pairs, 1)
        tokens = int(counted[:middle].sum()) - tags * middle
        tensors = [torch.cat([tensor[:middle], tensor[pairs:filled]]) for tensor in self._tensors()]
        others = [torch.cat([tensor[middle:pairs], tensor[filled:]]) for tensor in self._tensors()]
        first_half = Batch(*tensors, lines=self.lines[:middle], tokens=tokens)
        return first_half, Batch(*others, lines=self.lines[middle:], tokens=self.tokens - tokens)

    def filled(
        self,
        rows: int,
        source: int,
        target: int,
        *,
        source_specials: SpecialIds,
        target_specials: SpecialIds | None,
    ) -> "Batch":
        """Return the batch with sources padded to S or L = `source`, targets to T = `target`, and rows of weight 0.

        These come last, so that there are `rows` in all. They have no label: target_mask is False, the target is bos.
        Their source is one eos or frame of zeros, so that attention has something to read.
        target_specials: None for classification.
        """
        if rows < self.rows or source < self.source.size(1) or target < self.target.size(1):
            raise ValueError(f"a batch of {self.rows} × {self.source.size(1)} and {self.target.size(1)} is too large")
        ids = self.source.dim() == 2
        pad, bos = (target_specials.pad, target_specials.bos) if target_specials is not None else (0, 0)
        tensors = [
            _extended(self.source, rows, source, source_specials.pad if ids else 0),
            _extended(self.source_mask, rows, source, 0),
            _extended(self.target, rows, target, pad),
            _extended(self.labels, rows, target, pad),
            _extended(self.target_mask, rows, target, 0),
        ]
        tensors[0][self.rows :, 0] = source_specials.eos if ids else 0
        tensors[1][self.rows :, 0] = True
        tensors[2][self.rows :, 0] = bos
        return Batch(*tensors, lines=self.lines, tokens=self.tokens)

    def without_rows(self) -> "Batch":
        """Return a batch without pairs, of length 0."""
        return Batch(*(tensor[:0, :0] for tensor in self._tensors()), lines=(), tokens=0)

    def _tensors(self) -> list[Tensor]:
        return [self.source, self.source_mask, self.target, self.labels, self.target_mask]


def _extended(tensor: Tensor, rows: int, columns: int, value: int) -> Tensor:
    """Return a new tensor [rows, columns, …] that begins with another one and has `value` elsewhere."""
    extended = tensor.new_full((rows, columns, *tensor.shape[2:]), value)
    extended[: tensor.size(0), : tensor.size(1)] = tensor
    return extended


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sequences of unequal length inside one flat array: `tokens[starts[i] : starts[i] + lengths[i]]`.

    tokens: ids [n], or frames [n, F].
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def from_sequences(cls, sequences: Sequence[Sequence[int]]) -> "Ragged":
        """Return sequences of ids, one after another."""
        tokens, lengths = flat(sequences)
        return cls(tokens, starts_of(lengths), lengths)


def flat(sequences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return all ids as one array, int64, and the length of each sequence, int64."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    total = int(lengths.sum())
    return np.fromiter(chain.from_iterable(sequences), np.int64, total), lengths


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """Return where each sequence starts in the concatenation."""
    starts = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], out=starts[1:])
    return starts


def positions_of(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the positions of the tokens of sequences in a flat array, sequence after sequence."""
    positions: np.ndarray = np.arange(int(lengths.sum())) + np.repeat(starts - starts_of(lengths), lengths)
    return positions


@dataclass(frozen=True, slots=True)
class BatchTags:
    """The ids of the tags of languages: before each source [B, 0 or 1], and after bos [B, 0 or 1]."""

    source: np.ndarray
    target: np.ndarray


def padded_batch(
    source: Ragged,
    target: Ragged,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    lines: tuple[int, ...],
    tags: BatchTags | None = None,
) -> Batch:
    """Return a batch of ragged sequences without bos and eos. Up to an EOS inside it, a target is context."""
    specials = target_tokenizer.specials
    source_ids, source_mask = _sources(source, source_tokenizer.specials)
    labels, target_mask = _rectangle(target, specials.eos, specials.pad)
    shifted = np.full_like(labels, specials.pad)
    shifted[:, 0] = specials.bos
    np.copyto(shifted[:, 1:], labels[:, :-1], where=target_mask[:, 1:])
    separators = (shifted == specials.eos) & target_mask
    separators[:, 0] = False  # BOS may have the same id
    context = np.logical_or.accumulate(separators[:, :0:-1], 1)[:, ::-1]  # whether a separator is read later
    labels[:, :-1][context] = GIVEN
    if tags is not None:
        source_ids, source_mask = _after(tags.source, source_ids), _after(tags.source != -1, source_mask)
        shifted = np.concatenate([shifted[:, :1], tags.target, shifted[:, 1:]], 1)
        labels = _after(np.full_like(tags.target, specials.pad), labels)
        target_mask = _after(tags.target != -1, target_mask)
    tensors = [torch.from_numpy(array) for array in (source_ids, source_mask, shifted, labels, target_mask)]
    return Batch(*tensors, lines=lines, tokens=int(target.lengths.sum()) + len(lines) - int(context.sum()))


def _after(first: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return np.concatenate([first, rest], 1) if first.size else rest


def block_batch(
    source: Ragged, target: Ragged, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, lines: tuple[int, ...]
) -> Batch:
    """Return a batch of blocks of documents, whose sources are one EOS each.

    The labels are the tokens of a block. The decoder's first input is the token before the block, or bos if the block
    begins a document; the token before that one is the EOS of the document before.
    """
    specials = target_tokenizer.specials
    column = np.arange(int(target.lengths.max(initial=0)))
    inside = column < target.lengths[:, None]
    labels = np.full(inside.shape, specials.pad, np.int64)
    labels[inside] = target.tokens[(target.starts[:, None] + column)[inside]]
    before = target.tokens[np.maximum(target.starts - 1, 0)]
    inputs = np.full_like(labels, specials.pad)
    inputs[:, 0] = np.where((target.starts == 0) | (before == specials.eos), specials.bos, before)
    np.copyto(inputs[:, 1:], labels[:, :-1], where=inside[:, 1:])
    sources = np.full((len(lines), 1), source_tokenizer.specials.eos, np.int64)
    arrays = (sources, np.ones_like(sources, np.bool_), inputs, labels, inside)
    return Batch(*map(torch.from_numpy, arrays), lines=lines, tokens=int(target.lengths.sum()))


def labelled_batch(
    source: Ragged, target: Ragged, tokenizer: Tokenizer, labels: Labels, lines: tuple[int, ...]
) -> Batch:
    """Return a classification batch of ragged texts without eos and the ids of their labels."""
    source_ids, source_mask = _sources(source, tokenizer.specials)
    if labels.several:
        classes = np.zeros((len(lines), 1, len(labels)), np.int64)
        for row, (start, length) in enumerate(zip(target.starts.tolist(), target.lengths.tolist(), strict=True)):
            classes[row, 0, target.tokens[start : start + length]] = 1
    else:
        classes = target.tokens[target.starts].astype(np.int64)[:, None]
    nothing = np.zeros((len(lines), 1), np.int64)
    arrays = (source_ids, source_mask, nothing, classes, np.ones_like(nothing, np.bool_))
    return Batch(*map(torch.from_numpy, arrays), lines=lines, tokens=len(lines))


def _sources(ragged: Ragged, specials: SpecialIds) -> tuple[np.ndarray, np.ndarray]:
    """Return ids [B, S], each followed by padding and perhaps before it eos, or frames [B, S, F], and their mask."""
    if ragged.tokens.ndim == 1:
        ids, mask = _rectangle(ragged, specials.eos, specials.pad)
        if not specials.ends_source:
            ids, mask = np.where(mask[:, 1:], ids[:, :-1], specials.pad), mask[:, 1:]
        for id_ in specials.after_eos:
            ids = np.pad(ids, ((0, 0), (0, 1)), constant_values=specials.pad)
            longer = np.pad(mask, ((0, 0), (1, 0)), constant_values=True)
            ids[longer & ~np.pad(mask, ((0, 0), (0, 1)))], mask = id_, longer
        return ids, mask
    return padded_frames(
        [ragged.tokens[start : start + n] for start, n in zip(ragged.starts, ragged.lengths, strict=True)]
    )


def padded_frames(sources: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return sources of frames [L, F] as one array [B, L, F], float32 with zeros as padding, and its mask [B, L]."""
    lengths = np.array([len(each) for each in sources])
    frames = np.zeros((len(sources), int(lengths.max()), sources[0].shape[1]), np.float32)
    for row, each in zip(frames, sources, strict=True):
        row[: len(each)] = each
    return frames, np.arange(frames.shape[1]) < lengths[:, None]


def _rectangle(ragged: Ragged, eos: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids [B, longest + 1], each followed by eos and padding, and a mask that is False at padding."""
    lengths = ragged.lengths.astype(np.int64)
    column = np.arange(int(lengths.max(initial=0)) + 1)
    inside = column < lengths[:, None]  # [B, W]
    ids = np.full(inside.shape, pad, np.int64)
    positions = ragged.starts[:, None] + column  # [B, W]
    ids[inside] = ragged.tokens[positions[inside]]
    ids[np.arange(len(lengths)), lengths] = eos
    return ids, column <= lengths[:, None]
