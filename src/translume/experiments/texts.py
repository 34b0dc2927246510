"""Propose settings for texts with labels and for documents: the second and the third table of docs/init.md."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from translume.config import DataSettings
from translume.data.pairs import read_pairs
from translume.errors import DataError
from translume.experiments import Choice, Proposal
from translume.experiments.survey import (
    FEW_TEXTS,
    SPARE,
    Labelled,
    Side,
    language_of,
    positions_for,
    survey,
    survey_labelled,
)

SPECIALS = 4
MIN_WORDS, MAX_WORDS = 200, 30_000
MIN_POSITIONS = 128
EPOCHS = 20
MIN_UPDATES, MAX_UPDATES = 800, 2000
"""Limits of the number of updates. Every text is read at least twice, whatever the limit."""
MAX_CHARACTERS = 200
"""Up to this number of distinct characters, the tokens of a small text are characters."""
BLANK_SHARE = 0.01
"""Share of blank lines from which lines are parts of longer documents."""
_BLOCK = 128
"""The context proposed, in tokens."""


def propose_for_labels(data: DataSettings, count: int) -> Proposal:
    """Return the proposal for `count` texts with labels, read from the files in `data`.

    Raises DataError if there are fewer than two labels, or too many for the number of texts.
    """
    file = (*data.train_source, *data.train)[0]
    side = survey((pair.source for pair in read_pairs(data, "train")), language_of(Path(file)))
    found = survey_labelled(read_pairs(data, "train"), unspaced=side.unspaced)
    if found.labels < 2 or (count >= FEW_TEXTS and found.labels * 2 > count):
        hint = "; --columns TEXT,LABEL names the columns" if data.train else ""
        labels = (*data.train_target, *data.train)[0]
        raise DataError(
            f"{labels}: found {found.labels:,} different labels for {count:,} texts, expected at least 2, "
            f"and many texts for each{hint}"
        )
    notes = []
    if found.lone:
        notes.append(f"{file}:1: no other text has the label '{found.lone}'; if this is a header, remove the line")
    choices = (
        Choice("data.source_language", side.language),
        Choice("data.task", "classification"),
        *choose_class(side, found),
    )
    description = f" with {found.labels:,} labels, {side.script or 'no letters'}"
    return Proposal(choices=choices, description=description, notes=tuple(notes))


def choose_class(side: Side, found: Labelled) -> list[Choice]:
    """Return the settings for surveyed texts, without files, in the order in which they are printed."""
    positions = max(MIN_POSITIONS, positions_for(found.longest))
    return [
        Choice("data.cleaning.max_tokens", positions - SPARE, why="longer texts are truncated, and counted"),
        Choice("data.cleaning.too_long", "keep_first"),
        *_class_tokenizer(side, found),
        *_class_model(positions),
        *_class_training(found),
        Choice("decoding.max_length_action", "truncate", why="as in training, with a warning"),
    ]


def _class_tokenizer(side: Side, found: Labelled) -> Iterable[Choice]:
    size = min(MAX_WORDS, max(MIN_WORDS, found.recurring + SPECIALS))
    units = "characters" if side.unspaced else "words"
    yield Choice("tokenizer.kind", "character" if side.unspaced else "word")
    why = f"{units} that occur at least twice, so that <unk> is learned"
    yield Choice("tokenizer.size", size, why=why)
    if side.cased:
        yield Choice("tokenizer.lowercase", True)
    yield Choice("tokenizer.unknown", "token")


def _class_model(positions: int) -> Iterable[Choice]:
    yield Choice("model.width", 128)
    why = "convolutions over words learn more from few texts than attention"
    yield Choice("model.encoder_layers", 0, why=why)
    yield Choice("model.positions", "none")
    yield Choice("model.dropout", 0.5)
    yield Choice("model.max_positions", positions)
    yield Choice("model.head.kind", "classify")
    yield Choice("model.head.pooling", "ngrams")
    yield Choice("model.head.ngrams", (1, 2, 3))
    yield Choice("model.head.filters", 100)


def _class_training(found: Labelled) -> Iterable[Choice]:
    tokens = found.texts * max(1.0, found.units)
    batch = 1024 if tokens < 100_000 else 2048 if tokens < 1_000_000 else 8192
    once = math.ceil(tokens / batch)
    updates = min(max(EPOCHS * once, MIN_UPDATES), max(MAX_UPDATES, 2 * once))
    updates = math.ceil(updates / 100) * 100
    every = max(50, round(updates / 120) * 10)
    yield Choice("training.updates", updates)
    yield Choice("training.max_tokens", batch, why="tokens in a batch; less if memory is short")
    yield Choice("training.learning_rate", 0.002)
    yield Choice("training.schedule", "cosine")
    yield Choice("training.warmup_updates", every)
    yield Choice("training.validate_every", every)
    yield Choice("training.save_every", every)
    why = "the model is the mean of the last 5 saved, unless the best is clearly better"
    yield Choice("training.average_last", 5, why=why)
    yield Choice("training.metric", "accuracy", why='"macro_f1" weighs all classes equally')


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Statistics of text files.

    blank: lines without text.  characters: with line ends.  distinct: different characters, at most a few more than
    `MAX_CHARACTERS`.
    """

    lines: int
    blank: int
    characters: int
    distinct: int

    @property
    def running(self) -> bool:
        """Whether lines are parts of longer documents."""
        return self.blank > BLANK_SHARE * self.lines


@dataclass(frozen=True, slots=True)
class Size:
    """Settings for texts of up to `characters`."""

    characters: float
    vocabulary: int
    width: int
    layers: int
    heads: int
    dropout: float
    updates: int
    max_tokens: int
    learning_rate: float


# characters, vocabulary, width, layers, heads, dropout, updates, tokens, rate
SIZES = (
    Size(200_000, 500, 128, 3, 4, 0.3, 1_500, 2048, 1e-3),
    Size(3_000_000, 2_000, 128, 4, 4, 0.1, 10_000, 1024, 1e-3),
    Size(30_000_000, 8_000, 256, 4, 4, 0.2, 6_000, 4096, 1e-3),
    Size(300_000_000, 16_000, 512, 6, 8, 0.1, 50_000, 8192, 7e-4),
    Size(math.inf, 32_000, 768, 12, 12, 0.1, 200_000, 24_576, 5e-4),
)


def propose_for_documents(data: DataSettings, count: int) -> Proposal:
    """Return the proposal for `count` lines of text, read from the files in `data`. Raises DataError for blank ones."""
    found = survey_documents(pair.target for pair in read_pairs(data, "train"))
    if found.blank == found.lines:
        raise DataError(f"{data.train[0]}: found no text, expected documents")
    valid = bool(data.valid)
    choices = (Choice("data.task", "language_model"), *choose_language_model(found, validated=valid))
    notes = []
    if found.running and not valid:
        notes.append(
            "--valid FILE names validation text; without it, documents end at blank lines and some are held out"
        )
    size = f"{found.lines:,} line{'s' * (found.lines != 1)}, {found.characters:,} characters"
    return Proposal(choices=choices, description="", notes=tuple(notes), size=size)


def survey_documents(lines: Iterable[str]) -> Documents:
    """Return statistics of lines."""
    count = blank = characters = 0
    distinct: set[str] = set()
    for line in lines:
        count += 1
        blank += not line.strip()
        characters += len(line) + 1
        if len(distinct) <= MAX_CHARACTERS:
            distinct.update(line)
    return Documents(lines=count, blank=blank, characters=characters, distinct=len(distinct) + 1)


def choose_language_model(found: Documents, *, validated: bool) -> list[Choice]:
    """Return the settings for surveyed lines, without files, in the order in which they are printed.

    validated: whether there is a validation file.
    """
    size = next(size for size in SIZES if found.characters <= size.characters)
    block = Choice("data.block_length", _BLOCK, why="the context, in tokens")
    documents = choose_documents(found, validated=validated)
    return [documents, block, *_document_tokenizer(found, size), *_language_model(size), *_document_training(size)]


def by_characters(found: Documents) -> bool:
    """Whether tokens are characters: few different ones, in little text."""
    return found.distinct <= MAX_CHARACTERS and found.characters <= SIZES[1].characters


def choose_documents(found: Documents, *, validated: bool) -> Choice:
    """Return where the documents of the surveyed lines end.  validated: whether there is a validation file."""
    if not found.running:
        return Choice("data.documents", "line", why="few blank lines, so each line is a document")
    if validated:
        return Choice("data.documents", "file", why="each line continues the lines before it")
    return Choice("data.documents", "blank_line", why="so that some can be held out for validation")


def _document_tokenizer(found: Documents, size: Size) -> Iterable[Choice]:
    if by_characters(found):
        yield Choice("tokenizer.kind", "character", why=f"{found.distinct} different characters, little text")
        yield Choice("tokenizer.size", max(8, found.distinct + SPECIALS))
        yield Choice("tokenizer.unknown", "token")
    else:
        yield Choice("tokenizer.kind", "bpe")
        yield Choice("tokenizer.size", size.vocabulary, why=f"for {found.characters:,} characters")
    yield Choice("tokenizer.whitespace", "keep", why="line breaks are also tokens")


def _language_model(size: Size) -> Iterable[Choice]:
    yield Choice("model.width", size.width)
    yield Choice("model.feed_forward", 4 * size.width)
    yield Choice("model.encoder_layers", 0, why="a language model is a decoder alone")
    yield Choice("model.decoder_layers", size.layers)
    yield Choice("model.attention_heads", size.heads)
    yield Choice("model.activation", "gelu")
    yield Choice("model.dropout", size.dropout, why="more for less data")
    yield Choice("model.positions", "rotary")
    yield Choice("model.max_positions", _BLOCK)


def _document_training(size: Size) -> Iterable[Choice]:
    every = max(100, size.updates // 20)
    yield Choice("training.updates", size.updates)
    yield Choice("training.max_tokens", size.max_tokens, why="tokens in a batch; less if memory is short")
    yield Choice("training.learning_rate", size.learning_rate)
    yield Choice("training.schedule", "cosine")
    yield Choice("training.warmup_updates", 100)
    yield Choice("training.beta2", 0.99)
    yield Choice("training.weight_decay", 0.1)
    yield Choice("training.label_smoothing", 0.0, why="it would raise the perplexity")
    yield Choice("training.validate_every", every)
    yield Choice("training.save_every", every)
    yield Choice("decoding.strategy", "sampling")
    yield Choice("decoding.top_p", 0.95)
