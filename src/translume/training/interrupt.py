"""Signal handling: on Ctrl-C (SIGINT), SIGTERM and SIGHUP, training finishes the update, saves, and yields
`Interrupted`.

`SignalFlag` only sets a flag. `Run.events` in `train.py` checks it after each update, and validation between batches.
A long wait for data ends at once, by `Interruption`.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any] | int | None


class Interruption(BaseException):
    """A signal ended a block of `SignalFlag.interruptible`."""


class SignalFlag:
    """A context in which the first SIGINT, SIGTERM or SIGHUP only sets `caught`; a second one has its usual effect.

    torchrun repeats a signal, and kills its processes after 30 seconds: with `always`, all signals only set `caught`.

    SIGHUP comes when the terminal closes. If it is ignored, as `nohup` arranges, it stays ignored.
    Outside the main thread Python allows no signal handlers, so nothing is caught there.
    """

    def __init__(self, on_signal: Callable[[int], object] | None = None, *, always: bool = False) -> None:
        """on_signal: called at once with the number of the caught signal."""
        self.caught = ""
        self._on_signal, self._always = on_signal, always
        self._before: dict[int, Handler] = {}
        self._raises = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Run a block that a signal ends by raising `Interruption`, also if the signal was caught before."""
        self._raises = True
        try:
            if self.caught:
                raise Interruption
            yield
        finally:
            self._raises = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        first, self.caught = not self.caught, signal.Signals(number).name
        if not self._always:
            self._restore()
        if self._on_signal is not None:
            self._on_signal(number)
        if self._raises and first:
            raise Interruption

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}
