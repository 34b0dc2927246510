"""Stored folders of every format, which later versions must read."""

import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from translume.checkpoint import FORMAT, Manifest, committed, load_checkpoint, read_tokenizers, save_model, verify

GOLDEN = Path(__file__).parent / "golden"


def test_there_is_a_folder_of_every_format() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == [f"format_{number}" for number in range(1, FORMAT + 1)]


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_every_format_is_read_and_gives_the_same_numbers(number: int) -> None:
    folder = GOLDEN / f"format_{number}"
    verify(folder)
    assert Manifest.read(folder).format == number
    loaded = load_checkpoint(folder)
    tokenizer = loaded.source_tokenizer
    assert loaded.target_tokenizer is tokenizer
    bos, eos = tokenizer.specials.bos, tokenizer.specials.eos
    source, target = (tokenizer.encode(text) for text in ("a dog", "the man"))
    ids, fed, labels = (torch.tensor([row]) for row in ([*source, eos], [bos, *target], [*target, eos]))
    masks = (torch.ones_like(ids, dtype=torch.bool), torch.ones_like(labels, dtype=torch.bool))
    log_probs = loaded.model.score(ids, masks[0], fed, labels, masks[1])
    assert float(log_probs.sum()) == pytest.approx(-28.429323, abs=1e-4)


def test_saving_a_model_of_format_1_gives_its_tokenizer_the_names_of_format_2(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "format_1", folder)
    save_model(folder, load_checkpoint(folder))
    manifest = Manifest.read(folder)
    assert manifest.format == 2
    assert set(manifest.files) == {"config.toml", "tokenizer.json", "tokenizer_settings.json", "weights.safetensors"}
    library = Tokenizer.from_file(str(committed(folder, manifest, "tokenizer.json")))
    ours, _ = read_tokenizers(GOLDEN / "format_1")
    assert library.encode("a dog").ids == [*ours.encode("a dog"), ours.specials.eos]
