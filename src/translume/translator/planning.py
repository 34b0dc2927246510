"""Split lines into pieces that the model can read, and group them into windows and batches."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import shake_128
from itertools import chain, groupby, zip_longest
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings, Direction, Directions
from translume.data.lengths import truncated_ids
from translume.errors import DataError, TranslationError
from translume.lazy import Tensor, torch
from translume.parallel import LaterError
from translume.sources import FrameReader, describe, frame_reader
from translume.text import SpecialIds, Tokenizer
from translume.text.segmentation import has_letters
from translume.translator.constraints import Constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A text and its line number from 1; 0 if there is only one text.

    constraints: phrases that its target must contain.  direction: its languages, instead of those in [decoding].
    given: a non-text source, such as an array; `text` describes it. None: `text` is the source, or its path.
    target: the target to score, if there is one.  fault: why the line cannot be read; empty if it can.
    document: equal for the consecutive lines of one document, if the model reads context; None: a document of its own.
    before: the sources and targets before the first line of such a document, which are context too.
    """

    number: int
    text: str
    constraints: tuple[str, ...] = ()
    direction: Direction | None = None
    given: object = None
    target: str | None = None
    fault: str = ""
    document: Hashable = None
    before: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_source(cls, source: object, constraints: Iterable[str] = (), *, number: int = 0) -> "Line":
        """The line of a text, or of a source that is given as an array or the like."""
        if isinstance(constraints, str):
            raise TypeError("constraints: found one string, expected a list of strings")
        if isinstance(source, str):
            return cls(number=number, text=source, constraints=tuple(constraints))
        return cls(number=number, text=describe(source), given=source, constraints=tuple(constraints))

    @property
    def place(self) -> str:
        """The beginning of error messages about the line."""
        return f"line {self.number}" if self.number else "text"


class LineError(TranslationError):
    """A line that cannot be translated. The lines before it are not affected."""

    def __init__(self, line: Line, reason: str) -> None:
        super().__init__(f"{line.place}: {reason}")
        self.line, self.reason = line, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A whole line, or one sentence of it, that is translated at once.

    ids: without tags and EOS; empty if there is nothing to translate.  text: of these ids.  spacing: the white
    space after it.  first: whether it is the first piece of its line.  kept: whether its text, which has no ids, is its
    translation.
    source_tags, target_tags: ids of the tags that the encoder reads before `ids`, and the decoder before the target.
    warnings: about ids that are left out; `LinePlan` has them for a whole line.
    frames: [L, F], of a non-text source. Then there is one id for each position of the encoder, computed from the
    frames, which seeds sampling; the encoder does not read it.
    """

    ids: tuple[int, ...]
    text: str = ""
    spacing: str = ""
    first: bool = True
    constraints: tuple[Constraint, ...] = ()
    source_tags: tuple[int, ...] = ()
    target_tags: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    frames: NDArray[np.float32] | None = None
    kept: bool = False

    @property
    def read_ids(self) -> tuple[int, ...]:
        """The ids that the encoder reads, without EOS."""
        return self.source_tags + self.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlan:
    """A line split into pieces."""

    line: Line
    pieces: tuple[Piece, ...]
    warnings: tuple[str, ...] = ()


def directions_of(model: Checkpoint) -> Directions:
    """Return the directions of a model."""
    languages = model.target_tokenizer.languages or model.source_tokenizer.languages
    return Directions.from_settings(model.config.data, model.config.model, languages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """The ids of the tags before the tokens of a source, and between bos and the tokens of a target."""

    source: tuple[int, ...] = ()
    target: tuple[int, ...] = ()

    @classmethod
    def from_direction(cls, model: Checkpoint, direction: Direction) -> "Tags":
        """Return the tags of a direction, as `model.language_tags` says."""
        reads, writes = model.source_tokenizer.languages, model.target_tokenizer.languages
        if model.config.model.language_tags == "source":
            return cls(source=(reads[direction.target],))
        if model.config.model.language_tags == "target":
            return cls(source=(reads[direction.source],), target=(writes[direction.target],))
        if model.config.model.target_tags:
            tokens = model.target_tokenizer.vocabulary.speech_tokens()
            return cls(target=tokens.prompt(direction.source, direction.target))
        return NO_TAGS


NO_TAGS = Tags()


def splits_sentences(model: Checkpoint, split: Literal["auto", "always", "never"]) -> bool:
    """Whether every line is translated sentence by sentence.

    "auto": if the languages differ and the model was trained on single sentences, or on data of unknown lengths.
    """
    if split != "auto":
        return split == "always"
    return model.config.translates and (model.lengths is None or model.lengths.single_sentences)


def keeps_letterless(model: Checkpoint, settings: DecodingSettings) -> bool:
    """Whether a text without letters is its own translation."""
    keeps = model.config.translates if settings.letterless == "auto" else settings.letterless == "keep"
    return keeps and not settings.prefix


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a model reads lines.

    limit: maximum number of tokens of a piece, EOS excluded.  sentences: whether every line is split into
    sentences.  parts: whether a longer line is.  language: of the sources.
    keep: the end of a longer piece that is read, with a warning; "none" raises LineError.
    tags: of the languages.  letterless: whether a text without letters is kept as it is.
    """

    limit: int
    sentences: bool
    parts: bool
    language: str
    keep: Literal["keep_first", "keep_last", "none"]
    tags: "Tags"
    reader: FrameReader | None = None
    """The reader of non-text sources."""
    letterless: bool = False

    @classmethod
    def from_settings(
        cls, model: Checkpoint, settings: DecodingSettings, direction: Direction | None = None
    ) -> "Reading":
        """Return how a model reads lines with the settings of a search.

        direction: instead of that in `settings`.
        Raises SettingsError if the model does not have the direction.

        Pieces are cut as in training (`data.cleaning.too_long`), or if `decoding.max_length_action` is "truncate".
        """
        given = direction or Direction(source=settings.from_, target=settings.to)
        chosen = directions_of(model).resolve(given.source, given.target)
        tags = Tags.from_direction(model, chosen)
        ends = max(1, len(model.source_tokenizer.specials.source_end))
        cleaning, limit = model.config.data.cleaning, model.config.longest_source - ends - len(tags.source)
        keep: Literal["keep_first", "keep_last", "none"] = "none"
        if cleaning.too_long != "drop":
            limit, keep = min(limit, cleaning.max_tokens), cleaning.too_long
        elif settings.max_length_action == "truncate":
            keep = "keep_first"
        sentences = splits_sentences(model, settings.split)
        return cls(
            limit=limit,
            sentences=sentences,
            parts=sentences or model.config.translates,
            language=chosen.source,
            keep=keep,
            tags=tags,
            reader=frame_reader(model.config.data.source),
            letterless=keeps_letterless(model, settings),
        )

    def cut(self, parts: Sequence[T], which: str = "the text") -> tuple[Sequence[T], tuple[str, ...]]:
        """Return the part of a piece that is read, by `limit` and `keep`, and a warning if it is not the whole.

        parts: its ids, or one value for each of them.  which: the piece, in the warning.
        """
        if self.keep == "none" or len(parts) <= self.limit:
            return parts, ()
        end = "the last " if self.keep == "keep_last" else ""
        warning = f"truncated: {which} had {len(parts):,} tokens and was cut to {end}{self.limit:,}"
        return truncated_ids(parts, self.limit, self.keep), (warning,)

    @property
    def cuts_lines(self) -> bool:
        """Whether a line that is too long is cut, rather than split or refused."""
        return self.keep != "none" and not self.parts

    def cut_line(self, parts: Sequence[T]) -> tuple[Sequence[T], tuple[str, ...]]:
        """Return `cut` for a line that must stay whole: where a search splits it, all of it is read."""
        return self.cut(parts) if self.cuts_lines else (parts, ())


def plan_lines(lines: Sequence[Line], tokenizer: Tokenizer, reading: Reading) -> list[LinePlan]:
    """Split lines into pieces that a model can read.  tokenizer: of the sources.

    Raises LineError for the first line with a piece that is too long and must not be cut, or that cannot be read.
    """
    if reading.reader is not None:
        return [_plan_frames(line, reading.reader, reading) for line in lines]
    texts = [_sentences(line, reading) if reading.sentences else [(line.text, "")] for line in lines]
    encoded = iter(tokenizer.encode_all(["" if text.isspace() else text for each in texts for text, _ in each]))
    plans = []
    for line, sentences in zip(lines, texts, strict=True):
        ids = [next(encoded) for _ in sentences]
        if not reading.sentences and reading.parts and len(ids[0]) > reading.limit:
            sentences = _sentences(line, reading)
            ids = tokenizer.encode_all([text for text, _ in sentences]) if len(sentences) > 1 else ids
        warnings: list[str] = []
        if reading.parts and reading.keep == "none" and any(len(each) > reading.limit for each in ids):
            sentences, warnings = _shorter(sentences, ids, tokenizer, reading.limit)
            ids = tokenizer.encode_all([text for text, _ in sentences])
        plans.append(_plan_line(line, sentences, ids, reading, warnings))
    return plans


def _plan_frames(line: Line, reader: FrameReader, reading: Reading) -> LinePlan:
    """Return the plan of a line with a non-text source: one piece, empty for a blank line."""
    source = line.text if line.given is None else line.given
    if isinstance(source, str) and not source.strip():
        return LinePlan(line=line, pieces=(Piece(ids=()),))
    try:
        piece = frames_piece(reader, source, reading.limit)
    except DataError as error:
        raise LineError(line, str(error)) from None
    return LinePlan(line=line, pieces=(replace(piece, text=line.text, target_tags=reading.tags.target),))


def frames_piece(reader: FrameReader, source: object, limit: int) -> Piece:
    """Return the piece of a non-text source.

    limit: maximum number of positions of the encoder.  Raises DataError for a source that is longer or unreadable.
    """
    frames = reader.read(source)
    count = reader.settings.positions_of(len(frames))
    if window := reader.settings.window:  # a search reads one window after the other
        return Piece(ids=frame_ids(frames[:window], reader.settings.positions_of(window)), frames=frames)
    if count > limit:
        name = source if isinstance(source, str) else describe(source)
        raise DataError(
            f"{name}: {len(frames):,} frames are {count:,} positions of the encoder, expected at most {limit:,}"
        )
    return Piece(ids=frame_ids(frames, count), frames=frames)


def frame_ids(frames: NDArray[np.float32], count: int) -> tuple[int, ...]:
    """Return `count` ids that depend on frames alone."""
    return tuple(np.frombuffer(shake_128(frames.tobytes()).digest(2 * count), np.uint16).tolist())


def _sentences(line: Line, reading: Reading) -> list[tuple[str, str]]:
    """The sentences of a line, without white space around it; a single one with it."""
    from translume.text.sentences import split_text

    sentences = split_text(line.text.strip(), reading.language)
    return sentences if len(sentences) > 1 else [(line.text, "")]


def _shorter(
    sentences: Sequence[tuple[str, str]], encoded: Sequence[Sequence[int]], tokenizer: Tokenizer, limit: int
) -> tuple[list[tuple[str, str]], list[str]]:
    """The sentences, with parts of those that are too long, and a warning about each of these."""
    pieces, warnings = list[tuple[str, str]](), list[str]()
    for number, ((text, spacing), ids) in enumerate(zip(sentences, encoded, strict=True), start=1):
        parts = _parts(text.strip(), len(ids), tokenizer, limit)
        if len(parts) == 1:
            pieces.append((text, spacing))
            continue
        words = [part.rstrip() for part in parts]
        pieces += [(word, part[len(word) :]) for word, part in zip(words, parts, strict=True)]
        pieces[-1] = (pieces[-1][0], pieces[-1][1] + spacing)
        which = f"sentence {number} of {len(sentences)}" if len(sentences) > 1 else "a sentence"
        warnings.append(f"split: {which} had {len(ids):,} tokens and was translated in {len(parts):,} parts")
    return pieces, warnings


def _parts(text: str, tokens: int, tokenizer: Tokenizer, limit: int) -> list[str]:
    """Cut a text of too many tokens into parts that fit, unless they are single words."""
    if tokens <= limit:
        return [text]
    from translume.text.sentences import parts_of

    parts = parts_of(text, max(1, int(PART_SHARE * len(text) * limit / tokens)))
    if len(parts) == 1:
        return parts
    return [
        shorter
        for part, ids in zip(parts, tokenizer.encode_all([part.rstrip() for part in parts]), strict=True)
        for shorter in _parts(part, len(ids), tokenizer, limit)
    ]


PART_SHARE = 0.9
"""Length of a part in proportion to the limit: some have more tokens for their characters than the whole sentence."""


def _plan_line(
    line: Line,
    sentences: Sequence[tuple[str, str]],
    encoded: Sequence[Sequence[int]],
    reading: Reading,
    warnings: list[str],
) -> LinePlan:
    pieces, limit = [], reading.limit
    for number, (ids, (text, spacing)) in enumerate(zip(encoded, sentences, strict=True), start=1):
        kept = reading.letterless and bool(ids) and not line.constraints and not has_letters(text)
        ids = () if kept else ids
        if len(ids) > limit:
            which = f"sentence {number} of {len(sentences)}" if len(sentences) > 1 else "a sentence"
            which = which if reading.parts else "the text"
            if reading.keep == "none":
                splits = "" if reading.parts else ', decoding.split = "always" (--split always) splits it at sentences'
                raise LineError(
                    line,
                    f"{which} has {len(ids):,} tokens, expected at most {limit:,}; "
                    f'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it{splits}',
                )
            ids, cut = reading.cut(ids, which)
            warnings += cut
        pieces.append(
            Piece(
                ids=tuple(ids),
                text=text,
                spacing=spacing,
                first=number == 1,
                kept=kept,
                source_tags=reading.tags.source,
                target_tags=reading.tags.target,
            )
        )
    return LinePlan(line=line, pieces=tuple(pieces), warnings=tuple(warnings))


WINDOW_LINES = 4096
"""Maximum number of lines that are read before the first of them is returned."""
WINDOW_CHARACTERS = 2_000_000
"""Maximum number of characters in a window, unless a single line has more."""
MIN_COUNTED_TOKENS = 16
"""Tokens that a shorter text counts as: the logits of thousands of single words would take gigabytes."""
FULL_BATCH_WIDTH = 2
"""Beam width up to which a batch may hold `max_tokens` source tokens. With wider beams it holds proportionally less.

Some hundred rows keep a core busy. The states of more rows no longer fit the processor's cache.
"""
DEVICE_BATCH_TOKENS = 1 << 16
"""Maximum number of source tokens that a GPU encodes at once, padding included, if `max_tokens` is `ANY_MAX_TOKENS`."""
DEVICE_BATCH_ROWS = 512
"""Maximum number of sentences that a GPU encodes together, as many as it searches at a time."""
ANY_MAX_TOKENS: int = DecodingSettings.model_fields["max_tokens"].default
"""The default of `decoding.max_tokens`, with which the free memory of a GPU decides how many sentences share a step."""


def same_document(first: object, second: object) -> bool:
    """Whether two consecutive items are lines of one document."""
    if not (isinstance(first, Line) and isinstance(second, Line)):
        return False
    return first.document is not None and first.document == second.document


def windows(
    items: Iterable[tuple[T, int]], *, lines: int = WINDOW_LINES, characters: int = WINDOW_CHARACTERS
) -> Iterator[list[T]]:
    """Yield lists of consecutive items.  items: each with its size in characters.

    The lines of one document are in one list, however long it is.

    If reading the items raises an error, such as for a line that is not UTF-8 or one of the caller's generator, it is
    raised after the items before it were yielded.
    """
    window: list[T] = []
    total = 0
    with LaterError() as broken:
        for item, size in items:
            full = len(window) >= lines or total + size > characters
            if window and full and not same_document(window[-1], item):
                yield window
                window, total = [], 0
            window.append(item)
            total += size
    if window:
        yield window
    broken.raise_error()


def batches(lengths: Sequence[int], max_tokens: int, *, shortest: int = 1) -> Iterator[list[int]]:
    """Yield all positions in `lengths`, the longest first, in batches of at most `max_tokens` tokens with padding.

    A length below `shortest` counts as `shortest`. One longer than `max_tokens` gets a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * max(lengths[batch[0]], shortest) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def bucketed_batches(lengths: Sequence[int], max_tokens: int, max_rows: int) -> Iterator[list[list[int]]]:
    """Yield all positions in `lengths`, the longest first, in groups of batches for searches on a device.

    The lengths of a group are padded alike there. A batch has at most `max_rows` positions and at most `max_tokens`
    tokens with this padding, unless a single position has more.
    """
    from translume.decoding.device_search import MIN_SOURCE, doubled

    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for padded_length, group in groupby(order, key=lambda index: doubled(lengths[index], MIN_SOURCE)):
        positions, rows = list(group), max(1, min(max_rows, max_tokens // padded_length))
        yield [positions[begin : begin + rows] for begin in range(0, len(positions), rows)]


FRAMES_CHARACTERS = WINDOW_CHARACTERS // 64
"""Characters that a source of frames counts as, so that few of them are in memory at a time."""


def numbered_lines(
    texts: Iterable[object],
    constraints: Iterable[Iterable[str]] | None = None,
    *,
    frames: bool = False,
    documents: Iterable[Hashable] | bool = False,
) -> Iterator[tuple[Line, int]]:
    """Number texts as lines from 1, with their sizes, for `windows`. A line break at the end of a text is removed.

    constraints: a list for each text.
    frames: whether the lines name sources of frames, or are such sources, as arrays.
    documents: `Line.document` of each text; True: blank texts separate documents; False: there are none.
    Raises TranslationError if the numbers of constraints, documents and texts differ.
    """
    nothing: Any = object()
    columns: dict[str, Any] = {"constraints": constraints, "documents": documents}
    given = {name: each for name, each in columns.items() if each is not None and not isinstance(each, bool)}
    blank = 0
    for number, (text, *values) in enumerate(zip_longest(texts, *given.values(), fillvalue=nothing), start=1):
        named = dict(zip(given, values, strict=True))
        for name, value in named.items():
            if text is nothing or value is nothing:
                missing = f"no text for the {name}" if text is nothing else f"no {name} for the text"
                expected = f"as many {name.replace('constraints', 'lists of constraints')} as texts"
                raise TranslationError(f"line {number}: found {missing}, expected {expected}")
        source = text if frames and not isinstance(text, str) else without_line_break(text, number)
        blank += isinstance(source, str) and not source.strip()
        document = named.get("documents", blank if documents else None)
        line = replace(Line.from_source(source, named.get("constraints", ()), number=number), document=document)
        yield line, FRAMES_CHARACTERS if frames else len(line.text)


def without_line_break(text: object, number: int) -> str:
    """A line of a file without its line break. Raises TypeError for anything but str."""
    if not isinstance(text, str):
        raise TypeError(f"line {number}: found {type(text).__name__}, expected a string")
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def source_arrays(pieces: Sequence[Piece], specials: SpecialIds) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The sources of pieces as a model reads them: ids [B, S] or frames [B, L, F], and their mask.

    specials: of the source tokenizer.
    """
    frames = [piece.frames for piece in pieces if piece.frames is not None]
    if frames:
        from translume.data.batch import padded_frames

        return padded_frames(frames)
    return padded_arrays([[*piece.read_ids, *specials.source_end] for piece in pieces], specials.pad)


def padded_arrays(rows: Sequence[Sequence[int]], pad: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Lists of ids as one array [B, S] padded with `pad`, and the mask [B, S] that is True at the lists' own ids."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    return ids, mask


def padded_sources(
    pieces: Sequence[Piece], specials: SpecialIds, device: "torch.device | None"
) -> tuple[Tensor, Tensor]:
    """What `source_arrays` returns, as tensors."""
    source, mask = tensors_of(source_arrays(pieces, specials), device)
    return source, mask


def tensors_of(arrays: Sequence[NDArray[Any]], device: "torch.device | None") -> list[Tensor]:
    """The arrays as tensors on a device."""
    return [torch.from_numpy(each).to(device) for each in arrays]
