"""Send the curves of a run to TensorBoard, Weights & Biases or MLflow, from its events. Each is an optional package."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from translume.atomic import replace_file
from translume.checksums import sealed, unsealed
from translume.config import Config
from translume.errors import TrainingError, not_installed, refused
from translume.training.events import Event, Progress, Validated

IDS = "tracking.json"
"""The file in a model folder with the id of its run in each service, so that a resumed run continues its curves."""
PROJECT = "translume"
"""The project or experiment, unless the environment names one."""

Ending = Literal["finished", "interrupted", "failed"]
"""How a run of a service ended."""


def curves(event: Event) -> dict[str, float]:
    """Return the numbers of a logged Progress event or of a Validated event by name, such as "training/loss"."""
    if isinstance(event, Progress) and event.logged:
        values = {
            "loss": event.loss,
            "tokens_per_second": event.tokens_per_second,
            "learning_rate": event.learning_rate,
            "gradient_norm": event.gradient_norm,
        }
        if event.nll is not None:
            values["nll"] = event.nll
        if event.balance is not None and event.dropped_share is not None:
            values |= {"balance": event.balance, "dropped_share": event.dropped_share}
        return {f"training/{name}": value for name, value in values.items()}
    if isinstance(event, Validated):
        return {f"validation/{name}": value for name, value in {event.measure: event.nll, **event.metrics}.items()}
    return {}


class TensorBoard:
    """Writes curves into `folder`/tensorboard."""

    def __init__(self, folder: Path, *, after_update: int = 0) -> None:
        """after_update: curves of an earlier process are cut off after this update."""
        from torch.utils.tensorboard import SummaryWriter

        self.place = f"{folder}/tensorboard"
        threading.excepthook = _without_writer_errors
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=after_update + 1)

    def add(self, event: Event) -> None:
        if isinstance(event, Progress | Validated):
            for name, value in curves(event).items():
                self._writer.add_scalar(name, value, event.update)
        if isinstance(event, Validated):
            self._writer.flush()

    def close(self, ending: Ending = "finished") -> None:
        self._writer.close()


_excepthook = threading.excepthook


def _without_writer_errors(error: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, except of TensorBoard's writer when it cannot write.

    The writer raises the same error again in the thread that calls it, where it is reported in one line.
    """
    if not (issubclass(error.exc_type, OSError) and type(error.thread).__name__ == "_AsyncWriterThread"):
        _excepthook(error)


class WeightsAndBiases:
    """Sends curves and settings to Weights & Biases, as its own environment variables say."""

    place = "wandb"

    def __init__(self, folder: Path, config: Config) -> None:
        """Begin a run, or continue that of the folder. Raises TrainingError, in one line, if that fails."""
        import wandb

        ids = _ids(folder)
        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=folder.name,
                id=ids.get(self.place),
                resume="allow",
                dir=str(folder),
                config=config.model_dump(mode="json"),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except (wandb.errors.Error, OSError) as error:
            raise TrainingError(f"--track {self.place}: {_first_line(error)}") from None
        self._run.define_metric("*", step_metric="update")
        _remember(folder, {**ids, self.place: self._run.id})

    def add(self, event: Event) -> None:
        values = curves(event)
        if values and isinstance(event, Progress | Validated):
            self._run.log({"update": event.update, **values})

    def close(self, ending: Ending = "finished") -> None:
        # The exit code is the state: W&B's own hooks report 255 after Ctrl-C, which it shows as killed.
        self._run.finish(exit_code={"finished": 0, "interrupted": 255, "failed": 1}[ending])


class MLflow:
    """Sends curves and settings to the MLflow server in MLFLOW_TRACKING_URI."""

    place = "mlflow"

    def __init__(self, folder: Path, config: Config) -> None:
        """Begin a run, or continue that of the folder. Raises TrainingError, in one line, if that fails."""
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        ids = _ids(folder)
        self._refused = MlflowException
        try:
            self._client: Any = MlflowClient()
            if self.place in ids:
                self._run = ids[self.place]
                self._client.update_run(self._run, status="RUNNING")
                return
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            existing = self._client.get_experiment_by_name(name)
            experiment = existing.experiment_id if existing else self._client.create_experiment(name)
            self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
            values = [Param(name, str(value)) for name, value in config.by_path().items()]
            for begin in range(0, len(values), _MAX_PARAMETERS):
                self._client.log_batch(self._run, params=values[begin : begin + _MAX_PARAMETERS])
        except (MlflowException, OSError) as error:
            reason = _first_line(error)
            if not os.environ.get("MLFLOW_TRACKING_URI"):
                reason = "MLFLOW_TRACKING_URI is not set; expected the address of a server, as http://127.0.0.1:5000"
            raise TrainingError(f"--track {self.place}: {reason}") from None
        _remember(folder, {**ids, self.place: self._run})

    def add(self, event: Event) -> None:
        from mlflow.entities import Metric

        if isinstance(event, Progress | Validated):
            now = int(time.time() * 1000)
            values = [Metric(name, value, now, event.update) for name, value in curves(event).items()]
            self._send(lambda: values and self._client.log_batch(self._run, metrics=values))

    def close(self, ending: Ending = "finished") -> None:
        status = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}[ending]
        self._send(lambda: self._client.set_terminated(self._run, status))

    def _send(self, call: Callable[[], object]) -> None:
        try:
            call()
        except self._refused as error:
            raise OSError(_first_line(error)) from None


Tracker = TensorBoard | WeightsAndBiases | MLflow
"""Receives the events of a run. Its methods raise OSError if the numbers cannot be written.

place: where it writes, for messages.  add: writes the numbers of an event, if it has any.  close: writes what is left,
and ends the run.
"""
SERVICES: Final = {each.place: each for each in (WeightsAndBiases, MLflow)}
"""The trackers that a user chooses by name, which is also that of their package."""
_MAX_PARAMETERS = 100
"""The most that a request to MLflow may have."""


def check_services(names: tuple[str, ...]) -> None:
    """Raise SettingsError for a service whose package is not installed."""
    for name in names:
        if not find_spec(name):
            raise not_installed(f"--track {name}", name)


def _ids(folder: Path) -> dict[str, str]:
    try:
        return unsealed((folder / IDS).read_bytes(), SERVICES)[0]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        advice = "restore it from a copy, or delete it to begin new curves"
        raise TrainingError(f"{folder / IDS}: damaged, or cannot be read; {advice}") from None


def _remember(folder: Path, ids: Mapping[str, str]) -> None:
    with refused(folder / IDS, "cannot be written", TrainingError):
        replace_file(folder / IDS, sealed(ids).encode())


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
