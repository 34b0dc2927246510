"""Propose settings for fine-tuning a model on more data; docs/fine_tuning.md has the rules."""

import math
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from translume.checkpoint import read_config, read_vocabularies
from translume.config import Config, DataSettings, FrameSettings, TrainingSettings
from translume.data.pairs import read_pairs
from translume.experiments import Choice, Proposal
from translume.experiments.columns import language_of, languages_of
from translume.experiments.manifests import survey_files
from translume.experiments.proposals import choose_language_model
from translume.experiments.survey import survey_documents
from translume.experiments.table import table
from translume.tasks import find_task
from translume.text import Tokenizer

EPOCHS = 10
MIN_UPDATES, MAX_UPDATES = 100, 10_000
SLOWER = 5
"""The learning rate is that of the base model's training divided by this number."""

_SAMPLE = 2_000
"""Number of pairs whose tokens are counted."""


_TAGS = ("source", "target")
"""Values of `model.language_tags` with which the languages of texts must be named."""


def propose_fine_tuning(data: DataSettings, count: int, model: Path) -> Proposal:
    """Return the proposal for fine-tuning `model` on `count` pairs, read from the files in `data`.

    Only [training], where documents end, and the languages of a model with several are proposed: the rest is inherited
    from the model. Raises DataError if sources are files and not even half of them can be read.
    """
    base = read_config(model)
    notes = list(_notes(data, base, model))
    if isinstance(data.source, FrameSettings):
        files = survey_files(data, count)
        tokens = sum(files.lengths(data.source)) / len(files.headers)
        notes += files.notes()
    else:
        tokens = _tokens_of_a_pair(data, model)
    once = math.ceil(count * tokens / (base.training.batch_tokens * base.training.accumulate))
    updates = math.ceil(min(max(EPOCHS * once, MIN_UPDATES), MAX_UPDATES) / 100) * 100
    choices = (*_data(data, base, model), *_training(base.training, updates, once))
    if find_task(data.task).reads == "documents":
        lines = survey_documents(pair.target for pair in read_pairs(data, "train"))
        proposed = choose_language_model(lines, validated=bool(data.valid))
        choices = (*(each for each in proposed if each.path == "data.documents"), *choices)
    return Proposal(choices=choices, description=f" to fine-tune {model}", notes=tuple(notes))


def _tokens_of_a_pair(data: DataSettings, model: Path) -> float:
    """Return the mean number of tokens of the longer side, in the first pairs."""
    source, target = read_vocabularies(model)
    sides = [(source, "source")] + ([(target, "target")] if isinstance(target, Tokenizer) else [])
    lengths = [
        max(len(side.encode(getattr(pair, name))) + 1 for side, name in sides)
        for pair in islice(read_pairs(data, "train"), _SAMPLE)
    ]
    return sum(lengths) / max(1, len(lengths))


def _data(data: DataSettings, base: Config, model: Path) -> Iterable[Choice]:
    """Yield what is not inherited: the direction whose tags are read, and where documents end for context."""
    named = _direction(data)
    if base.model.language_tags in _TAGS and _has_tags(named, model):
        for side, language in zip(("source", "target"), named, strict=True):
            yield Choice(f"data.{side}_language", language)
    if base.data.context.used and data.train and base.data.document_column != "":
        yield Choice("data.document_column", base.data.document_column, why="as in the base model's training")
    if base.data.context.used and data.train_source and base.data.documents == "line":
        yield Choice("data.documents", "blank_line", why="the model reads the sentences before")


def _direction(data: DataSettings) -> tuple[str, str]:
    """Return the languages in the names of the training files, or empty strings."""
    if data.train:
        return languages_of(Path(data.train[0]))
    return language_of(Path(data.train_source[0])), language_of(Path(data.train_target[0]))


def _has_tags(named: tuple[str, str], model: Path) -> bool:
    return set(named) <= read_vocabularies(model)[0].languages.keys()


def _training(base: TrainingSettings, updates: int, once: int) -> Iterable[Choice]:
    every = max(10, updates // 20)
    read = f"the data are read {updates / max(once, 1):,.0f} times" if once > 1 else ""
    yield Choice("training.updates", updates, why=read)
    yield Choice("training.max_tokens", base.max_tokens, why="as in the base model's training")
    if base.schedule == "noam":
        yield Choice("training.learning_rate", 1e-4)
    else:
        rate = float(f"{base.learning_rate / SLOWER:.2g}")
        yield Choice("training.learning_rate", rate, why=f"a fifth of {base.learning_rate:g}")
    yield Choice("training.schedule", "cosine")
    yield Choice("training.warmup_updates", every)
    yield Choice("training.validate_every", every)
    yield Choice("training.save_every", every)
    yield Choice("training.patience", 5, why="stop after 5 validations without improvement")
    default = TrainingSettings()
    for name in table()["fine_tuning"].split():
        if getattr(base, name) != getattr(default, name):
            yield Choice(f"training.{name}", getattr(base, name), why="as in the base model's training")


def _notes(data: DataSettings, base: Config, model: Path) -> Iterable[str]:
    """Yield warnings about languages: of files whose names say another one, and of recordings, which no name says."""
    if base.model.language_tags == "speech":
        yield "add source_language and target_language to [data]: the model's prompt names the language of recordings"
    if base.model.language_tags in _TAGS and not _has_tags(_direction(data), model):
        known = ", ".join(read_vocabularies(model)[0].languages)
        yield f"add source_language and target_language to [data]: {model} has tags of {known}"
    for files, side in ((data.train_source, "source"), (data.train_target, "target")):
        held = getattr(base.data, f"{side}_language")
        for file in files:
            language = language_of(Path(file))
            if held and language and language != held:
                yield f"{file}: the name says '{language}', but the {side} language of {model} is '{held}'"
