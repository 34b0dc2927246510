"""Signal handling: on Ctrl-C (SIGINT), SIGTERM and SIGHUP, training finishes the update, saves, and yields
`Interrupted`.

`SignalFlag` only sets a flag. `Run.events` in `train.py` checks it after each update, and validation between batches.
A long wait for data ends at once, by `Interruption`.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from translume.parallel import Closing

Handler = Callable[[int, FrameType | None], Any] | int | None


ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that end a training. Windows has no SIGHUP."""
BURST_SECONDS = 1.0
"""Time after a signal within which others are taken for the same one."""


class Interruption(BaseException):
    """A signal ended a block of `SignalFlag.interruptible`."""


class SignalFlag(Closing):
    """A context in which the first SIGINT, SIGTERM or SIGHUP only sets `caught`; a later one has its usual effect.

    Within `BURST_SECONDS` after the first they are taken for the same one: terminals and wrappers may send several.
    torchrun repeats a signal, and kills its processes after 30 seconds: with `always`, all signals only set `caught`.

    A signal that is ignored stays ignored: SIGHUP by `nohup`, SIGINT in the background of a script.
    Outside the main thread Python allows no signal handlers, so nothing is caught there.
    """

    def __init__(self, on_signal: Callable[[int], object] | None = None, *, always: bool = False) -> None:
        """on_signal: called at once with the number of the caught signal."""
        self.caught = ""
        self._on_signal, self._always = on_signal, always
        self._before: dict[int, Handler] = {}
        self._raises, self._since = False, 0.0

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
            for number in ENDING:
                if signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._catch)
        return self

    def _catch(self, number: int, frame: FrameType | None) -> None:
        first = not self.caught
        if first:
            self._since = time.monotonic()
        elif not self._always:
            if time.monotonic() - self._since > BURST_SECONDS:
                self.close()
                signal.raise_signal(number)
            return
        self.caught = signal.Signals(number).name
        if self._on_signal is not None:
            self._on_signal(number)
        if self._raises and first:
            raise Interruption

    def close(self) -> None:
        """Restore the handlers of signals that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}
