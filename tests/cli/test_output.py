"""Standard output of commands, and early refusals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from translume.cli.show import _training as state_of


def test_output_is_utf8_in_every_locale(run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("你好 世界\n", encoding="utf-8")
    made = tmp_path / "tokenizer.json"
    assert run("tokenizer", "train", "character", "--size", "300", "--out", made, tmp_path / "text").exit_code == 0
    found = subprocess.run(
        [sys.executable, "-m", "translume", "tokenizer", "encode", str(made)],
        input="你好\n".encode(),
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=False,
    )
    assert (found.returncode, found.stdout.decode(), found.stderr) == (0, "你 好\n", b"")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metrics", "blue"], "evaluation.metrics: found 'blue'; did you mean 'bleu'?"),
        (["--compare", "nosuch"], "nosuch: not a model folder: there is no such folder"),
    ],
)
def test_evaluation_refuses_before_it_translates(run, files: Path, monkeypatch, words: list[str], message: str) -> None:
    assert run("train", files / "en-de.toml", "--out", files / "model").exit_code == 0

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("something was translated")

    monkeypatch.setattr("translume.translator.Translator.translate_all", fail)
    result = run("evaluate", files / "model", files / "train.en", files / "train.de", *words)
    assert (result.exit_code, result.stderr) == (1, f"Error: {message}\n")


def test_run_continued_after_its_end_is_not_finished() -> None:
    history = [
        {"event": "progress", "update": 7},
        {"event": "finished", "update": 7, "kept": "the last"},
        {"event": "evaluated"},
        {"event": "progress", "update": 9},
    ]
    assert (state_of(history)["update"], state_of(history)["finished"], state_of(history)["kept"]) == (9, False, None)
    assert (state_of(history[:3])["update"], state_of(history[:3])["finished"]) == (7, True)
