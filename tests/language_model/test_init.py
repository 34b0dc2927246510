"""`init` proposes a language model for one text file, and the proposal trains."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from translume.cli import main
from translume.config import Config
from translume.experiments.proposals import LITTLE_TEXT, choose_language_model
from translume.experiments.survey import Documents, survey_documents


def init(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["init", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_one_text_file_gives_a_language_model_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{first}{second} {second}{first}" for first in "abcdefghijkl" for second in "mnopqrstu"]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    code, text, errors = init(tmp_path / "train.txt")
    assert (code, errors) == (0, "108 lines, 648 characters; 2 % of it held out for validation\n")
    settings = tomllib.loads(text)
    assert settings["data"]["task"] == "language_model"
    assert settings["data"]["documents"] == "line"
    assert (settings["tokenizer"]["kind"], settings["tokenizer"]["whitespace"]) == ("character", "keep")
    (tmp_path / "a.toml").write_text(text)
    monkeypatch.setenv("TRANSLUME_SHORT", "1")
    small = ["--set", "model.width=12", "--set", "model.feed_forward=17", "--set", "model.attention_heads=2"]
    result = CliRunner().invoke(main, ["train", str(tmp_path / "a.toml"), "--out", str(tmp_path / "model"), *small])
    assert result.exit_code == 0, result.stderr


def test_running_text_is_one_document_if_there_is_a_validation_file(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("One line\nof several.\n\nMore.\n" * 31)
    code, text, errors = init(tmp_path / "train.txt")
    assert (code, tomllib.loads(text)["data"]["documents"]) == (0, "blank_line")
    assert errors.startswith("--valid FILE names validation text; ")
    (tmp_path / "valid.txt").write_text("Another line.\n")
    code, text, errors = init(tmp_path / "train.txt")
    data = tomllib.loads(text)["data"]
    assert (code, data["documents"], data["valid"]) == (0, "file", str(tmp_path / "valid.txt"))
    assert errors.endswith(f"; validated on {tmp_path / 'valid.txt'}\n")


def test_two_files_and_columns_are_refused_for_a_language_model(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    task = ("--task", "language_model")
    assert init(tmp_path / "a.txt", tmp_path / "a.txt", *task) == (
        1,
        "",
        "Error: TRAIN_TARGET cannot be combined with a language model, which reads one file of texts\n",
    )
    assert init(tmp_path / "a.txt", "--columns", "0,1", *task)[0] == 1


@pytest.mark.parametrize("characters", [1_000, 1_000_000, 10**7, 10**8, 10**10])
@pytest.mark.parametrize("distinct", [60, 5_000])
def test_proposals_for_any_amount_of_text_are_valid(characters: int, distinct: int) -> None:
    found = Documents(lines=characters // 40, blank=0, characters=characters, distinct=distinct)
    chosen = {choice.path: choice.value for choice in choose_language_model(found, validated=True)}
    overrides = [f"{path}={value!r}" for path, value in chosen.items()]
    config = Config().change("data.task='language_model'", *overrides)
    assert config.data.block_length == config.model.max_positions
    assert (config.tokenizer.kind == "character") == (distinct == 60 and characters <= LITTLE_TEXT)


def test_a_survey_counts_lines_characters_and_letters() -> None:
    assert survey_documents(["ab", "", " ", "a"]) == Documents(lines=4, blank=2, characters=8, distinct=4)
