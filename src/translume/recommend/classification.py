"""Propose settings for texts with labels: the second table of docs/init.md."""

import math
from collections.abc import Iterable
from pathlib import Path

from translume.config import DataSettings
from translume.data import read_pairs
from translume.errors import DataError
from translume.recommend import Choice, Proposal
from translume.recommend.survey import (
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
        Choice(path="data.source_language", value=side.language),
        Choice(path="data.task", value="classification"),
        *choose_class(side, found),
    )
    description = f" with {found.labels:,} labels, {side.script or 'no letters'}"
    return Proposal(choices=choices, description=description, notes=tuple(notes))


def choose_class(side: Side, found: Labelled) -> list[Choice]:
    """Return the settings for surveyed texts, without files, in the order in which they are printed."""
    positions = max(MIN_POSITIONS, positions_for(found.longest))
    return [
        Choice(path="data.cleaning.max_tokens", value=positions - SPARE, why="longer texts are truncated, and counted"),
        Choice(path="data.cleaning.too_long", value="keep_first"),
        *_tokenizer(side, found),
        *_model(positions),
        *_training(found),
        Choice(path="decoding.max_length_action", value="truncate", why="as in training, with a warning"),
    ]


def _tokenizer(side: Side, found: Labelled) -> Iterable[Choice]:
    size = min(MAX_WORDS, max(MIN_WORDS, found.recurring + SPECIALS))
    units = "characters" if side.unspaced else "words"
    yield Choice(path="tokenizer.kind", value="character" if side.unspaced else "word")
    why = f"{units} that occur at least twice, so that <unk> is learned"
    yield Choice(path="tokenizer.size", value=size, why=why)
    if side.cased:
        yield Choice(path="tokenizer.lowercase", value=True)
    yield Choice(path="tokenizer.unknown", value="token")


def _model(positions: int) -> Iterable[Choice]:
    yield Choice(path="model.width", value=128)
    why = "convolutions over words learn more from few texts than attention"
    yield Choice(path="model.encoder_layers", value=0, why=why)
    yield Choice(path="model.positions", value="none")
    yield Choice(path="model.dropout", value=0.5)
    yield Choice(path="model.max_positions", value=positions)
    yield Choice(path="model.head.kind", value="classify")
    yield Choice(path="model.head.pooling", value="ngrams")
    yield Choice(path="model.head.ngrams", value=(1, 2, 3))
    yield Choice(path="model.head.filters", value=100)


def _training(found: Labelled) -> Iterable[Choice]:
    tokens = found.texts * max(1.0, found.units)
    batch = 1024 if tokens < 100_000 else 2048 if tokens < 1_000_000 else 8192
    once = math.ceil(tokens / batch)
    updates = min(max(EPOCHS * once, MIN_UPDATES), max(MAX_UPDATES, 2 * once))
    updates = math.ceil(updates / 100) * 100
    every = max(50, round(updates / 120) * 10)
    yield Choice(path="training.updates", value=updates)
    yield Choice(path="training.max_tokens", value=batch, why="tokens in a batch; less if memory is short")
    yield Choice(path="training.learning_rate", value=0.002)
    yield Choice(path="training.schedule", value="cosine")
    yield Choice(path="training.warmup_updates", value=every)
    yield Choice(path="training.validate_every", value=every)
    yield Choice(path="training.save_every", value=every)
    why = "the model is the mean of the last 5 saved, unless the best is clearly better"
    yield Choice(path="training.average_last", value=5, why=why)
    yield Choice(path="training.metric", value="accuracy", why='"macro_f1" weighs all classes equally')
