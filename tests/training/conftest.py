import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from translume.config import Config

Make = Callable[..., Config]


@pytest.fixture(scope="session")
def toy_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.source and train.target (the source backwards), and the same for valid."""
    folder = tmp_path_factory.mktemp("toy")
    random.seed(1)
    for name, count in (("train", 300), ("valid", 17)):
        lines = [[random.choice("abcdefgh") for _ in range(random.randint(1, 9))] for _ in range(count)]
        (folder / f"{name}.source").write_text("".join(" ".join(line) + "\n" for line in lines))
        (folder / f"{name}.target").write_text("".join(" ".join(reversed(line)) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def unmatched(toy_files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return [data] with validation targets that no model generates, so that exact match is equal for all weights."""
    path = tmp_path_factory.mktemp("unmatched") / "valid.target"
    path.write_text((toy_files / "valid.target").read_text().translate(str.maketrans("abcdefgh", "ijklmnop")))
    return {"valid_target": str(path)}


@pytest.fixture(scope="session")
def toy(toy_files: Path) -> Make:
    """Settings of a tiny run; keyword arguments change [training], `others` whole tables by name."""

    def make(others: dict[str, dict[str, Any]] | None = None, **training: Any) -> Config:
        sides = {
            f"{split}_{side}": str(toy_files / f"{split}.{side}")
            for split in ("train", "valid")
            for side in ("source", "target")
        }
        tables: dict[str, dict[str, Any]] = {
            "data": sides,
            "tokenizer": {"kind": "word", "size": 32, "unknown": "token"},
            "model": {
                "width": 12,
                "feed_forward": 23,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "attention_heads": 2,
            },
            "training": {
                "updates": 17,
                "max_tokens": 211,
                "warmup_updates": 3,
                "validate_every": 5,
                "save_every": 3,
                "log_every": 4,
                "precision": "fp32",
                **training,
            },
        }
        for table, values in (others or {}).items():
            tables[table] = {**tables.get(table, {}), **values}
        return Config.build(tables)

    return make
