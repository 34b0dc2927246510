"""Training on a stream of pairs: counts, refusals, and pairs that are too long."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from translume.checkpoint import data_of_history, read_history
from translume.cli import main
from translume.config import Config
from translume.data import streaming
from translume.errors import SettingsError, TrainingError
from translume.training import Finished, Progress, Started, train

Make = Callable[..., Config]

COUNTS = "300 pairs read, 260 used, 40 dropped\n  too long: 40\n"


def streamed(toy: Make, buffer: int, data: dict[str, Any] | None = None, **training: Any) -> Config:
    """Return the settings of a streamed run whose cleaning drops 40 pairs."""
    rules = {"cleaning": {"max_tokens": 8}, "streaming": True, "shuffle_buffer": buffer}
    return toy({"data": {**rules, **(data or {})}}, **{"max_tokens": 2000, **training})


@pytest.mark.parametrize("buffer", [70, 300])
def test_the_card_counts_each_pair_once_however_many_epochs_there_were(toy: Make, tmp_path: Path, buffer: int) -> None:
    """300: the stream has a whole number of buffers."""
    *events, last = train(streamed(toy, buffer), tmp_path)
    assert isinstance(last, Finished)
    assert [event.epoch for event in events if isinstance(event, Progress)][-1] > 2
    assert COUNTS in (tmp_path / "README.md").read_text()
    assert "so far" not in (tmp_path / "README.md").read_text()
    data = data_of_history(read_history(tmp_path))
    assert (data["training"]["read"], data["training"]["used"]) == (300, 260)
    assert [(file["digest"], file["pairs"]) for file in data["files"] if file["split"] == "train"] == [("", None)] * 2


def test_the_card_of_a_first_epoch_counts_the_pairs_read_so_far(toy: Make, tmp_path: Path) -> None:
    config = streamed(toy, 70, updates=2)
    for updates in (2, 3):
        *_, last = train(config.change(f"training.updates={updates}"), tmp_path)
    assert isinstance(last, Finished)
    assert last.training is not None
    assert (last.training.read, last.training.used) == (210, 182)
    card = (tmp_path / "README.md").read_text()
    assert "210 pairs read, 182 used" in card
    assert "(so far: the first epoch of the stream has not ended)" in card
    (first, second) = [event for event in read_history(tmp_path) if event["event"] == "started"]
    assert (first["training"]["read"], second["training"]["read"]) == (0, 70)


def test_a_stream_cannot_become_a_cache_in_the_middle_of_a_run(toy: Make, tmp_path: Path) -> None:
    config = streamed(toy, 70, updates=2)
    list(train(config, tmp_path))
    for change, message in (
        ("data.streaming=false", "data.streaming = True, found False"),
        ("data.shuffle_buffer=71", "data.shuffle_buffer = 70, found 71"),
        ("data.cleaning.max_tokens=7", "other training data"),
    ):
        with pytest.raises(TrainingError) as caught:
            list(train(config.change(change, "training.updates=3"), tmp_path))
        assert message in str(caught.value)


def test_pairs_that_no_batch_may_hold_are_refused_before_training(toy: Make, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        list(train(streamed(toy, 70, max_tokens=8), tmp_path))
    assert str(caught.value) == (
        "training.max_tokens: 8, but pairs of a stream may have 9 tokens; "
        "expected more, or a smaller data.cleaning.max_tokens"
    )


def test_a_stream_is_announced_with_its_files(toy: Make, tmp_path: Path) -> None:
    (started,) = [event for event in train(streamed(toy, 70, updates=1), tmp_path) if isinstance(event, Started)]
    assert started.streamed
    assert json.loads((tmp_path / "history.jsonl").read_text().splitlines()[0])["streamed"]
    (index,) = tmp_path.glob("cache/*/index.json")  # of the validation data
    assert json.loads(index.read_text())["parts"]["used"]["pairs"] == 17


def test_commands_about_data_read_the_first_pairs_of_a_stream(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "SAMPLE_PAIRS", 120)
    (tmp_path / "streamed.toml").write_text(streamed(toy, 70, updates=2).to_toml())

    def run(*words: str) -> tuple[str, str]:
        result = CliRunner().invoke(main, ["data", *words, str(tmp_path / "streamed.toml")], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout, result.stderr

    out, err = run("check")
    assert out.startswith("train: 120 pairs read, 102 used, 18 dropped\n  too long: 18\n")
    assert "data.streaming: these are the first pairs of the files\n" in err
    assert run("stats")[0].startswith("train: 102 pairs\n")
    assert run("prepare", "--out", str(tmp_path / "model"))[0] == (
        "train, the first pairs of the files: 120 pairs read, 102 used, 18 dropped\n  too long: 18\n"
        "valid: 17 pairs read, 17 used, 0 dropped\n"
    )
    list(train(streamed(toy, 70, updates=2), tmp_path / "model"))
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "model"), "--data"]).stdout
    assert "training data: 140 pairs read" in shown
    assert "     streamed  " in shown
