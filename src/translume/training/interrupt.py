"""SIGINT and SIGTERM as a flag that the loop reads between batches."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any] | int | None


class Signals:
    """While entered, the first SIGINT or SIGTERM only sets `caught`; a second one does what it did before.

    Outside the main thread, where Python allows no handlers, nothing is caught.
    """

    def __init__(self, tell: Callable[[int], object] | None = None) -> None:
        """tell: called at once with the number of the signal that is caught."""
        self.caught = ""
        self._tell = tell
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught = signal.Signals(number).name
        self._restore()
        if self._tell is not None:
            self._tell(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}
