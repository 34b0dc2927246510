"""Training with a teacher: loading, resuming and refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.batches import pad_batch

from translume.checkpoint import Manifest, load_checkpoint
from translume.config import Config, TokenizerSettings
from translume.errors import ModelFolderError, SettingsError, TrainingError
from translume.text import train_tokenizer
from translume.training import train
from translume.training.events import Finished, Preparing, Validated

from .conftest import Make

SIDES = ("source", "target")


def finish(config: Config, folder: Path) -> list[Any]:
    return list(train(config, folder, device="cpu", threads=1))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder, device="cpu").model.state_dict()


@pytest.fixture(scope="module")
def teacher(toy: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "model"
    # It learns to be unsure: no labels alone would teach that.
    config = toy({"model": {"width": 16}}, updates=60, learning_rate=0.01, validate_every=60, label_smoothing=0.7)
    finish(config, folder)
    return folder


def test_student_approaches_its_teacher(toy: Make, toy_files: Path, teacher: Path, tmp_path: Path) -> None:
    loaded = load_checkpoint(teacher, device="cpu")
    tokenizer = loaded.source_tokenizer
    sides = [tokenizer.encode_all((toy_files / f"valid.{side}").read_text().splitlines()) for side in SIDES]
    batch = pad_batch(*sides, tokenizer.specials, tokenizer.specials)
    distances = {}
    for name, given in (("alone", {}), ("taught", {"teacher": str(teacher), "teacher_share": 1.0})):
        tuned: dict[str, Any] = {"updates": 60, "learning_rate": 0.01, "label_smoothing": 0.0}
        events = finish(toy(validate_every=60, **tuned, **given), tmp_path / name)
        assert (Preparing(what="teacher") in events) == (name == "taught")
        logs = []
        for model in (load_checkpoint(tmp_path / name, device="cpu").model, loaded.model):
            lesson = model.teacher_targets(batch.source, batch.source_mask, batch.target, batch.target_mask)
            logs.append(lesson(torch.arange(batch.tokens)))
        distances[name] = float((logs[1].exp() * (logs[1] - logs[0])).sum()) / batch.tokens
    assert distances["taught"] < distances["alone"] / 5


def test_run_with_a_teacher_resumes_bit_for_bit(toy: Make, teacher: Path, tmp_path: Path) -> None:
    whole = finish(toy(teacher=str(teacher)), tmp_path / "whole")
    for event in train(toy(teacher=str(teacher)), tmp_path / "parts", device="cpu", threads=1):
        if getattr(event, "update", 0) == 7:
            break
    finish(toy(teacher=str(teacher)), tmp_path / "parts")
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(isinstance(event, Validated) for event in whole)


def test_run_does_not_resume_with_another_teacher(toy: Make, tmp_path: Path) -> None:
    finish(toy(updates=3), tmp_path / "teacher")
    config = toy(teacher=str(tmp_path / "teacher"))
    for event in train(config, tmp_path / "model", device="cpu", threads=1):
        if getattr(event, "update", 0) == 7:
            break
    began = load_checkpoint(tmp_path / "teacher", device="cpu").digest
    finish(toy(updates=6), tmp_path / "teacher")
    found = load_checkpoint(tmp_path / "teacher", device="cpu").digest
    with pytest.raises(TrainingError) as caught:
        finish(config, tmp_path / "model")
    assert str(caught.value) == (
        f"{tmp_path / 'model'}: this run began with other weights of the teacher "
        f"(digest {began[:12]}, now {found[:12]}); "
        "train into another folder, or fine-tune this model with --from"
    )


def test_a_teacher_of_other_tokens_is_refused(toy: Make, teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        finish(toy({"tokenizer": {"kind": "byte"}}, teacher=str(teacher)), tmp_path / "model")
    file = teacher / Manifest.read(teacher).files["tokenizer_settings.json"].file
    assert (
        str(caught.value) == f"training.teacher: {teacher} has other source tokens, expected tokenizer.path = '{file}'"
    )
    events = finish(toy({"tokenizer": {"path": str(file)}}, teacher=str(teacher), updates=2), tmp_path / "other")
    assert isinstance(events[-1], Finished)


def test_a_teacher_of_other_tags_is_refused(toy: Make, tmp_path: Path) -> None:
    folder = tmp_path / "teacher"
    tables = {"data": {"source_language": "en", "target_language": "de"}, "model": {"language_tags": "source"}}
    finish(toy(tables, updates=1), folder)
    tables |= {"model": {"language_tags": "target"}, "tokenizer": {"path": str(folder)}}
    with pytest.raises(SettingsError) as caught:
        finish(toy(tables, teacher=str(folder)), tmp_path / "model")
    assert str(caught.value) == f"training.teacher: {folder} has model.language_tags = 'source', expected 'target'"


def test_a_teacher_of_other_target_tokens_is_refused(toy: Make, teacher: Path, tmp_path: Path) -> None:
    words = str(teacher / Manifest.read(teacher).files["tokenizer_settings.json"].file)
    train_tokenizer(TokenizerSettings(kind="byte"), []).save(tmp_path / "bytes.json")
    configs = []
    for target in (str(tmp_path / "bytes.json"), words):
        tokens = {"shared": False, "path": words, "target_path": target}
        configs.append({"tokenizer": tokens, "model": {"head": {"tie": "none"}}})
    finish(toy(configs[0], updates=2), tmp_path / "teacher")
    with pytest.raises(SettingsError) as caught:
        finish(toy(configs[1], teacher=str(tmp_path / "teacher")), tmp_path / "model")
    target = tmp_path / "teacher" / Manifest.read(tmp_path / "teacher").files["target_settings.json"].file
    assert str(caught.value) == (
        f"training.teacher: {tmp_path / 'teacher'} has other target tokens, expected tokenizer.target_path = '{target}'"
    )


def test_teacher_without_a_distribution_is_refused(toy: Make, tmp_path: Path) -> None:
    finish(toy({"model": {"head": {"kind": "sigmoid"}}}, updates=3), tmp_path / "teacher")
    with pytest.raises(SettingsError) as caught:
        finish(toy(teacher=str(tmp_path / "teacher")), tmp_path / "model")
    assert str(caught.value) == (
        f"training.teacher: {tmp_path / 'teacher'} has model.head.kind = 'sigmoid', "
        "whose decisions are not a distribution"
    )


@pytest.mark.parametrize(
    ("positions", "setting"), [({"max_positions": 37}, ""), ({"encoder": {"max_positions": 37}}, "encoder.")]
)
def test_teacher_with_fewer_positions_is_refused(
    toy: Make, tmp_path: Path, positions: dict[str, Any], setting: str
) -> None:
    finish(toy({"model": positions}, updates=2), tmp_path / "teacher")
    with pytest.raises(SettingsError) as caught:
        finish(toy(teacher=str(tmp_path / "teacher")), tmp_path / "model")
    assert str(caught.value) == (
        f"training.teacher: {tmp_path / 'teacher'} reads at most 37 positions, "
        f"expected model.{setting}max_positions = 37 or less"
    )


def test_missing_teacher_is_a_one_line_error(toy: Make, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError) as caught:
        finish(toy(teacher=str(tmp_path / "gone")), tmp_path / "model")
    assert str(tmp_path / "gone") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["sigmoid", "entmax", "shortlist"])
def test_head_that_cannot_learn_a_distribution_refuses_a_teacher(toy: Make, kind: str) -> None:
    with pytest.raises(SettingsError) as caught:
        toy({"model": {"head": {"kind": kind}}}, teacher="models/big")
    wanted = f"settings: training.teacher: found models/big, must be none with model.head.kind = '{kind}', "
    assert str(caught.value).startswith(wanted)


def test_a_share_without_a_teacher_is_refused(toy: Make) -> None:
    with pytest.raises(SettingsError) as caught:
        toy(teacher_share=0.3)
    assert str(caught.value) == (
        "settings: training: teacher_share is 0.3 without a teacher, expected teacher = a model folder"
    )


def test_teacher_path_is_relative_to_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text('[training]\nteacher = "models/big"\n')
    assert Config.read(tmp_path / "small.toml").training.teacher == str(tmp_path / "models/big")
