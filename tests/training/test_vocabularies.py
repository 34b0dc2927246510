"""The vocabularies of a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from translume.checkpoint import load_checkpoint
from translume.config import Config
from translume.errors import SettingsError
from translume.training import train


def test_letters_are_the_tokens_of_sources_and_phones_those_of_targets(
    toy: Callable[..., Config], tmp_path: Path
) -> None:
    words = ["ab", "abba", "bad", "dab", "dada", "cab", "cad", "add", "baa", "acca", "dacc"]
    phones = {"a": "ɑː", "b": "b", "c": "tʃ", "d": "d̪"}
    rows = [f"{word}\t{' '.join(phones[letter] for letter in word)}\n" for word in words]
    (tmp_path / "train.tsv").write_text("".join(rows), encoding="utf-8")
    data = {"train": [str(tmp_path / "train.tsv")], "train_source": [], "train_target": []}
    data |= {"valid": [str(tmp_path / "train.tsv")], "valid_source": [], "valid_target": []}
    tokenizer = {"kind": "character", "target_kind": "word", "target_size": 11, "size": 300, "shared": False,
                 "unknown": "token", "path": "", "target_path": ""}  # fmt: skip
    config = toy({"data": data, "tokenizer": tokenizer, "model": {"head": {"tie": "none"}}}, updates=1)
    list(train(config, tmp_path / "model"))
    checkpoint = load_checkpoint(tmp_path / "model")
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    assert len(source.encode("dada")) == len(target.encode("d̪ ɑː tʃ b")) == 4
    assert target.decode(target.encode("d̪ ɑː tʃ")) == "d̪ ɑː tʃ"
    # A word of the target is a whole phone, never seen as a part of a longer one.
    assert target.encode("d̪ɑː") == [target.specials.unk]
    assert "(word tokens in the target)" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_a_shared_vocabulary_is_not_decomposed(toy: Callable[..., Config], tmp_path: Path) -> None:
    config = toy({"tokenizer": {"kind": "character", "normalization": "nfd", "path": ""}}, updates=1)
    message = r"^tokenizer.normalization: 'nfd' is for sources only, expected shared = false with it$"
    with pytest.raises(SettingsError, match=message):
        list(train(config, tmp_path / "model"))
