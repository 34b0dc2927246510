"""The vocabularies of a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from translume.checkpoint import load_checkpoint
from translume.config import Config
from translume.errors import SettingsError
from translume.training import train, vocabularies
from translume.training.vocabularies import vocabularies_of


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


def test_a_tokenizer_may_be_named_by_the_folder_of_a_model(toy: Callable[..., Config], tmp_path: Path) -> None:
    for name, shared in (("one", True), ("two", False)):
        tokenizer = {"path": "", "target_path": "", "shared": shared, "target_kind": "" if shared else "character"}
        head = {"head": {"tie": "all" if shared else "target"}}
        list(train(toy({"tokenizer": tokenizer, "model": head}, updates=1), tmp_path / name))
    config = toy({"tokenizer": {"path": str(tmp_path / "one"), "shared": True}})
    assert vocabularies_of(config)[0].digest == load_checkpoint(tmp_path / "one").target_tokenizer.digest
    with pytest.raises(SettingsError) as caught:
        vocabularies_of(toy({"tokenizer": {"path": str(tmp_path / "two"), "shared": True}}))
    wanted = f"tokenizer.path: {tmp_path}/two has two vocabularies, expected one for source and target"
    assert str(caught.value) == wanted


def test_a_shared_vocabulary_is_not_decomposed(toy: Callable[..., Config], tmp_path: Path) -> None:
    config = toy({"tokenizer": {"kind": "character", "normalization": "nfd", "path": ""}}, updates=1)
    message = r"^tokenizer.normalization: 'nfd' is for sources only, expected shared = false with it$"
    with pytest.raises(SettingsError, match=message):
        list(train(config, tmp_path / "model"))


@pytest.mark.parametrize(
    ("streaming", "sample", "words"),
    [(False, 5, ["a3", "a7", "b3", "b7", "c2"]), (True, 6, ["a0", "a1", "b0", "b1", "c0", "c1"]), (False, 99, None)],
)
def test_vocabularies_are_learned_from_a_sample_of_the_pairs(
    tmp_path: Path, streaming: bool, sample: int, words: list[str] | None
) -> None:
    """Of 8 + 9 + 3 pairs, every fourth one; of a stream, the first two of each file."""
    named = [f"{file}{line}" for file, lines in (("a", 8), ("b", 9), ("c", 3)) for line in range(lines)]
    for file in "abc":
        (tmp_path / f"{file}.tsv").write_text("".join(f"{word}\ty\n" for word in named if word[0] == file))
    data = {"train": [str(tmp_path / "?.tsv")], "valid": [str(tmp_path / "a.tsv")], "streaming": streaming}
    tokenizer = {"kind": "word", "unknown": "token", "sample": sample}
    source, _ = vocabularies_of(Config.build({"data": data, "tokenizer": tokenizer}))
    assert [word for word in named if source.specials.unk not in source.encode(word)] == (words or named)


def test_a_sample_is_not_larger_for_weighted_corpora(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{name}{line}\tx\n" for line in range(30)))
    corpora = [
        {"source_language": name, "target_language": "c", "train": str(tmp_path / f"{name}.tsv"), "weight": 100.0}
        for name in ("a", "b")
    ]
    data = {"corpus": corpora, "sampling_temperature": 2.0}
    config = Config.build({"data": data, "tokenizer": {"sample": 10}, "model": {"language_tags": "target"}})
    assert len(list(vocabularies._sampled_pairs(config))) <= 10
