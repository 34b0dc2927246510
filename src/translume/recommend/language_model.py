"""Propose settings for documents: the third table of docs/init.md."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from translume.config import DataSettings
from translume.data import read_pairs
from translume.errors import DataError
from translume.recommend import Choice, Proposal

SPECIALS = 4
MAX_CHARACTERS = 200
"""Up to this number of distinct characters, the tokens of a small text are characters."""
BLANK_SHARE = 0.01
"""Share of blank lines from which lines are parts of longer documents."""
_BLOCK = 128
"""The context proposed, in tokens."""


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
    choices = (Choice(path="data.task", value="language_model"), *choose_language_model(found, validated=valid))
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
    block = Choice(path="data.block_length", value=_BLOCK, why="the context, in tokens")
    documents = choose_documents(found, validated=validated)
    return [documents, block, *_tokenizer(found, size), *_model(size), *_training(size)]


def by_characters(found: Documents) -> bool:
    """Whether tokens are characters: few different ones, in little text."""
    return found.distinct <= MAX_CHARACTERS and found.characters <= SIZES[1].characters


def choose_documents(found: Documents, *, validated: bool) -> Choice:
    """Return where the documents of the surveyed lines end.  validated: whether there is a validation file."""
    if not found.running:
        return Choice(path="data.documents", value="line", why="few blank lines, so each line is a document")
    if validated:
        return Choice(path="data.documents", value="file", why="each line continues the lines before it")
    return Choice(path="data.documents", value="blank_line", why="so that some can be held out for validation")


def _tokenizer(found: Documents, size: Size) -> Iterable[Choice]:
    if by_characters(found):
        yield Choice(
            path="tokenizer.kind", value="character", why=f"{found.distinct} different characters, little text"
        )
        yield Choice(path="tokenizer.size", value=max(8, found.distinct + SPECIALS))
        yield Choice(path="tokenizer.unknown", value="token")
    else:
        yield Choice(path="tokenizer.kind", value="bpe")
        yield Choice(path="tokenizer.size", value=size.vocabulary, why=f"for {found.characters:,} characters")
    yield Choice(path="tokenizer.whitespace", value="keep", why="line breaks are tokens, too")


def _model(size: Size) -> Iterable[Choice]:
    yield Choice(path="model.width", value=size.width)
    yield Choice(path="model.feed_forward", value=4 * size.width)
    yield Choice(path="model.encoder_layers", value=0, why="a language model is a decoder alone")
    yield Choice(path="model.decoder_layers", value=size.layers)
    yield Choice(path="model.attention_heads", value=size.heads)
    yield Choice(path="model.activation", value="gelu")
    yield Choice(path="model.dropout", value=size.dropout, why="more for less data")
    yield Choice(path="model.positions", value="rotary")
    yield Choice(path="model.max_positions", value=_BLOCK)


def _training(size: Size) -> Iterable[Choice]:
    every = max(100, size.updates // 20)
    yield Choice(path="training.updates", value=size.updates)
    yield Choice(path="training.max_tokens", value=size.max_tokens, why="tokens in a batch; less if memory is short")
    yield Choice(path="training.learning_rate", value=size.learning_rate)
    yield Choice(path="training.schedule", value="cosine")
    yield Choice(path="training.warmup_updates", value=100)
    yield Choice(path="training.beta2", value=0.99)
    yield Choice(path="training.weight_decay", value=0.1)
    yield Choice(path="training.label_smoothing", value=0.0, why="it would raise the perplexity")
    yield Choice(path="training.validate_every", value=every)
    yield Choice(path="training.save_every", value=every)
    yield Choice(path="decoding.strategy", value="sampling")
    yield Choice(path="decoding.top_p", value=0.95)
