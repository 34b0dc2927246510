import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from translume.config import Config
from translume.training import train
from translume.translator import Generator

Make = Callable[..., Config]


def documents(count: int, seed: int) -> list[str]:
    """Return texts in which each word is the one that follows the last one in the alphabet, or "and"."""
    random.seed(seed)
    found = []
    for _ in range(count):
        place, words = random.randrange(8), []
        for _ in range(random.randint(1, 29)):
            place = (place + 1) % 8
            words.append("and" if random.random() < 0.1 else "abcdefgh"[place] * 2)
        found.append(" ".join(words))
    return found


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write train.txt and valid.txt, one document a line, with one empty line each."""
    folder = tmp_path_factory.mktemp("documents")
    for name, count, seed in (("train", 131, 1), ("valid", 23, 2)):
        (folder / f"{name}.txt").write_text("\n".join(["", *documents(count, seed)]) + "\n")
    return folder


@pytest.fixture(scope="session")
def make(files: Path) -> Make:
    """Return settings of a tiny language model; keyword arguments change [training], `others` changes tables."""

    def build(others: dict[str, dict[str, Any]] | None = None, **training: Any) -> Config:
        tables: dict[str, dict[str, Any]] = {
            "data": {
                "task": "language_model",
                "train": str(files / "train.txt"),
                "valid": str(files / "valid.txt"),
                "block_length": 11,
            },
            "tokenizer": {"kind": "word", "size": 29, "unknown": "token", "whitespace": "keep"},
            "model": {
                "width": 32,
                "feed_forward": 48,
                "encoder_layers": 0,
                "decoder_layers": 2,
                "attention_heads": 2,
                "dropout": 0.0,
                "max_positions": 19,
            },
            "training": {
                "updates": 40,
                "max_tokens": 223,
                "warmup_updates": 10,
                "learning_rate": 0.01,
                "schedule": "constant",
                "label_smoothing": 0.0,
                "validate_every": 20,
                "save_every": 20,
                "precision": "fp32",
            },
        }
        for name, values in {**(others or {}), "training": {**(others or {}).get("training", {}), **training}}.items():
            tables[name] = {**tables.get(name, {}), **values}
        return Config.build(tables)

    return build


@pytest.fixture(scope="session")
def folder(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny language model."""
    path = tmp_path_factory.mktemp("language") / "model"
    list(train(make(updates=120, validate_every=60, save_every=60), path, device="cpu", threads=1))
    return path


@pytest.fixture(scope="session")
def generator(folder: Path) -> Generator:
    return Generator.load(folder)
