"""Start Python child processes and exchange framed messages with them.

Parent and child share a socket. A frame is a JSON object and optional bytes; nothing is pickled. The parent sends
requests, each answered by any number of responses and then by an end or an error. A child ends with its parent. The
parent raises `ProcessLostError` for a request whose child ends or hangs.
"""

import ctypes
import faulthandler
import itertools
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NoReturn, Self

from translume.errors import (
    DataError,
    DocumentError,
    ModelFolderError,
    SettingsError,
    TrainingError,
    TranslationError,
    TranslumeError,
)

FRAME: Final = struct.Struct("!4sII")
"""Start of a frame: magic bytes, length of the JSON object, length of the body."""
MAGIC: Final = b"TLM1"
MAX_BYTES: Final = 2**30
"""Longest JSON object, and longest body, of a frame."""
POLL_SECONDS: Final = 0.05
"""Interval at which a waiting call checks for cancellation and hangs."""
CLOSE_SECONDS: Final = 5.0
"""Time for a child to end by itself before it is killed."""
SEND_SECONDS: Final = 60
"""A child that does not read a request for so long counts as hung."""
PR_SET_PDEATHSIG: Final = 1
ERRORS: Final = {
    each.__name__: each
    for each in (
        TranslumeError,
        SettingsError,
        DataError,
        DocumentError,
        ModelFolderError,
        TrainingError,
        TranslationError,
    )
}
"""Errors that keep their class between processes; subclasses become the nearest of these."""


class ProtocolError(RuntimeError):
    """The bytes received are not a frame."""


class ProcessLostError(RuntimeError):
    """A child process ended, or hung and was killed, before it finished a request."""


class UnexpectedChildError(RuntimeError):
    """An error in a child that is not a TranslumeError. Its message is withheld, because it may quote user data.

    kind: name of the exception's class.  trace: where it was raised.
    """

    def __init__(self, kind: str, trace: str) -> None:
        super().__init__(kind)
        self.kind, self.trace = kind, trace
        self.add_note(trace)

    def __reduce__(self) -> tuple[type["UnexpectedChildError"], tuple[str, str]]:
        return UnexpectedChildError, (self.kind, self.trace)


@dataclass(frozen=True, slots=True)
class Message:
    """A JSON object and bytes."""

    values: Mapping[str, Any]
    body: bytes = b""


class Connection:
    """One end of a socket that carries frames. Any thread may send; one thread at a time may receive."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._file = end, end.makefile("rb")
        self._sending = threading.Lock()

    def send(self, values: Mapping[str, Any], body: bytes = b"") -> None:
        """Send one frame. Raises OSError if the other end is closed."""
        text = json.dumps(values).encode()
        if (longest := max(len(text), len(body))) > MAX_BYTES:
            raise ValueError(f"message: found {longest:,} bytes, expected at most {MAX_BYTES:,}")
        frame = FRAME.pack(MAGIC, len(text), len(body)) + text + body
        with self._sending:
            self._socket.sendall(frame)

    def receive(self) -> Message | None:
        """Return the next message, or None once the connection is closed. Raises ProtocolError for anything else."""
        try:
            start = self._file.read(FRAME.size)
            if len(start) < FRAME.size:
                return None
            magic, head, body = FRAME.unpack(start)
            if magic != MAGIC or max(head, body) > MAX_BYTES:
                raise ProtocolError("received bytes that are not a frame")
            content = self._file.read(head + body)
        except (OSError, ValueError):  # reset by the other end, or closed by another thread of this process
            return None
        if len(content) < head + body:
            return None
        try:
            values = json.loads(content[:head])
        except ValueError:
            raise ProtocolError("received a frame without JSON") from None
        if not isinstance(values, dict):
            raise ProtocolError("received a frame without a JSON object")
        return Message(values, content[head:])

    def shutdown(self) -> None:
        """Let both ends receive the end of the stream. What was sent before still arrives."""
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. No thread may be receiving."""
        self._file.close()
        self._socket.close()


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON values for `decode_error`."""
    if isinstance(error, TranslumeError):
        name = next(each.__name__ for each in type(error).__mro__ if each in ERRORS.values())
        return {"name": name, "reason": str(error)}
    return {"kind": type(error).__name__, "trace": "".join(traceback.format_tb(error.__traceback__))}


def decode_error(values: Mapping[str, Any]) -> Exception:
    """Return the error of `encode_error`: of a class in `ERRORS`, or an UnexpectedChildError."""
    if "name" in values:
        return ERRORS[values["name"]](values["reason"])
    return UnexpectedChildError(values["kind"], values["trace"])


def usable_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def exit_name(code: int) -> str:
    """Return "SIGKILL" or the like for a process ended by a signal, otherwise "exit code N"."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def exit_reason(code: int, log: Path) -> str:
    """Return one line: the signal that ended a process, or else the last line in the log of its output."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    reason = f"killed by {exit_name(code)}" if code < 0 else last or exit_name(code)
    return f"{reason} (see {log})" if last else reason


class Call:
    """A request that was sent to a child."""

    def __init__(self, child: "ChildProcess", number: int) -> None:
        self._child, self._number = child, number
        self.inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def responses(
        self, hang_timeout_seconds: float | None = None, poll: Callable[[], object] | None = None
    ) -> Iterator[Message]:
        """Yield the responses until the request is done.

        poll: called at least every `POLL_SECONDS` of waiting; may raise.
        hang_timeout_seconds: the child is killed if nothing arrives for so long.
        Raises the error of the handler, and ProcessLostError if the child ends first. The request is cancelled if
        iteration stops early.
        """
        silent, hung, finished = 0.0, False, False
        wait = None if poll is None and hang_timeout_seconds is None else POLL_SECONDS
        try:
            while True:
                if poll is not None:
                    poll()
                try:
                    message = self.inbox.get(timeout=wait)
                except queue.Empty:
                    # Counted in steps, so that time in which this process is suspended does not count.
                    silent += POLL_SECONDS
                    if hang_timeout_seconds is not None and silent >= hang_timeout_seconds and not hung:
                        hung = True
                        self._child.kill()
                    continue
                silent = 0.0
                if message is None:
                    finished = True
                    how = (
                        f"did not respond for {hang_timeout_seconds:g} s" if hung else "ended in the middle of its work"
                    )
                    raise ProcessLostError(f"a worker process {how}")
                match message.values["type"]:
                    case "done":
                        finished = True
                        return
                    case "error":
                        finished = True
                        raise self._child.decode_error(message.values["error"])
                    case "response":
                        yield Message(message.values["values"], message.body)
        finally:
            self._child.forget(self._number, cancel=not finished)

    def cancel_part(self, part: int) -> None:
        """Tell the child that a part of the result is no longer needed; see `Request.cancelled_parts`."""
        self._child.cancel_part(self._number, part)


class ChildProcess:
    """A Python process that runs `main()` of a module, which calls `connect` or `serve_requests`.

    Threads may share it.
    """

    def __init__(
        self,
        module: str,
        *,
        output: Path | Callable[[int, str], object] | None = None,
        decode_error: Callable[[Mapping[str, Any]], Exception] = decode_error,
    ) -> None:
        """Start the process in a process group of its own, so that a terminal's Ctrl-C reaches only the parent.

        output: receives what the child prints on stdout and stderr: a file, or a function called with its process id
        and each line. None is the parent's stderr.  decode_error: makes errors out of the values that the child sends.
        Raises OSError or RuntimeError if the system has no room for a process or a thread.
        """
        self.decode_error = decode_error
        self._numbers = itertools.count()
        self._calls: dict[int, Call] = {}
        self._lock = threading.RLock()  # a call may be released by the garbage collector while the lock is held
        self._ended = False
        ours, theirs = socket.socketpair()
        # The limit is for requests that a hung child does not read.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self._connection = Connection(ours)
        started: Future[subprocess.Popen[bytes]] = Future()
        name = f"translume-{module.rpartition('.')[2]}"
        self._waiter = threading.Thread(
            target=self._wait, args=(module, theirs, output, started), name=f"{name}-wait", daemon=True
        )
        self._reader = threading.Thread(target=self._read, name=f"{name}-read", daemon=True)
        self._printer: threading.Thread | None = None
        with ExitStack() as failed:
            failed.callback(self._connection.close)
            failed.callback(self._connection.shutdown)
            try:
                self._waiter.start()
                self._popen = started.result()
            finally:
                theirs.close()
            failed.callback(self._popen.kill)
            if callable(output) and self._popen.stdout is not None:
                self._printer = threading.Thread(
                    target=_print_lines,
                    args=(self._popen.stdout, self._popen.pid, output),
                    name=f"{name}-output",
                    daemon=True,
                )
                self._printer.start()
            self._reader.start()
            failed.pop_all()
        self.pid = self._popen.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended or can no longer be reached."""
        return self._ended

    def request(self, method: str, values: Mapping[str, Any] | None = None, body: bytes = b"") -> Call:
        """Send a request. If the child has ended or ends now, the call's responses raise ProcessLostError."""
        with self._lock:
            number = next(self._numbers)
            call = self._calls[number] = Call(self, number)
            if self._ended:
                call.inbox.put(None)
        self._send({"type": "request", "id": number, "method": method, "values": dict(values or {})}, body)
        return call

    def forget(self, number: int, *, cancel: bool) -> None:
        """Ignore further responses to a request.  cancel: ask the child to stop working on it."""
        with self._lock:
            self._calls.pop(number, None)
            cancel = cancel and not self._ended
        if cancel:
            self._send({"type": "cancel", "id": number})

    def cancel_part(self, number: int, part: int) -> None:
        """Tell the child that a part of the result of a request is no longer needed."""
        if not self._ended:
            self._send({"type": "cancel", "id": number, "part": part})

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """End the process at once."""
        self._popen.kill()

    def shutdown(self) -> None:
        """Ask the process to end, without waiting for it. Requests in progress are lost."""
        self._connection.shutdown()

    def wait(self) -> int:
        """Return the exit code once the process has ended, negative for a signal. Releases its resources."""
        self._reader.join()
        self._waiter.join()
        if self._printer is not None:
            self._printer.join(CLOSE_SECONDS)  # a grandchild may keep the pipe open
        self._connection.close()
        return self._popen.returncode

    def close(self) -> int:
        """End the process: first by closing the connection, after `CLOSE_SECONDS` by SIGKILL. Return its exit code."""
        self.shutdown()
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, values: Mapping[str, Any], body: bytes = b"") -> None:
        try:
            self._connection.send(values, body)
        except OSError:
            # It has ended, or it hangs and has read only a part, after which nothing else can be sent.
            self._popen.kill()

    def _wait(
        self,
        module: str,
        theirs: socket.socket,
        output: Path | Callable[[int, str], object] | None,
        started: "Future[subprocess.Popen[bytes]]",
    ) -> None:
        """Start the process and wait for its end.

        One thread does both, because PR_SET_PDEATHSIG follows the thread that starts a process.
        """
        # -P: a module in the current directory must not stand in for an installed one.
        code = f"from {module} import main; main()"
        command = [sys.executable, "-P", "-c", code, str(theirs.fileno()), str(os.getpid())]
        try:
            with ExitStack() as files:
                target: int | IO[bytes] = 2 if output is None else subprocess.PIPE
                if isinstance(output, Path):
                    target = files.enter_context(output.open("wb"))
                popen = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=target,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    process_group=0,
                )
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(popen)
        popen.wait()
        self._connection.shutdown()  # a grandchild may still hold the other end

    def _read(self) -> None:
        try:
            while (message := self._connection.receive()) is not None:
                with self._lock:
                    call = self._calls.get(message.values["id"])
                if call is not None:
                    call.inbox.put(message)
        except (ProtocolError, KeyError):
            self._popen.kill()
        finally:
            with self._lock:
                self._ended = True
                for call in self._calls.values():
                    call.inbox.put(None)
            self._connection.shutdown()
            self._waiter.join(CLOSE_SECONDS)
            if self._waiter.is_alive():
                self._popen.kill()


def _print_lines(stream: IO[bytes], pid: int, output: Callable[[int, str], object]) -> None:
    with stream:
        for line in stream:
            output(pid, line.decode(errors="replace").rstrip())


@dataclass(slots=True, weakref_slot=True, eq=False)
class Request:
    """A request as the child receives it."""

    connection: Connection
    number: int
    method: str
    values: Mapping[str, Any]
    body: bytes = b""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the parent no longer needs the result."""
    cancelled_parts: set[int] = field(default_factory=set)
    """Numbers of the parts of the result that the parent no longer needs."""

    def respond(self, values: Mapping[str, Any] | None = None, body: bytes = b"") -> None:
        """Send one response."""
        self.connection.send({"type": "response", "id": self.number, "values": dict(values or {})}, body)

    def handle(
        self,
        handler: Callable[["Request"], None],
        encode_error: Callable[[BaseException], dict[str, Any]] = encode_error,
    ) -> None:
        """Call `handler`, then send the end of the request, or the error that was raised."""
        try:
            handler(self)
        except BaseException as error:  # also what would end the thread: the parent is waiting
            self.end(error, encode_error)
        else:
            self.end()

    def end(
        self,
        error: BaseException | None = None,
        encode_error: Callable[[BaseException], dict[str, Any]] = encode_error,
    ) -> None:
        """Send the end of the request, or an error."""
        end = {"type": "done"} if error is None else {"type": "error", "error": encode_error(error)}
        with suppress(OSError):  # the parent is gone
            self.connection.send({**end, "id": self.number})


def connect(*, shield: tuple[signal.Signals, ...] = ()) -> Connection:
    """Return the connection to the parent that started this process.

    The kernel kills this process with its parent where it can (Linux). Elsewhere it ends when the parent's end of the
    socket is closed.  shield: signals to ignore, since the parent decides when this process ends.
    """
    for each in shield:
        signal.signal(each, signal.SIG_IGN)
    number, parent = map(int, sys.argv[1:3])
    os.set_inheritable(number, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)
    faulthandler.enable()  # where native code crashed goes to stderr
    return Connection(socket.socket(fileno=number))


def requests(connection: Connection) -> Iterator[Request]:
    """Yield requests until the parent closes the connection. Meanwhile, cancel those that it cancels."""
    active: weakref.WeakValueDictionary[int, Request] = weakref.WeakValueDictionary()
    while (message := connection.receive()) is not None:
        number = message.values["id"]
        if message.values["type"] == "cancel":
            if (request := active.get(number)) is not None:
                if "part" in message.values:
                    request.cancelled_parts.add(message.values["part"])
                else:
                    request.cancelled.set()
            continue
        request = Request(connection, number, message.values["method"], message.values["values"], message.body)
        active[number] = request
        yield request


def serve_requests(
    handler: Callable[[Request], None],
    *,
    encode_error: Callable[[BaseException], dict[str, Any]] = encode_error,
    shield: tuple[signal.Signals, ...] = (),
) -> NoReturn:
    """Handle requests one after another in the main thread. End the process when the parent closes the connection."""
    waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def read() -> None:
        code = 1
        try:
            for request in requests(connection):
                waiting.put(request)
            code = 0
        finally:
            os._exit(code)

    connection = connect(shield=shield)
    threading.Thread(target=read, name="translume-requests", daemon=True).start()
    while True:
        waiting.get().handle(handler, encode_error)
