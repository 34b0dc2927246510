"""Forced decoding: log-probabilities and distributions of given targets, and perplexities of language models."""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from translume.belief import NextToken
from translume.checkpoint import Checkpoint
from translume.config import Direction
from translume.config.data import ContextSettings
from translume.errors import DataError, SettingsError, TranslationError
from translume.json_values import to_values
from translume.lazy import Tensor, no_grad, torch
from translume.sources import frame_reader
from translume.sources.reader import describe
from translume.text.specials import UNKNOWN_LANGUAGE
from translume.translator.context import History, context_of_pair
from translume.translator.ensemble import EnsembleMembers, Forced
from translume.translator.planning import (
    FRAMES_CHARACTERS,
    Piece,
    Reading,
    batches,
    frames_piece,
    padded_arrays,
    source_arrays,
    tensors_of,
    without_line_break,
)
from translume.translator.results import TargetScore, TextHypothesis

CHUNK_ELEMENTS = 1 << 22
"""Maximum number of log-probabilities in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPair:
    """A source and a target to score.

    place: the beginning of error messages about the pair.  source: a text, or what a `FrameReader` reads.
    direction: its languages; None: those of [decoding].
    before: the sources and targets before it in its document, for a model that reads context.
    without_source: score the target with an empty text as its source, or as many neutral frames, which shows how much
    the target depends on its source.
    """

    place: str
    source: Any
    target: str | TextHypothesis
    direction: Direction | None = None
    before: tuple[tuple[str, str], ...] = ()
    without_source: bool = False


class PairError(TranslationError):
    """A pair that cannot be scored.  number: its position among the pairs."""

    def __init__(self, pair: ScoredPair, number: int, reason: str) -> None:
        super().__init__(f"{pair.place}: {reason}")
        self.number, self.reason = number, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBeliefs:
    """The predicted distributions of some target tokens.

    labels [m]: the tokens' ids.  pairs [m]: the positions of their pairs.  places [m]: their positions in the target,
    from 0.
    """

    belief: NextToken
    labels: Tensor
    pairs: Tensor
    places: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForcedBatch:
    """Pairs of similar lengths: source and its mask [B, S]; given, labels and their mask [B, T].

    places: the positions of the pairs.  warnings: about each pair.
    prompts: the number of labels of each pair at the beginning that are not predicted: tags and context.
    """

    places: Sequence[int]
    warnings: Sequence[tuple[str, ...]]
    arrays: Forced
    prompts: Sequence[int]

    @property
    def lengths(self) -> list[int]:
        """The number of labels of each pair."""
        return [int(count) for count in self.arrays[4].sum(1)]


@no_grad()
def score_pairs(
    checkpoint: Checkpoint, pairs: Sequence[ScoredPair], max_tokens: int, models: EnsembleMembers | None = None
) -> list[TargetScore]:
    """The scores of `pairs`, in order.

    models: score instead of the checkpoint's plain model; see `EnsembleMembers.score`.
    Raises PairError if a side is longer than the model can read.
    """
    scores: dict[int, TargetScore] = {}
    scorer = models or EnsembleMembers.from_checkpoint(checkpoint)
    for batch in _batches(checkpoint, pairs, max_tokens):
        log_probs, labels = scorer.score(batch.arrays).tolist(), batch.arrays[3].tolist()
        for row, (index, prompt, length) in enumerate(zip(batch.places, batch.prompts, batch.lengths, strict=True)):
            values = log_probs[row][prompt:length]
            scores[index] = TargetScore(
                log_prob=sum(values),
                tokens=tuple(checkpoint.target_tokenizer.tokens(labels[row][prompt:length])),
                token_log_probs=tuple(values),
                warnings=batch.warnings[row],
            )
    return [scores[index] for index in range(len(pairs))]


def beliefs_of_pairs(
    checkpoint: Checkpoint,
    pairs: Sequence[ScoredPair],
    max_tokens: int,
    rows: int | None = None,
    models: EnsembleMembers | None = None,
) -> Iterator[TokenBeliefs]:
    """Yield the predicted distributions of all target tokens, at most `rows` of them at a time.

    rows: None for about four million log-probabilities.  models: as for `score_pairs`.
    Pairs come by length, not in their order; the tokens of a pair come together and in order.
    Raises TranslationError if a side is longer than the model can read.
    """
    rows = rows or max(1, CHUNK_ELEMENTS // len(checkpoint.target_tokenizer))
    for batch in _batches(checkpoint, pairs, max_tokens):
        tensors = tensors_of(batch.arrays, checkpoint.device)
        prompts = torch.tensor(batch.prompts, device=tensors[3].device)
        given = torch.arange(tensors[3].size(1), device=prompts.device) < prompts[:, None]
        tensors[3] = tensors[3].masked_fill(given, -1)
        # Sentence by sentence, the order of `beliefs`.
        row, place = (tensors[4] & ~given).nonzero(as_tuple=True)
        place = place - prompts[row]
        pair = torch.tensor(batch.places, device=row.device)[row]
        begin = 0
        for belief, labels in (models or EnsembleMembers.from_checkpoint(checkpoint)).beliefs(tensors, rows):
            part = slice(begin, begin := begin + len(labels))
            yield TokenBeliefs(belief=belief, labels=labels, pairs=pair[part], places=place[part])


def _batches(checkpoint: Checkpoint, pairs: Sequence[ScoredPair], max_tokens: int) -> Iterator[_ForcedBatch]:
    source_tokenizer, target_tokenizer = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    readings = _readings(checkpoint, pairs)
    sources = _sources(checkpoint, pairs, readings)
    labels = [[*each.tags.target, *ids] for each, ids in zip(readings, _labels(checkpoint, pairs), strict=True)]
    prompts = [len(each.tags.target) for each in readings]
    longest = {"source": checkpoint.config.longest_source, "target": checkpoint.config.model.max_positions}
    lengths = [len(source.read_ids) + 1 for source in sources]
    for number, (pair, *sides) in enumerate(zip(pairs, lengths, map(len, labels), strict=True)):
        for side, length in zip(("source", "target"), sides, strict=True):
            if length > longest[side]:
                reason = f"the {side} has {length:,} tokens with EOS, expected at most {longest[side]:,}"
                raise PairError(pair, number, reason)
        if pair.before and checkpoint.config.data.context.used:
            context = context_of_pair(checkpoint, pair.before, *sides)
            sources[number] = replace(
                sources[number],
                source_tags=(*sources[number].source_tags, *context.source),
                warnings=(*sources[number].warnings, *filter(None, [context.warning])),
            )
            labels[number][prompts[number] : prompts[number]] = context.target
            prompts[number] += len(context.target)
            lengths[number] += len(context.source)
    longer = [max(source, len(target)) for source, target in zip(lengths, labels, strict=True)]
    for batch in batches(longer, max_tokens):
        source, source_mask = source_arrays([sources[index] for index in batch], source_tokenizer.specials)
        wanted, mask = padded_arrays([labels[index] for index in batch], target_tokenizer.specials.pad)
        inputs = np.concatenate([np.full((len(wanted), 1), target_tokenizer.specials.bos), wanted[:, :-1]], 1)
        yield _ForcedBatch(
            places=batch,
            warnings=[sources[index].warnings for index in batch],
            arrays=(source, source_mask, inputs, wanted, mask),
            prompts=[prompts[index] for index in batch],
        )


def _sources(checkpoint: Checkpoint, pairs: Sequence[ScoredPair], readings: Sequence[Reading]) -> list[Piece]:
    """The sources of pairs, cut as in a search. Raises PairError for a non-text source that cannot be read."""
    reader = frame_reader(checkpoint.config.data.source)
    if reader is None:
        texts = checkpoint.source_tokenizer.encode_all(["" if pair.without_source else pair.source for pair in pairs])
        sources = []
        for ids, reading in zip(texts, readings, strict=True):
            read, warnings = reading.cut_line(ids)
            sources.append(Piece(ids=tuple(read), source_tags=reading.tags.source, warnings=warnings))
        return sources
    pieces = []
    for number, pair in enumerate(pairs):
        try:
            piece = frames_piece(reader, pair.source, checkpoint.config.longest_source - 1)
        except DataError as error:
            raise PairError(pair, number, str(error)) from None
        if piece.frames is not None and (window := reader.settings.window) and len(piece.frames) > window:
            name = pair.source if isinstance(pair.source, str) else describe(pair.source)
            reason = f"{name}: {len(piece.frames):,} frames, expected at most {window:,} for a score"
            raise PairError(pair, number, reason)
        if pair.without_source and piece.frames is not None:
            from translume.model.frames import FrameEmbedding

            embedding = checkpoint.model.encoder.embedding
            assert isinstance(embedding, FrameEmbedding)
            piece = replace(piece, frames=embedding.neutral(torch.from_numpy(piece.frames)).numpy())
        pieces.append(piece)
    return pieces


def _readings(checkpoint: Checkpoint, pairs: Sequence[ScoredPair]) -> list[Reading]:
    """How the model reads each pair, by its languages."""
    settings = checkpoint.config.decoding
    by_direction = {
        given: Reading.from_settings(checkpoint, settings, given) for given in {pair.direction for pair in pairs}
    }
    if any(UNKNOWN_LANGUAGE in reading.tags.target for reading in by_direction.values()):
        raise SettingsError("decoding.from_: empty, expected the language of the recordings to score (--from)")
    return [by_direction[pair.direction] for pair in pairs]


def _labels(checkpoint: Checkpoint, pairs: Sequence[ScoredPair]) -> list[list[int]]:
    """The ids of each target: those of a text and EOS, or a hypothesis's own."""
    tokenizer = checkpoint.target_tokenizer
    eos = tokenizer.specials.eos
    texts = iter(tokenizer.encode_all([pair.target for pair in pairs if isinstance(pair.target, str)]))
    labels = []
    for pair in pairs:
        if isinstance(pair.target, str):
            labels.append([*next(texts), eos])
        elif eos in pair.target.ids[:-1]:
            raise TranslationError(
                f"{pair.place}: the hypothesis was joined from parts, expected one of a single sentence; "
                'split = "never" translates a text as one'
            )
        else:
            labels.append(list(pair.target.ids))
    return labels


def numbered_pairs(
    pairs: Iterable[tuple[Any, str | TextHypothesis]],
    direction: Direction,
    *,
    frames: bool = False,
    documents: Iterable[Hashable] | bool = False,
    context: ContextSettings | None = None,
) -> Iterator[tuple[ScoredPair, int]]:
    """Number pairs of one direction from 1, with their sizes, for `windows`.

    frames, documents: as for `numbered_lines`.  context: what the model reads; None: nothing.
    Raises TranslationError if there are fewer documents than pairs.
    """
    history = History(context) if context and context.used and documents is not False else None
    names, nothing = repeat(None) if isinstance(documents, bool) else iter(documents), object()
    for number, pair in enumerate(pairs, start=1):
        if isinstance(pair, str) or len(pair) != 2:
            found = "one text" if isinstance(pair, str) else f"{len(pair)} of them"
            raise TypeError(f"line {number}: found {found}, expected a pair of a source and a target")
        source, target = pair
        if isinstance(source, str) or not frames:
            source = without_line_break(source, number)
        if not isinstance(target, TextHypothesis):
            target = without_line_break(target, number)
        before: tuple[tuple[str, str], ...] = ()
        if history is not None:
            document = next(names, nothing)
            if document is nothing:
                found = "found no documents for the pair, expected as many documents as pairs"
                raise TranslationError(f"line {number}: {found}")
            before = history.add(source, target if isinstance(target, str) else target.text, document)
        scored = ScoredPair(place=f"line {number}", source=source, target=target, direction=direction, before=before)
        yield scored, FRAMES_CHARACTERS if frames else len(source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """How well a language model predicts texts.

    nats: −Σ log p of all tokens, EOS included.  words: of the raw texts, separated by white space.  bytes:
    of UTF-8.  empty: texts without tokens, which count nowhere else.  stride: tokens from one window of
    `context` tokens to the next; each token but the first ones of a text has at least `context` − `stride` before it.
    unknown: tokens that stand for text that is not in the vocabulary. Predicting them is easier than predicting the
    text, so figures by word, byte and character look better than they are.
    """

    nats: float
    documents: int
    tokens: int
    words: int
    characters: int
    bytes: int
    context: int
    stride: int
    empty: int = 0
    unknown: int = 0

    @property
    def perplexity(self) -> float:
        """exp(nats per token); it depends on the tokenizer."""
        return _exp(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """exp(nats per word)."""
        return _exp(self.nats, self.words)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the texts."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def nats_per_character(self) -> float:
        """Nats for each character of the texts."""
        return self.nats / self.characters if self.characters else math.nan

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON object, with null for those that are not finite."""
        names = ("perplexity", "word_perplexity", "bits_per_byte", "nats_per_character")
        values: dict[str, Any] = to_values({**{name: getattr(self, name) for name in names}, **asdict(self)})
        return values


def _exp(nats: float, count: int) -> float:
    mean = nats / count if count else math.nan
    return math.inf if mean > 700 else math.exp(mean)


def spans(count: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield windows (begin, end, scored) over `count` labels: each reads begin…end, and scores scored…end.

    Windows begin at the multiples of `stride`, which is from 1 to `context`. Every label is scored once, in the first
    window that reads it.
    """
    begin, end = 0, min(context, count)
    yield begin, end, 0
    while end < count:
        begin, scored = begin + stride, end
        end = min(begin + context, count)
        yield begin, end, scored


@no_grad()
def label_log_probs(
    models: EnsembleMembers, rows: Sequence[Sequence[int]], context: int, stride: int, max_tokens: int
) -> list[list[float]]:
    """Return the log-probability of each label of each row, the first of which follows bos, in nats.

    A label after the first `context` ones is predicted from at least `context` − `stride` tokens before it.
    """
    specials = models.members[0].checkpoint.target_tokenizer.specials
    windows = [(row, *span) for row, labels in enumerate(rows) for span in spans(len(labels), context, stride)]
    log_probs = [[0.0] * len(labels) for labels in rows]
    for batch in batches([end - begin for _, begin, end, _ in windows], max_tokens):
        chosen = [windows[index] for index in batch]
        labels, mask = padded_arrays([rows[row][begin:end] for row, begin, end, _ in chosen], specials.pad)
        prefixes = [
            [rows[row][begin - 1] if begin else specials.bos, *rows[row][begin : end - 1]]
            for row, begin, end, _ in chosen
        ]
        inputs, _ = padded_arrays(prefixes, specials.pad)
        source = np.full((len(chosen), 1), specials.eos)
        scores = models.score((source, source >= 0, inputs, labels, mask)).tolist()
        for (row, begin, end, scored), values in zip(chosen, scores, strict=True):
            log_probs[row][scored:end] = values[scored - begin : end - begin]
    return log_probs
