import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from translume.config import Config
from translume.training import train

Make = Callable[..., Config]
WORDS = {"animal": ["cat", "dog", "owl", "hen"], "colour": ["red", "blue", "pink"], "fruit": ["fig", "plum", "pear"]}


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Return texts, each with one word of a class among filler words, and their classes."""
    random.seed(seed)
    found = []
    for _ in range(count):
        label = random.choice(sorted(WORDS))
        words = [random.choice("abcdefgh") for _ in range(random.randint(1, 7))]
        words.insert(random.randrange(len(words) + 1), random.choice(WORDS[label]))
        found.append((" ".join(words), label))
    return found


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write train.tsv and valid.tsv (label, number, text), and several.tsv (labels of two texts joined, text)."""
    folder = tmp_path_factory.mktemp("labelled")
    for name, count, seed in (("train", 211, 1), ("valid", 43, 2)):
        lines = [f"{label}\t{number}\t{text}\n" for number, (text, label) in enumerate(texts(count, seed))]
        (folder / f"{name}.tsv").write_text("".join(lines))
    lines = []
    for (one, first), (other, second) in zip(texts(151, 3), texts(151, 4), strict=True):
        lines.append(f"{'+'.join(sorted({first, second}))}\t{one} {other}\n")
    (folder / "several.tsv").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def make(files: Path) -> Make:
    """Return settings of a tiny classifier; keyword arguments change [training], `others` changes tables by name."""

    def build(others: dict[str, dict[str, Any]] | None = None, **training: Any) -> Config:
        tables: dict[str, dict[str, Any]] = {
            "data": {
                "task": "classification",
                "columns": [2, 0],
                "train": str(files / "train.tsv"),
                "valid": str(files / "valid.tsv"),
            },
            "tokenizer": {"kind": "word", "size": 61, "unknown": "token"},
            "model": {
                "width": 12,
                "feed_forward": 23,
                "encoder_layers": 1,
                "attention_heads": 2,
                "dropout": 0.0,
                "max_positions": 37,
                "head": {"kind": "classify", "pooling": "max"},
            },
            "training": {
                "updates": 120,
                "max_tokens": 211,
                "warmup_updates": 10,
                "schedule": "constant",
                "learning_rate": 0.01,
                "validate_every": 40,
                "save_every": 40,
                "precision": "fp32",
                **training,
            },
        }
        for table, values in (others or {}).items():
            tables[table] = {**tables.get(table, {}), **values}
        return Config.build(tables)

    return build


@pytest.fixture(scope="session")
def trained(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a trained classifier."""
    folder = tmp_path_factory.mktemp("classifier") / "model"
    list(train(make(metric="accuracy"), folder, device="cpu", threads=1))
    return folder
