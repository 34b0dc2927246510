from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config
from translume.model.ctc import Ctc
from translume.sources import frame_reader
from translume.text import train_tokenizer
from translume.translator import Translator

SYMBOLS = np.random.default_rng(7).normal(size=(3, 5)) * 2
"""What a frame of each of the letters a, b and c looks like."""


def frames_of(letters: str, seed: int) -> np.ndarray:
    """Return 7 to 9 noisy frames for each letter."""
    rng = np.random.default_rng(seed)
    parts = [np.repeat(SYMBOLS["abc".index(each)][None], rng.integers(7, 10), 0) for each in letters]
    frames = np.concatenate(parts)
    return (frames + 0.2 * rng.normal(size=frames.shape)).astype(np.float32)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write train.tsv and valid.tsv with .npy files in a folder beside them; line 2 of train.tsv is broken."""
    folder = tmp_path_factory.mktemp("manifests")
    (folder / "arrays").mkdir()
    rng = np.random.default_rng(11)
    for part, count in (("train", 61), ("valid", 7)):
        rows = []
        for number in range(count):
            letters = "".join(rng.choice(list("abc"), rng.integers(1, 4)))
            np.save(folder / "arrays" / f"{part}{number}.npy", frames_of(letters, number))
            rows.append(f"arrays/{part}{number}.npy\t{' '.join(letters)}")
        (folder / f"{part}.tsv").write_text("\n".join(rows) + "\n")
    broken = folder / "arrays" / "train1.npy"
    broken.write_bytes(broken.read_bytes()[:-3])
    return folder


@pytest.fixture(scope="module")
def make(manifests: Path) -> Callable[..., Config]:
    """Return settings of a tiny model of features; keyword arguments change tables."""

    def build(**tables: dict[str, Any]) -> Config:
        usual: dict[str, dict[str, Any]] = {
            "data": {
                "train": str(manifests / "train.tsv"),
                "valid": str(manifests / "valid.tsv"),
                "source": {"kind": "features", "values": 5, "channels": 13},
            },
            "tokenizer": {"kind": "word", "unknown": "token"},
            "model": {
                "width": 32,
                "feed_forward": 48,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "attention_heads": 2,
                "dropout": 0.0,
                "max_positions": 19,
            },
            "training": {"updates": 13, "max_tokens": 128, "warmup_updates": 5, "learning_rate": 0.01},
        }
        return Config.build({name: {**usual.get(name, {}), **tables.get(name, {})} for name in {**usual, **tables}})

    return build


KINDS = {"audio": {"mels": 11}, "features": {"values": 5}, "image": {"height": 8, "channels": 3}}


def untrained(kind: str, *, ctc: bool = True, given: np.ndarray | None = None, **model: object) -> Translator:
    """Return a translator of sources of a kind with random weights, for changed [model].

    given: the source that it is normalised by.
    """
    sizes = {"width": 20, "feed_forward": 24, "encoder_layers": 2, "decoder_layers": 3, "attention_heads": 4}
    config = Config.build(
        {
            "data": {"source": {"kind": kind, **KINDS[kind]}},
            "tokenizer": {"kind": "word", "unknown": "token"},
            "model": {**sizes, **model},
            "decoding": {"beam": 3, "max_length": 9},
            "training": {"ctc_weight": 0.3 if ctc else 0.0},
        }
    )
    tokenizer = train_tokenizer(config.tokenizer, ["one two three four five six seven"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        network = build_model(config.model, len(tokenizer), len(tokenizer), config.data.source).eval()
        network.ctc = Ctc(config.model.width, len(tokenizer)) if ctc else None
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    if given is not None:
        reader = frame_reader(config.data.source)
        assert reader is not None
        network.encoder.embedding.learn(reader.read(given))
    return Translator(Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer))
