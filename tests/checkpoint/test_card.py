"""The model card has description, data, scores and licence; the log survives a crash in the middle of a line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from translume.checkpoint import Card, append_history, read_history, record_evaluation, write_card
from translume.checkpoint.model_card import licence_of
from translume.config import Config
from translume.errors import ModelFolderError
from translume.training.events import History

CONFIG = Config().change(
    "data.source_language=en",
    "data.target_language=de",
    "data.train_source=/far/away/train.en",
    "training.updates=8000",
)


def test_a_card_names_data_recipe_scores_and_licence(tmp_path: Path) -> None:
    folder = tmp_path / "en-de"
    folder.mkdir()
    card = Card(parameters=1234567, data="read 29,000 = used 28,990 + dropped 10", scores=["BLEU|tok:none = 41.02"])
    write_card(folder, CONFIG, card)
    text = (folder / "README.md").read_text()
    assert text.startswith("---\nlicense: unknown\nlanguage:\n- en\n- de\nlibrary_name: translume\n")
    for part in (
        "# en-de\n", "en to de", "`train.en`", "read 29,000 = used 28,990 + dropped 10", "- 1,234,567 parameters\n",
        "- 8,000 updates of 4,096 tokens", "BLEU|tok:none = 41.02",
    ):  # fmt: skip
        assert part in text
    assert "/far/away" not in text, "where files lay is nobody's business"


def test_licence_written_by_hand_is_kept(tmp_path: Path) -> None:
    write_card(tmp_path, CONFIG, Card())
    assert licence_of(tmp_path) == "unknown"
    path = tmp_path / "README.md"
    path.write_text(path.read_text().replace("license: unknown", "license:  cc-by-4.0 "))
    write_card(tmp_path, CONFIG, Card())
    assert licence_of(tmp_path) == "cc-by-4.0"
    write_card(tmp_path, CONFIG, Card(licence="mit"))
    assert licence_of(tmp_path) == "mit"


def test_a_folder_without_a_card_has_no_known_licence(tmp_path: Path) -> None:
    assert licence_of(tmp_path) == "unknown"
    (tmp_path / "README.md").write_text("no front matter\nlicense: mit\n")
    assert licence_of(tmp_path) == "unknown"


def evaluation(value: float, **files: str) -> dict[str, object]:
    score = {"name": "bleu", "title": "BLEU", "value": value, "signature": "nrefs:1|tok:zh", "detail": "1/2"}
    return {"source": "/far/test.en", "reference": "/far/test.zh", **files, "sentences": 7, "scores": [score]}


def scores_of(folder: Path) -> str:
    return (folder / "README.md").read_text().split("## Scores\n\n")[1]


def test_recorded_evaluations_follow_the_validation_scores_in_the_card(tmp_path: Path) -> None:
    write_card(tmp_path, CONFIG, Card(scores=["validation nll = 1.5000 nats per token, of the weights after update 7"]))
    before = (tmp_path / "README.md").read_text().split("## Scores")[0]
    append_history(tmp_path, {"event": "finished", "update": 7})
    for value, name in ((11.0, "test.en"), (41.017, "test.en"), (5.0, "other.en")):
        record_evaluation(tmp_path, evaluation(value, source=f"/far/{name}"))
    assert scores_of(tmp_path) == (
        "```\n"
        "validation nll = 1.5000 nats per token, of the weights after update 7\n"
        "test.en, test.zh: BLEU|nrefs:1|tok:zh = 41.02\n"
        "other.en, test.zh: BLEU|nrefs:1|tok:zh = 5.00\n"
        "```\n"
    )
    assert (tmp_path / "README.md").read_text().split("## Scores")[0] == before


def test_scores_of_older_weights_are_removed_from_the_card(tmp_path: Path) -> None:
    write_card(tmp_path, CONFIG, Card())
    record_evaluation(tmp_path, evaluation(11.0))
    append_history(tmp_path, {"event": "progress", "update": 8})
    record_evaluation(tmp_path, evaluation(12.0, reference="/far/test.en"))
    assert scores_of(tmp_path) == "```\ntest.en: BLEU|nrefs:1|tok:zh = 12.00\n```\n"


def test_text_written_below_the_scores_is_kept(tmp_path: Path) -> None:
    write_card(tmp_path, CONFIG, Card())
    path = tmp_path / "README.md"
    path.write_text(path.read_text() + "\n## Thanks\n\nTo all.\n")
    record_evaluation(tmp_path, evaluation(11.0))
    assert scores_of(tmp_path) == "```\ntest.en, test.zh: BLEU|nrefs:1|tok:zh = 11.00\n```\n\n## Thanks\n\nTo all.\n"


def test_a_folder_without_a_card_keeps_the_evaluation_in_its_history(tmp_path: Path) -> None:
    record_evaluation(tmp_path, evaluation(11.0))
    assert [path.name for path in tmp_path.iterdir()] == ["history.jsonl"]


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


@pytest.mark.parametrize("damage", [lambda line: line.replace(b"31", b"35"), lambda line: line[:-9] + b"\n"])
def test_a_damaged_line_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "history.jsonl"
    for value in (3, 31, 5):
        append_history(tmp_path, {"nll": value})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + damage(lines[1]) + lines[2])
    assert read_history(tmp_path) == [{"nll": 3}, {"nll": 5}]
    what = "damaged or incomplete, and left out; restore it from a copy, or delete the line"
    assert caplog.messages == [f"{path}:2: {what}"]
    path.write_bytes(b"")
    assert read_history(tmp_path) == []
    assert caplog.messages[1:] == [f"{path}:1: {what}"]


def test_a_log_of_an_earlier_version_has_no_digests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "history.jsonl").write_text('{"nll": 3}\n')
    append_history(tmp_path, {"nll": 5})
    assert read_history(tmp_path) == [{"nll": 3}, {"nll": 5}]
    assert caplog.messages == []


def test_a_log_that_lost_lines_is_named_when_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append_history(tmp_path, {"nll": 3})
    size = (tmp_path / "history.jsonl").stat().st_size
    History(tmp_path, keep_bytes=size)
    assert caplog.messages == []
    History(tmp_path, keep_bytes=size + 1)
    lost = f"{size:,} bytes, expected at least {size + 1:,}: lines of the log are lost; restore it from a copy"
    assert caplog.messages == [f"{tmp_path / 'history.jsonl'}: {lost}"]


def test_unwritable_history_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    with pytest.raises(ModelFolderError) as caught:
        append_history(folder, {})
    assert str(caught.value) == f"{folder}/history.jsonl: cannot be written: No such file or directory"
