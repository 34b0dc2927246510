"""Stored folders of every format, which later versions must read."""

from pathlib import Path

import pytest
import torch

from translume.checkpoint import FORMAT, Manifest, load_checkpoint, verify

GOLDEN = Path(__file__).parent / "golden"


def test_there_is_a_folder_of_every_format() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == [f"format_{number}" for number in range(1, FORMAT + 1)]


def test_format_1_is_read_and_gives_the_same_numbers() -> None:
    folder = GOLDEN / "format_1"
    verify(folder)
    assert Manifest.read(folder).format == 1
    loaded = load_checkpoint(folder)
    tokenizer = loaded.source_tokenizer
    assert loaded.target_tokenizer is tokenizer
    bos, eos = tokenizer.specials.bos, tokenizer.specials.eos
    source, target = (tokenizer.encode(text) for text in ("a dog", "the man"))
    ids, fed, labels = (torch.tensor([row]) for row in ([*source, eos], [bos, *target], [*target, eos]))
    masks = (torch.ones_like(ids, dtype=torch.bool), torch.ones_like(labels, dtype=torch.bool))
    log_probs = loaded.model.score(ids, masks[0], fed, labels, masks[1])
    assert float(log_probs.sum()) == pytest.approx(-28.429323, abs=1e-4)
