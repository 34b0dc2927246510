"""The log of a run survives a crash in the middle of a line."""

from pathlib import Path

import pytest

from translume.checkpoint import append_history, read_history
from translume.errors import ModelFolderError


def test_records_are_read_in_order(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    for update in range(3):
        append_history(tmp_path, {"update": update, "text": "ü"})
    assert read_history(tmp_path) == [{"update": update, "text": "ü"} for update in range(3)]


def test_incomplete_line_does_not_affect_others(tmp_path: Path) -> None:
    append_history(tmp_path, {"update": 1})
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"update": 2, "nl')
    assert read_history(tmp_path) == [{"update": 1}]
    append_history(tmp_path, {"update": 3})
    assert read_history(tmp_path) == [{"update": 1}, {"update": 3}]


def test_unwritable_history_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    with pytest.raises(ModelFolderError) as caught:
        append_history(folder, {})
    assert str(caught.value) == f"{folder}/history.jsonl: cannot be written: No such file or directory"
