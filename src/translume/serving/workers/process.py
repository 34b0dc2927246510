"""A worker process, as the server sees it: what it is asked, what it answers, and how it ends."""

import itertools
import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final

from translume.serving.workers.channel import Channel, Message
from translume.serving.workers.plain import error_of
from translume.serving.workers.thread import WorkerLostError

LOOK_SECONDS: Final = 0.05
"""How often it is asked whether anybody still waits for what goes on."""
END_SECONDS: Final = 5.0
"""How long a process may take to end by itself."""

log = logging.getLogger("translume.serving")


class Call:
    """Something that a process was asked."""

    def __init__(self, process: "Process", number: int) -> None:
        self._process, self._number = process, number
        self.inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def answers(self, patience_seconds: float, look: Callable[[], None] | None = None) -> Iterator[Message]:
        """What comes, news and results, until the process has done it; its error is raised as the error it was.

        look: is called now and then while nothing comes, and may raise; then the process is told to leave off.
        patience_seconds: after which the process is ended for one that hangs.
        Raises WorkerLostError where the process ends in the middle.
        """
        last = time.monotonic()
        try:
            while True:
                if look is not None:
                    look()
                try:
                    message = self.inbox.get(timeout=LOOK_SECONDS)
                except queue.Empty:
                    if time.monotonic() - last > patience_seconds:
                        self._process.kill()
                    continue
                last = time.monotonic()
                if message is None:
                    raise WorkerLostError("a worker process ended in the middle of its work")
                match message.head["kind"]:
                    case "done":
                        return
                    case "error":
                        raise error_of(message.head["error"])
                    case _:
                        yield message
        finally:
            self._process.forget(self._number)

    def tell(self, word: str, about: Mapping[str, Any]) -> None:
        """Say something about it while it is done; a process that has ended hears nothing."""
        self._process.post(word, self._number, about)


class Process:
    """A process that was begun here. `translume.serving.workers.main` is what runs in it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # -P: no module of the folder that the server was begun in stands in for one of its own.
        command = [sys.executable, "-P", "-m", "translume.serving.workers.main", str(theirs.fileno())]
        with theirs:
            self._popen = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for the server alone, while this one still begins too
            )
        self.pid = self._popen.pid
        self._channel = Channel(ours)
        self._numbers = itertools.count()
        self._calls: dict[int, Call] = {}
        self._lock = threading.Lock()
        self.over = False
        """Whether it has ended, or is about to: nothing will be answered any more."""
        assert self._popen.stdout is not None
        self._threads = [
            threading.Thread(target=self._read, name="translume-read", daemon=True),
            threading.Thread(target=self._log, args=(self._popen.stdout,), name="translume-stderr", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def call(self, what: str, about: Mapping[str, Any]) -> Call:
        """Have it do something; WorkerLostError where it has ended."""
        with self._lock:
            number = next(self._numbers)
            call = self._calls[number] = Call(self, number)
            if self.over:
                call.inbox.put(None)
        self.post(what, number, about)
        return call

    def post(self, what: str, number: int, about: Mapping[str, Any]) -> None:
        """Say something of a call; where the process has ended, whoever waits for the call hears that."""
        try:
            self._channel.send({"do": what, "call": number, **about})
        except OSError:
            return

    def forget(self, number: int) -> None:
        """Take no more answers to a call."""
        with self._lock:
            self._calls.pop(number, None)

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()

    def wait(self) -> str:
        """How it ended, once it has."""
        self._threads[0].join()
        try:
            code = self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            code = self._popen.wait()
        self._threads[1].join(END_SECONDS)
        self._channel.close()
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def end(self) -> None:
        """Have it end, whatever it does."""
        self._channel.end()

    def _read(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                with self._lock:
                    call = self._calls.get(message.head["call"])
                if call is not None:
                    call.inbox.put(message)
        finally:
            # However it ended, also where what came is no message: nobody shall wait for more.
            with self._lock:
                self.over = True
                for call in self._calls.values():
                    call.inbox.put(None)

    def _log(self, stream: IO[bytes]) -> None:
        """Write into the log what the process, or a library in it, says on its standard error."""
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                log.warning("a worker process said", extra={"fields": {"worker": self.pid, "line": text}})
