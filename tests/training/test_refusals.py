import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from translume.checkpoint import load_checkpoint, save_model
from translume.config import Config
from translume.errors import DataError, SettingsError, TrainingError
from translume.training import Event, Progress, Saved, Started, train
from translume.training.resume import MAY_CHANGE

Make = Callable[..., Config]


def begin(config: Config, folder: Path, *, source: Path | None = None) -> None:
    """Start a run that dies after its first commit."""
    run = train(config, folder, source=source)
    for event in run:
        if isinstance(event, Saved):
            run.close()


def refusal(config: Config, folder: Path, *, source: Path | None = None) -> str:
    with pytest.raises(TrainingError) as caught:
        list(train(config, folder, source=source))
    return str(caught.value)


@pytest.mark.parametrize(
    ("others", "training", "expected"),
    [
        ({"model": {"feed_forward": 29}}, {}, "this run began with model.feed_forward = 23, found 29"),
        ({"model": {"head": {"bias": False}}}, {}, "this run began with model.head.bias = True, found False"),
        ({"tokenizer": {"lowercase": True}}, {}, "this run began with tokenizer.lowercase = False, found True"),
        ({"data": {"label_separator": ";"}}, {}, "this run began with data.label_separator = ',', found ';'"),
        (
            {},
            {"learning_rate": 0.7},
            "this run began with training.learning_rate = 0.0005, found 0.7; these may change: "
            + ", ".join(MAY_CHANGE),
        ),
        (
            {},
            {"precision": "bf16"},
            "this run began with training.precision = 'fp32', found 'bf16'; these may change: " + ", ".join(MAY_CHANGE),
        ),
    ],
)
def test_changed_model_or_recipe_is_refused_by_name(
    toy: Make, tmp_path: Path, others: dict[str, Any], training: dict[str, Any], expected: str
) -> None:
    begin(toy(), tmp_path)
    assert refusal(toy(others, **training), tmp_path) == f"{tmp_path}: {expected}"


def test_foreign_readme_is_not_overwritten(toy: Make, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("my project")
    expected = f"{tmp_path}/README.md: exists, but the folder holds no model; expected an empty folder"
    assert refusal(toy(), tmp_path) == expected
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("README.md", "my project")]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"valid_source": "valid.source", "valid_target": ()},
            "data.valid_source: 1 files, but data.valid_target has 0; expected as many of each",
        ),
        (
            {"train_source": (), "train_target": ()},
            "data: no training files; expected data.train_source and data.train_target, or data.train (a table)",
        ),
        ({"valid_source": "none", "valid_target": "none"}, "none: no such file"),
    ],
)
def test_unusable_data_files_are_refused_before_anything_is_read(
    toy: Make, tmp_path: Path, files: dict[str, Any], expected: str
) -> None:
    with pytest.raises((SettingsError, DataError)) as caught:
        list(train(toy({"data": files}), tmp_path / "model"))
    assert str(caught.value) == expected
    assert not (tmp_path / "model").exists()


def test_changed_data_is_refused_by_digest(toy: Make, toy_files: Path, tmp_path: Path) -> None:
    begin(toy(), tmp_path)
    for side in ("source", "target"):
        text = (toy_files / f"train.{side}").read_text()
        (tmp_path / f"more.{side}").write_text(text + "a b\n")
    changed = {"train_source": str(tmp_path / "more.source"), "train_target": str(tmp_path / "more.target")}
    message = refusal(toy({"data": changed}), tmp_path)
    began, found = message.split("(digest ")[1].split(")")[0].split(", now ")
    assert len(began) == len(found) == 12
    assert message == (
        f"{tmp_path}: this run began with other training data (digest {began}, now {found}); "
        "train into another folder, or fine-tune this model with --from"
    )


def test_same_data_under_another_path_resumes(toy: Make, toy_files: Path, tmp_path: Path) -> None:
    begin(toy(), tmp_path)
    for side in ("source", "target"):
        (tmp_path / f"moved.{side}").write_text((toy_files / f"train.{side}").read_text())
    moved = {"train_source": str(tmp_path / "moved.source"), "train_target": str(tmp_path / "moved.target")}
    assert any(isinstance(event, Progress) for event in train(toy({"data": moved}), tmp_path))


def test_changed_file_weights_count_as_changed_data(toy: Make, tmp_path: Path) -> None:
    begin(toy(), tmp_path)
    assert "other training data" in refusal(toy({"data": {"weights": [2.0]}}), tmp_path)


@pytest.mark.parametrize("metric", ["nll", "bleu"])
@pytest.mark.parametrize(
    ("table", "values", "expected"),
    [
        ("decoding", {"nbest": 5, "beam": 3}, "decoding.nbest: found 5, expected at most beam = 3"),
        (
            "decoding",
            {"vocabulary": "gone"},
            "decoding.vocabulary: gone: cannot be read: No such file or directory",
        ),
        ("evaluation", {"metrics": "bleuu"}, "evaluation.metrics: found 'bleuu'; did you mean 'bleu'?"),
        (
            "evaluation",
            {"tokenize": "ja-mecab"},
            "evaluation.tokenize: 'ja-mecab' needs a package that is not installed; install sacrebleu[ja]",
        ),
    ],
)
def test_settings_that_would_fail_validation_are_refused_before_the_first_update(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, values: dict[str, Any], metric: str,
    expected: str
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "MeCab", None)  # as where it is not installed
    events: list[Event] = []
    with pytest.raises((SettingsError, DataError)) as caught:
        events.extend(train(toy({table: values}, metric=metric), tmp_path / "model"))
    assert events
    assert str(caught.value) == expected
    assert not any(isinstance(event, Started | Progress) for event in events)


def test_fine_tuning_begins_with_the_weights_and_tokenizer_of_the_source(toy: Make, tmp_path: Path) -> None:
    list(train(toy(), tmp_path / "base"))
    plain = toy({"model": {"width": 256, "feed_forward": 1024, "encoder_layers": 3, "decoder_layers": 3}})
    plain = plain.model_copy(update={"model": type(plain.model)(dropout=0.2)})
    events = list(train(plain, tmp_path / "copy", source=tmp_path / "base"))
    first = next(event for event in events if isinstance(event, Progress))
    last = [event for event in train(toy(updates=18), tmp_path / "base") if isinstance(event, Progress)][-1]
    assert first.loss == pytest.approx(last.loss, abs=0.4)
    saved = Config.parse(next((tmp_path / "copy").glob("config-*.toml")).read_text())
    assert (saved.model.width, saved.model.dropout) == (12, 0.2)


def test_fine_tuning_resumes_only_with_the_same_source_model(toy: Make, tmp_path: Path) -> None:
    begin(toy(), tmp_path / "base")
    begin(toy(), tmp_path / "other")
    message = refusal(toy(), tmp_path / "other", source=tmp_path / "base")
    assert message == f"{tmp_path / 'other'}: this run began without --from, found --from {tmp_path / 'base'}"


def test_source_model_path_may_be_written_differently(toy: Make, tmp_path: Path) -> None:
    begin(toy(), tmp_path / "base")
    begin(toy(), tmp_path / "copy", source=tmp_path / "base")
    other = tmp_path / "copy" / ".." / "base"
    assert any(isinstance(event, Progress) for event in train(toy(), tmp_path / "copy", source=other))


def test_a_model_without_a_run_is_not_overwritten(toy: Make, tmp_path: Path) -> None:
    begin(toy(), tmp_path / "run")
    save_model(tmp_path / "plain", load_checkpoint(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run" / "resume")
    for name in ("run", "plain"):
        assert refusal(toy(), tmp_path / name) == (
            f"{tmp_path / name}: holds a model, but no run to resume; "
            "train into another folder, or fine-tune this model with --from"
        )
        load_checkpoint(tmp_path / name)


def test_two_vocabularies_of_one_size_are_not_tied(toy: Make, toy_files: Path, tmp_path: Path) -> None:
    upper = {}
    for split in ("train", "valid"):
        upper[f"{split}_target"] = str(tmp_path / split)
        (tmp_path / split).write_text((toy_files / f"{split}.target").read_text().upper())
    config = toy({"data": upper, "tokenizer": {"shared": False, "size": 12}})
    with pytest.raises(SettingsError) as caught:
        list(train(config, tmp_path / "model"))
    assert str(caught.value) == (
        "model.head.tie: 'all' needs one vocabulary for both sides, found two of 12 and 12 tokens; "
        "set tokenizer.shared = true or tie = 'target'"
    )


def test_zero_threads_is_refused(toy: Make, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        list(train(toy(), tmp_path / "model", threads=0))
    assert str(caught.value) == "threads: found 0, expected an integer from 1 to 4096"


def test_missing_file_is_a_one_line_error(toy: Make, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        list(train(toy({"data": {"train_source": str(tmp_path / "gone.en")}}), tmp_path / "model"))
    assert str(caught.value) == f"{tmp_path / 'gone.en'}: no such file"


@pytest.mark.parametrize(
    ("kind", "name", "value", "why"),
    [
        ("sigmoid", "z_loss", 1e-4, "whose decisions are not a distribution"),
        ("sigmoid", "confidence_penalty", 0.1, "whose decisions are not a distribution"),
        ("entmax", "z_loss", 1e-4, "which has no log Σ exp"),
        ("entmax", "r_drop", 5.0, "whose divergence is infinite where supports differ"),
    ],
)
def test_penalty_without_effect_for_a_head_is_refused(toy: Make, kind: str, name: str, value: float, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        toy({"model": {"head": {"kind": kind}}}, **{name: value})
    wanted = f"must be 0 with model.head.kind = '{kind}', {why}"
    assert str(caught.value) == f"settings: training.{name}: found {value}, {wanted}"


def test_penalty_without_effect_for_the_fine_tuned_model_is_refused(toy: Make, tmp_path: Path) -> None:
    begin(toy({"model": {"head": {"kind": "sigmoid"}}}), tmp_path / "base")
    plain = toy(r_drop=5.0)
    plain = plain.model_copy(update={"model": type(plain.model)()})
    with pytest.raises(SettingsError) as caught:
        list(train(plain, tmp_path / "copy", source=tmp_path / "base"))
    assert str(caught.value) == (
        f"{tmp_path / 'copy'}: training.r_drop: found 5.0, must be 0 with model.head.kind = 'sigmoid', "
        "whose decisions are not a distribution"
    )
