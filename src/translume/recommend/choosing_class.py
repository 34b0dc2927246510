"""From a look at labelled texts to settings of a classifier: the second table of docs/init.md."""

import math
from collections.abc import Iterable
from pathlib import Path

from translume.config import DataSettings
from translume.data import read_pairs
from translume.errors import DataError
from translume.recommend.choosing import Choice, Recommendation
from translume.recommend.survey import Side, language_of, survey
from translume.recommend.survey_labels import FEW_TEXTS, Labelled, survey_labelled

SPECIALS = 4
MOST_WORDS, FEWEST_WORDS = 30_000, 200
SHORTEST, LONGEST = 128, 2048
"""Positions."""
PASSES = 20
FEWEST_UPDATES, MOST_UPDATES = 800, 2000
"""Updates, however many texts there are, but that all are read twice."""


def choose_for_labels(data: DataSettings, count: int) -> Recommendation:
    """Choose settings for `count` texts with labels. Raises DataError where the labels look like texts."""
    file = (*data.train_source, *data.train)[0]
    side = survey((pair.source for pair in read_pairs(data, "train")), language_of(Path(file)))
    found = survey_labelled(read_pairs(data, "train"), unspaced=side.unspaced)
    if found.labels < 2 or (count >= FEW_TEXTS and found.labels * 2 > count):
        hint = "; --columns TEXT,LABEL says where they stand" if data.train else ""
        labels = (*data.train_target, *data.train)[0]
        raise DataError(
            f"{labels}: found {found.labels:,} different labels of {count:,} texts, wanted at least 2, "
            f"and many texts of each{hint}"
        )
    notes: tuple[str, ...] = ()
    if found.lone:
        lone = f"{file}:1: no other text has the label '{found.lone}'; if this is a header, take the line out"
        notes = (lone,)
    choices = [
        Choice(path="data.source_language", value=side.language),
        Choice(path="data.task", value=data.task),
        *choose_class(side, found),
    ]
    summary = f" with {found.labels:,} labels, {side.script or 'no letters'}"
    return Recommendation(choices, summary, notes)


def choose_class(side: Side, found: Labelled) -> list[Choice]:
    """The settings that `init` writes for a classifier, files left out, in the order in which they are printed."""
    positions = min(LONGEST, max(SHORTEST, 2 ** math.ceil(math.log2(found.longest + 8))))
    return [
        Choice(path="data.cleaning.max_tokens", value=positions - 8, why="longer texts are cut, which is counted"),
        Choice(path="data.cleaning.too_long", value="keep_first"),
        *_tokenizer(side, found),
        *_model(positions),
        *_training(found),
        Choice(path="decoding.max_length_action", value="truncate", why="as in training, with a warning"),
    ]


def _tokenizer(side: Side, found: Labelled) -> Iterable[Choice]:
    size = min(MOST_WORDS, max(FEWEST_WORDS, found.recurring + SPECIALS))
    units = "characters" if side.unspaced else "words"
    yield Choice(path="tokenizer.kind", value="character" if side.unspaced else "word")
    why = f"{units} that stand at least twice, so that the unknown one is learnt"
    yield Choice(path="tokenizer.size", value=size, why=why)
    if side.cased:
        yield Choice(path="tokenizer.lowercase", value=True)
    yield Choice(path="tokenizer.unknown", value="token")


def _model(positions: int) -> Iterable[Choice]:
    yield Choice(path="model.width", value=128)
    why = "filters over neighbouring words learn more from few texts than attention"
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
    updates = min(max(PASSES * once, FEWEST_UPDATES), max(MOST_UPDATES, 2 * once))
    updates = math.ceil(updates / 100) * 100
    every = max(50, round(updates / 120) * 10)
    yield Choice(path="training.updates", value=updates)
    yield Choice(path="training.max_tokens", value=batch, why="tokens in a batch; less if memory is short")
    yield Choice(path="training.learning_rate", value=0.002)
    yield Choice(path="training.schedule", value="cosine")
    yield Choice(path="training.warmup_updates", value=every)
    yield Choice(path="training.validate_every", value=every)
    yield Choice(path="training.save_every", value=every)
    why = "the model is the mean of the last 5 saved, unless the best is better"
    yield Choice(path="training.average_last", value=5, why=why)
    yield Choice(path="training.metric", value="accuracy", why='"macro_f1" counts every class alike')
