"""Learning from text alone: resuming is exact, and a translation model begins with what was learned."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from translume.checkpoint import Manifest, load_checkpoint, read_config
from translume.config import Config
from translume.data.evaluation_files import read_evaluation_set, settings_for_files
from translume.data.pairs import read_pairs
from translume.errors import SettingsError, TrainingError
from translume.training import Finished, Started, train
from translume.training.fine_tuning import load_base
from translume.translator import Translator

Make = Callable[..., Config]
NO_PAIRS: dict[str, Any] = {f"{split}_{side}": () for split in ("train", "valid") for side in ("source", "target")}


@pytest.fixture(scope="module")
def texts(toy: Make, toy_files: Path) -> Make:
    """Settings of a tiny run that denoises texts of two languages."""

    def make(noise: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **training: Any) -> Config:
        corpora = [
            {"source_language": code, "target_language": code}
            | {split: (str(toy_files / f"{split}.{side}"),) for split in ("train", "valid")}
            for code, side in (("en", "source"), ("de", "target"))
        ]
        own = {"objective": "denoise", "denoising": noise or {}, "corpus": corpora, **(data or {})}
        tables = {"data": NO_PAIRS | own, "model": {"language_tags": "target"}}
        return toy(tables, **{"updates": 7, **training})

    return make


@pytest.fixture(scope="module")
def base(texts: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    list(train(texts(), folder))
    return folder


@pytest.mark.parametrize("noise", [{"permute": True}, {"kind": "spans", "rate": 0.3}])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(texts: Make, noise: dict[str, Any], tmp_path: Path) -> None:
    config = texts(noise, max_tokens=901)  # more than one epoch
    *_, last = train(config, tmp_path / "whole")
    assert isinstance(last, Finished)
    for length in (9, 13):
        run = train(config, tmp_path / "parts")
        for _ in zip(range(length), run, strict=False):
            pass
        run.close()
    list(train(config, tmp_path / "parts"))
    one, two = (Manifest.read(tmp_path / name).files for name in ("whole", "parts"))
    names = [name for name in one if name.endswith(".safetensors")]
    assert names
    assert all(one[name].sha256 == two[name].sha256 for name in names)
    state = json.loads((tmp_path / "whole" / one["resume/state.json"].file).read_text())
    assert state["epoch"] > 0


def test_texts_are_counted_in_each_language(texts: Make, tmp_path: Path) -> None:
    started = next(event for event in train(texts(updates=1), tmp_path) if isinstance(event, Started))
    account = started.training
    assert (account.read, account.used) == (600, 600)
    assert {name: each.read for name, each in account.directions.items()} == {"en→en": 300, "de→de": 300}


def test_noise_may_not_change_in_a_run(texts: Make, base: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        list(train(texts({"rate": 0.5}), base))
    assert str(caught.value) == f"{base}: this run began with data.denoising.rate = 'auto', found 0.5"


def test_a_translation_model_begins_with_the_weights_and_the_vocabulary(toy: Make, base: Path, tmp_path: Path) -> None:
    files = {name: value for name, value in toy().data.stated().items() if value}
    data = {**files, "source_language": "en", "target_language": "de"}
    config = Config.build({"data": data, "training": dict(toy().training.stated()) | {"updates": 2}})
    *_, last = train(config, tmp_path, source=base)
    assert isinstance(last, Finished)
    found, old = load_checkpoint(tmp_path), load_checkpoint(base)
    assert found.config.data.objective == "pairs"
    assert found.source_tokenizer.digest == old.source_tokenizer.digest
    assert found.lengths is not None
    load_base(found.model, old, found.source_tokenizer, found.target_tokenizer)
    for name, value in old.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], value)
    translator = Translator.load(tmp_path)
    assert [str(each) for each in translator.directions.offered] == ["en→de"]
    assert "<mask>" not in translator.translate("a b c").text


def test_such_a_model_is_measured_and_inspected_on_pairs(base: Path, tmp_path: Path) -> None:
    sides = {"en": ["a b", "c d e"], "de": ["f", "g h"]}
    for name, texts in (*sides.items(), ("tsv", map("\t".join, zip(*sides.values(), strict=True)))):
        (tmp_path / f"pairs.{name}").write_text("".join(f"{text}\n" for text in texts))
    files = [tmp_path / f"pairs.{name}" for name in sides]
    data = read_config(base).data
    table = read_evaluation_set([tmp_path / "pairs.tsv"], data)
    assert (table.sources, table.targets) == (sides["en"], sides["de"])
    for named in (files, [tmp_path / "pairs.tsv"]):
        pairs = read_pairs(settings_for_files(named, data), "train")
        assert [(pair.source, pair.target) for pair in pairs] == list(zip(*sides.values(), strict=True))


def test_denoising_may_continue_with_other_texts(texts: Make, base: Path, tmp_path: Path) -> None:
    stated = texts(updates=1).stated()
    del stated["tokenizer"], stated["model"]["width"]
    *_, last = train(Config.build(stated), tmp_path, source=base)
    assert isinstance(last, Finished)
    assert read_config(tmp_path).data.objective == "denoise"
    assert "An encoder-decoder Transformer, noisy text to text" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("data", "training", "message"),
    [
        ({}, {"metric": "bleu"}, "training.metric: found 'bleu', must be 'nll'"),
        ({"cleaning": {"identical": True}}, {}, "data.cleaning.identical: found True, must be False"),
        (
            {"corpus": (), "train": ("a",), "source_language": "en", "target_language": "de"},
            {},
            "data.target_language: found 'de', must be 'en'",
        ),
    ],
)
def test_settings_of_pairs_are_refused(
    texts: Make, data: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        texts(data=data, **training)
    assert str(caught.value) == f"settings: {message} with data.objective = 'denoise'"
