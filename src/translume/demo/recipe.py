"""The demo's settings: a small model that learns the demo's corpus in a few minutes on two cores."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from translume.config import Config
from translume.errors import DataError

UPDATES = 2000
NAME = "demo.toml"
UNSPACED = ("zh", "ja", "th")


def demo_config(source_language: str, target_language: str, *, updates: int = UPDATES) -> Config:
    """Settings for the corpus in the folder where they will lie."""
    source, target = source_language, target_language
    tables: Mapping[str, Mapping[str, Any]] = {
        "data": {
            "source_language": source,
            "target_language": target,
            "train_source": f"train.{source}",
            "train_target": f"train.{target}",
            "valid_source": f"valid.{source}",
            "valid_target": f"valid.{target}",
        },
        "tokenizer": {"kind": "bpe", "size": 1500, "shared": False},
        "model": {
            "width": 128,
            "feed_forward": 256,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "attention_heads": 4,
            "dropout": 0.0,
            "head": {"kind": "softmax", "tie": "target"},
        },
        "training": {
            "updates": updates,
            "max_tokens": 2048,
            "learning_rate": 3e-3,
            "schedule": "cosine",
            "warmup_updates": min(200, max(1, updates // 5)),
            "label_smoothing": 0.0,
            "validate_every": max(1, updates // 4),
            "save_every": max(1, updates // 4),
            "metric": "nll",
        },
        "evaluation": {
            "metrics": ["exact_match", "bleu", "chrf"],
            "tokenize": "zh" if target in UNSPACED else "13a",
        },
        "decoding": {"strategy": "greedy"},
    }
    return Config.build(tables, place="demo")


def write_recipe(folder: Path, config: Config) -> Path:
    """The settings as `demo.toml` in `folder`, which `translume train` reads like any other."""
    path = folder / NAME
    text = config.to_toml()
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
    return path
