"""Curves in Weights & Biases and MLflow: the numbers of the events, one run for a resumed training, short errors."""

from contextlib import suppress
from pathlib import Path

import pytest

from translume.cli.train import Trackers
from translume.config import Config
from translume.errors import TrainingError
from translume.training import Finished, Interrupted, MLflow, Progress, Validated, WeightsAndBiases
from translume.training.tracking import SERVICES, Ending, Tracker

pytestmark = pytest.mark.filterwarnings("ignore")


def progress(update: int, loss: float, *, logged: bool = True) -> Progress:
    return Progress(
        update=update,
        updates=11,
        epoch=0,
        loss=loss,
        nll=loss / 2,
        tokens=29,
        tokens_per_second=37.0,
        learning_rate=0.003,
        gradient_norm=1.7,
        seconds_left=5.0,
        logged=logged,
    )


def follow(tracker: Tracker, first: int) -> None:
    """Send the events of a part of a run, that end with a validation."""
    tracker.add(progress(first, 7.5))
    tracker.add(progress(first + 1, 99.0, logged=False))
    tracker.add(progress(first + 2, 5.5))
    tracker.add(Validated(update=first + 2, nll=2.25, metrics={"bleu": 13.5}, best=True, seconds=0.1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "en-de"
    made.mkdir()
    return made


def test_mlflow_has_all_logged_numbers_of_a_resumed_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/runs")
    for first in (1, 5):
        tracker = MLflow(folder, Config())
        follow(tracker, first)
        tracker.close("interrupted" if first == 1 else "finished")
    client = MlflowClient()
    (experiment,) = (each for each in client.search_experiments() if each.name == "translume")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("en-de", "FINISHED")
    assert run.data.params["model.width"] == str(Config().model.width)

    def curve(name: str) -> list[tuple[int, float]]:
        return [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]

    assert curve("training/loss") == [(1, 7.5), (3, 5.5), (5, 7.5), (7, 5.5)]
    assert curve("validation/bleu") == [(3, 13.5), (7, 13.5)]
    assert set(run.data.metrics) == {
        *(f"training/{name}" for name in ("loss", "nll", "tokens_per_second", "learning_rate", "gradient_norm")),
        "validation/nll",
        "validation/bleu",
    }


def test_weights_and_biases_has_one_run_for_a_resumed_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    ids = []
    for first in (1, 5):
        tracker = WeightsAndBiases(folder, Config())
        follow(tracker, first)
        run = tracker._run
        assert (run.project, run.name, run.config["model"]["width"]) == ("translume", "en-de", Config().model.width)
        shown = dict(run.summary)
        assert (shown["update"], shown["training/loss"], shown["validation/bleu"]) == (first + 2, 5.5, 13.5)
        ids.append(run.id)
        tracker.close("finished")
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("ending", "code", "status"), [("finished", 0, "FINISHED"), ("interrupted", 255, "KILLED"), ("failed", 1, "FAILED")]
)
def test_services_know_how_a_run_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: Ending, code: int, status: str
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/runs")
    monkeypatch.setenv("WANDB_MODE", "offline")
    curves, board = MLflow(folder, Config()), WeightsAndBiases(folder, Config())
    for tracker in (curves, board):
        tracker.close(ending)
    assert curves._client.get_run(curves._run).info.status == status
    assert board._run._exit_code == code


@pytest.mark.parametrize(
    ("last", "error", "ending"),
    [
        ("finished", None, "finished"),
        ("interrupted", None, "interrupted"),
        ("progress", KeyboardInterrupt, "interrupted"),
        ("progress", TrainingError, "failed"),
    ],
)
def test_the_last_event_or_error_says_how_a_run_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, last: str, error: type[BaseException] | None, ending: Ending
) -> None:
    found: list[Ending] = []

    class Service(MLflow):
        def __init__(self, folder: Path, config: Config) -> None:
            """Begin no run."""

        def add(self, event: object) -> None:
            """Write nothing."""

        def close(self, ending: Ending) -> None:
            found.append(ending)

    kept = {"nll": 2.25, "metrics": {}, "best_update": 7, "folder": folder, "already": False}
    events = {
        "progress": progress(7, 7.5),
        "finished": Finished(update=7, reason="updates", kept="the last", **kept),
        "interrupted": Interrupted(update=7, signal="SIGINT", folder=folder),
    }
    monkeypatch.setitem(SERVICES, "mlflow", Service)
    with suppress(KeyboardInterrupt, TrainingError), Trackers() as trackers:
        trackers.begin(folder, Config(), ("mlflow",), after_update=0)
        trackers.add(events[last])
        if error is not None:
            raise error
    assert found == [ending]


def test_services_that_refuse_a_run_are_errors_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nosuch://place")
    with pytest.raises(TrainingError) as error:
        MLflow(folder, Config())
    assert str(error.value).startswith("--track mlflow: ")
    assert "\n" not in str(error.value)
    assert not (folder / "tracking.json").exists()


def test_a_server_that_is_lost_later_is_an_error_of_writing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/runs")
    tracker = MLflow(folder, Config())

    def lost(*_: object, **__: object) -> None:
        raise MlflowException("the server is gone\nwith details")

    monkeypatch.setattr(tracker._client, "log_batch", lost)
    with pytest.raises(OSError, match=r"^the server is gone$"):
        tracker.add(progress(1, 7.5))
