"""Write curves for TensorBoard from the events of a run, if the `tensorboard` package is installed."""

import threading
from pathlib import Path
from typing import Any

from translume.training.events import Event, Progress, Validated


class TensorBoard:
    """Writes logged Progress events and every Validated event as scalars into `folder`/tensorboard."""

    def __init__(self, folder: Path, *, after_update: int = 0) -> None:
        """after_update: curves of an earlier process are cut off after this update."""
        from torch.utils.tensorboard import SummaryWriter

        threading.excepthook = _without_writer_errors
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=after_update + 1)

    def add(self, event: Event) -> None:
        """Write an event that has numbers to draw."""
        if isinstance(event, Progress) and event.logged:
            self._scalars("training", event.update, _numbers(event))
        elif isinstance(event, Validated):
            self._scalars("validation", event.update, {event.measure: event.nll, **event.metrics})
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _scalars(self, group: str, update: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, update)


_excepthook = threading.excepthook


def _without_writer_errors(error: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, except of TensorBoard's writer when it cannot write.

    The writer raises the same error again in the thread that calls it, where it is reported in one line.
    """
    if not (issubclass(error.exc_type, OSError) and type(error.thread).__name__ == "_AsyncWriterThread"):
        _excepthook(error)


def _numbers(event: Progress) -> dict[str, float]:
    values = {
        "loss": event.loss,
        "tokens_per_second": event.tokens_per_second,
        "learning_rate": event.learning_rate,
        "gradient_norm": event.gradient_norm,
    }
    return values if event.nll is None else {**values, "nll": event.nll}
