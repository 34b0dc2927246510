"""The vocabularies of a run: read from the files that the settings name, else learnt from the training files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from translume.checkpoint import read_vocabularies
from translume.config import Config
from translume.data.corpus import sampling_weights
from translume.data.denoising import masks_of
from translume.data.lines import count_lines
from translume.data.pairs import Pair, origins, read_pairs
from translume.data.streaming import head_pairs
from translume.errors import SettingsError
from translume.tasks import task_of
from translume.text import Labels, Tokenizer, extend_tokenizer, train_tokenizer

Learning = Callable[[tuple[str, ...]], object]
"""Called with the sides ("source", "target") before their tokenizer is learnt, which can take minutes."""


def vocabularies_of(config: Config, learning: Learning | None = None) -> tuple[Tokenizer, Tokenizer | Labels]:
    """Return the vocabularies of source and target, as the task makes them."""
    pair: tuple[Tokenizer, Tokenizer | Labels] = task_of(config).learn_vocabularies(config, learning)
    return pair


def learn_tokenizers(config: Config, learning: Learning | None) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of source and target: one object where the settings share one.

    Raises SettingsError for a shared one in NFD, whose outputs would not be composed.
    """
    settings = config.tokenizer
    if config.data.source.reader:  # frames have no vocabulary: both sides are that of the target
        tokenizer = _tokenizer(config, settings.path or settings.target_path, ("target",), learning)
        return tokenizer, tokenizer
    if settings.shared:
        if settings.normalization == "nfd":
            raise SettingsError("tokenizer.normalization: 'nfd' is for sources only, expected shared = false with it")
        shared = _tokenizer(config, settings.path, ("source", "target"), learning)
        return shared, shared
    source = _tokenizer(config, settings.path, ("source",), learning)
    own = config.model_copy(update={"tokenizer": settings.of_target()})
    return source, _tokenizer(own, settings.target_path, ("target",), learning)


def learn_document_tokenizer(config: Config, learning: Learning | None) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizer of documents twice. Raises SettingsError for BPE-dropout, which would move block ends."""
    if config.tokenizer.dropout:
        raise SettingsError(f"tokenizer.dropout: found {config.tokenizer.dropout}, must be 0 for a language model")
    tokenizer = _tokenizer(config, config.tokenizer.path, ("target",), learning)
    return tokenizer, tokenizer


def learn_labels(config: Config, learning: Learning | None) -> tuple[Tokenizer, Labels]:
    """Return the tokenizer of texts, and the labels of the training data."""
    head: Any = config.model.head
    side = "target" if config.data.source.reader else "source"  # frames have no vocabulary; some tokenizer is stored
    source = _tokenizer(config, config.tokenizer.path, (side,), learning)
    texts = (pair.target for pair in read_pairs(config.data, "train"))
    return source, Labels.collect(texts, config.data.label_separator if head.labels == "several" else "")


def _tokenizer(config: Config, path: str, sides: tuple[str, ...], learning: Learning | None) -> Tokenizer:
    if Path(path).is_dir() and path:
        return _tokenizer_of_model(Path(path), sides)
    if path:
        return Tokenizer.load(Path(path))
    if learning is not None:
        learning(sides)
    noise = config.data.noise
    texts = (getattr(pair, side) for pair in _sampled_pairs(config) for side in (sides[:1] if noise else sides))
    learned = train_tokenizer(config.tokenizer, texts, _languages(config))
    return Tokenizer(learned.vocabulary.with_silent(masks_of(noise))) if noise else learned


def named_tokenizer(path: Path, side: int) -> Tokenizer:
    """Return the tokenizer of a file, or of a side (0: source, 1: target) of a model folder."""
    if not path.is_dir():
        return Tokenizer.load(path)
    vocabularies = read_vocabularies(path)
    vocabulary = vocabularies[side]
    return vocabulary if isinstance(vocabulary, Tokenizer) else vocabularies[0]


def _tokenizer_of_model(folder: Path, sides: tuple[str, ...]) -> Tokenizer:
    """Return the tokenizer that a model has for these sides. Raises SettingsError if it has two, or labels."""
    vocabularies = dict(zip(("source", "target"), read_vocabularies(folder), strict=True))
    distinct = {vocabularies[side].digest: vocabularies[side] for side in sides}
    tokenizer = distinct.popitem()[1]
    if distinct or not isinstance(tokenizer, Tokenizer):
        what = "two vocabularies" if distinct else "labels"
        raise SettingsError(f"tokenizer.path: {folder} has {what}, expected one for {' and '.join(sides)}")
    return tokenizer


def extended_vocabularies(
    config: Config, source: Tokenizer, target: Tokenizer | Labels
) -> tuple[Tokenizer, Tokenizer | Labels]:
    """Return the vocabularies of a base model with `tokenizer.extend` more tokens each, from the training files.

    Raises SettingsError for low-rank adapters, which do not train new tokens.
    """
    count = config.tokenizer.extend
    if config.training.lora_rank:
        raise SettingsError(f"tokenizer.extend: found {count} with training.lora_rank, expected one of them")

    def texts(*sides: str) -> Iterator[str]:
        return (getattr(pair, side) for pair in _sampled_pairs(config) for side in sides)

    if not isinstance(target, Tokenizer):
        return extend_tokenizer(source, texts("source"), count), target
    if source.digest == target.digest:
        shared = extend_tokenizer(source, texts("source", "target"), count)
        return shared, shared
    return extend_tokenizer(source, texts("source"), count), extend_tokenizer(target, texts("target"), count)


def _sampled_pairs(config: Config) -> Iterator[Pair]:
    """Yield the training pairs to learn from, at most `tokenizer.sample` and evenly spread.

    Each is yielded as often as its direction's share with `data.sampling_temperature` demands. Of a stream, the first
    pairs of the files are yielded.
    """
    data, maximum = config.data, config.tokenizer.sample
    if data.streaming:
        yield from head_pairs(data, maximum)
        return
    places = origins(data, "train")
    counts = [count_lines(place.file) if place.kind == "parallel" else sum(1 for _ in place.read()) for place in places]
    weights = [1.0] * len(places)
    if data.sampling_temperature != 1:
        groups, own = [place.direction for place in places], [place.weight for place in places]
        weights = list(sampling_weights(groups, counts, own, data.sampling_temperature))
    total = sum(count * weight for count, weight in zip(counts, weights, strict=True))
    share = min(1.0, maximum / max(total, 1))
    due = 0.0
    for place, weight in zip(places, weights, strict=True):
        for pair in place.read():
            due += weight * share
            for _ in range(int(due)):
                yield pair
            due -= int(due)


def _languages(config: Config) -> tuple[str, ...]:
    """Return the codes of the languages that get a tag."""
    if config.model.language_tags == "none":
        return ()
    data = config.data
    codes = [code for each in data.corpus or (data,) for code in (each.source_language, each.target_language)]
    if not all(codes):
        raise SettingsError(
            f"model.language_tags: found '{config.model.language_tags}', "
            "expected data.source_language and data.target_language as well"
        )
    return tuple(dict.fromkeys(codes))
