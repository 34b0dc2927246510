"""The tokenizers of a run: read where the settings name files, else learnt from the training files."""

from collections.abc import Callable
from pathlib import Path

from translume.config import ClassifySettings, Config
from translume.data import read_pairs
from translume.text import Labels, Tokenizer, train_tokenizer


def tokenizers_of(
    config: Config, learning: Callable[[tuple[str, ...]], object] | None = None
) -> tuple[Tokenizer, Tokenizer | Labels]:
    """Those of source and target, one object where they share one; to classify, that of texts, and the labels.

    learning: told the sides ("source", "target") whose tokenizer will be learnt next, which takes a while.
    """
    settings, head = config.tokenizer, config.model.head

    def made(path: str, sides: tuple[str, ...]) -> Tokenizer:
        if path:
            return Tokenizer.load(Path(path))
        if learning is not None:
            learning(sides)
        pairs = read_pairs(config.data, "train")
        return train_tokenizer(settings, (getattr(pair, side) for pair in pairs for side in sides))

    if isinstance(head, ClassifySettings):
        source = made(settings.path, ("source",))
        texts = (pair.target for pair in read_pairs(config.data, "train"))
        return source, Labels.collect(texts, config.data.label_separator if head.labels == "several" else "")
    if settings.shared:
        shared = made(settings.path, ("source", "target"))
        return shared, shared
    return made(settings.path, ("source",)), made(settings.target_path, ("target",))
