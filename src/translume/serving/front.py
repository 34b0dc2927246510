"""`translume serve --workers N`: processes that each serve all models, and one before them that shares out requests.

The processes listen on Unix sockets. A request goes to the one with the fewest, and is sent again once if its process
ends before a byte of the response. SIGHUP replaces one process after another: each ends after its last request.
"""

import asyncio
import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import h11
from starlette.types import Message, Receive, Scope, Send

from translume.errors import TranslumeError
from translume.serving.access.guard import HEADERS, HEALTH, check_framing
from translume.serving.api.app import build_app
from translume.serving.api.errors import RequestError, error_response
from translume.serving.files.storage import PrivateFolder
from translume.serving.metrics import SummedMetrics
from translume.serving.reloading import open_server, reload_on_hangup
from translume.serving.run import log_to_stderr, serve, uvicorn_server
from translume.serving.settings import Limits, ServeSettings
from translume.text.detection import installed_detector
from translume.translator.loading import ComputeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a process needs to serve.  read: reads the settings.  lanes: searches at a time.  folder: of all of them."""

    read: Callable[[], ServeSettings]
    computing: ComputeOptions
    lanes: int
    folder: Path

    @property
    def files(self) -> Path:
        """The folder of translated files."""
        return self.folder / "files"

    @property
    def metrics(self) -> Path:
        """The folder in which the processes count."""
        return self.folder / "metrics"


def run_worker(options: WorkerOptions, address: str, connection: Connection) -> None:
    """Serve on a Unix socket until SIGTERM or until the front has ended.  connection: gets an error, or "" at last."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all processes
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr()
    try:
        settings = options.read()
        server, _ = open_server(settings, options.computing, options.lanes, PrivateFolder(shared=options.files))
    except TranslumeError as error:
        connection.send(str(error))
        return
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(address)
    bound.listen(2048)

    def end_with_front() -> None:
        with suppress(EOFError, OSError):
            connection.recv()
        os.kill(os.getpid(), signal.SIGTERM)

    def started() -> None:
        with suppress(OSError):  # the front has ended meanwhile
            connection.send("")

    threading.Thread(target=end_with_front, name="translume-parent", daemon=True).start()
    serve(build_app(server, detector=installed_detector()), bound, settings.limits, started, ("*",))


ATTEMPTS: Final = 2
"""Processes that get a request, if the first ones end."""
KEPT_BYTES: Final = 1_000_000
"""Longest body of a request that is sent again: all of them are in memory."""
CHUNK: Final = 65_536
"""Bytes of a response that are read at a time."""
SHORT_LIFE_SECONDS: Final = 30.0
"""Processes that end within this time of their start are replaced after a growing delay."""
MAX_DELAY_SECONDS: Final = 30.0
CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"expect"}
)
"""Headers about a connection, which are not passed on (RFC 9110, section 7.6.1), and one that was obeyed already."""
FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"})
"""Headers by which a client could name another address."""
METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Variable that names the folder in which processes count; prometheus_client reads it when it is imported."""

log = logging.getLogger("translume.serving")


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    """A process.  requests: in progress.  connection: closed by its end; it sends what is wrong, or nothing."""

    process: Any
    address: Path
    connection: Connection
    started: float
    requests: int = 0


class _LostError(Exception):
    """A process ended before it sent a byte of a response."""


class _UnreachableError(Exception):
    """A process ended before it got a request."""


class Front:
    """The ASGI application that shares out requests. Start it in the event loop that serves it."""

    def __init__(self, options: WorkerOptions, limits: Limits, private: PrivateFolder) -> None:
        """private: what holds the folder of the options."""
        for folder in (options.files, options.metrics):
            folder.mkdir()
        os.environ[METRICS_FOLDER] = str(options.metrics)  # for the processes
        self.limits = limits
        self._options, self._private = options, private
        self.metrics = SummedMetrics(options.metrics)
        self._workers: list[_Worker] = []
        self._numbers, self._turns = itertools.count(), itertools.count()
        self._open = 0
        self._changed = asyncio.Condition()
        self._restarting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, count: int) -> None:
        """Start processes, and return once they serve. Raises TranslumeError if one of them cannot."""
        starts = [asyncio.create_task(self._start()) for _ in range(count)]
        try:
            for each in starts:
                self._add(await each)
        finally:
            for each in starts:
                each.cancel()
            await asyncio.wait(starts)

    def request_restart(self) -> None:
        """Restart all processes, after a restart in progress."""
        self._run(self.restart())

    async def restart(self) -> None:
        """Replace every process by one that has read the settings and models again; keep those that cannot be."""
        async with self._restarting:
            for old in list(self._workers):
                try:
                    new = await self._start()
                except TranslumeError as error:
                    log.error("not reloaded", extra={"fields": {"reason": str(error)}})
                    return
                if old in self._workers:
                    self._workers.remove(old)
                    self._add(new)
                    old.process.terminate()
                else:  # it has ended meanwhile, and was replaced
                    new.process.terminate()
            log.info("reloaded", extra={"fields": {"workers": [each.process.pid for each in self._workers]}})

    async def close(self) -> None:
        """End all processes after their requests."""
        for task in self._tasks:
            task.cancel()
        for worker in self._workers:
            worker.process.terminate()
        ends = [asyncio.ensure_future(_readable(worker.process.sentinel)) for worker in self._workers]
        if ends:
            await asyncio.wait(ends, timeout=self.limits.drain_seconds + 5)
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
        os.environ.pop(METRICS_FOLDER, None)
        self._private.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
        self._open += 1
        try:
            await self._handle(scope, _Body(receive), send)
        except RequestError as error:
            response = error_response(error, scope)
            response.headers.update(HEADERS)
            await response(scope, receive, send)
        finally:
            self._open -= 1

    async def _handle(self, scope: Scope, body: "_Body", send: Send) -> None:
        """Pass a request on; RequestError if that is impossible."""
        check_framing(scope)
        if self._open > self.limits.requests and scope["path"] not in HEALTH:
            reason = f"{self.limits.requests:,} requests are in progress already; try later"
            raise RequestError(503, reason, code="too_many_open", retry_after=1)
        lost, tried = 0, list[_Worker]()
        while lost < ATTEMPTS:
            worker = await self._pick(tried)
            tried.append(worker)
            worker.requests += 1
            try:
                return await _forward(worker.address, scope, body, send)
            except _LostError:
                lost += 1
                if not body.kept:
                    reason = "a process ended at this request, which is too long to be sent to another one; try again"
                    raise RequestError(503, reason, code="worker_lost", retry_after=1) from None
            except _UnreachableError:
                pass
            finally:
                worker.requests -= 1
        raise RequestError(503, "two processes ended at this request; see the server's log", code="worker_lost")

    async def _pick(self, tried: Sequence[_Worker]) -> _Worker:
        """Return the other process with the fewest requests, once there is one; RequestError (503) after some time."""

        def others() -> list[_Worker]:
            return [worker for worker in self._workers if worker not in tried]

        try:
            async with asyncio.timeout(self.limits.timeout_seconds), self._changed:
                await self._changed.wait_for(others)
        except TimeoutError:
            raise RequestError(503, "no process serves now; try later", code="worker_lost", retry_after=10) from None
        turn = next(self._turns) % len(others())
        return min(others()[turn:] + others()[:turn], key=lambda each: each.requests)

    async def _start(self) -> _Worker:
        """Start a process and wait until it serves; TranslumeError if it cannot."""
        address = self._options.folder / f"{next(self._numbers)}.sock"
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=run_worker, args=(self._options, str(address), theirs), name="translume-worker"
        )
        try:
            await asyncio.to_thread(process.start)
            theirs.close()
            await _readable(ours.fileno())
            if reason := ours.recv():
                raise TranslumeError(reason)
        except (EOFError, OSError) as error:
            reason = str(error) or "it ended while it loaded the models; the log may say why"
            raise TranslumeError(f"a process did not start: {reason}") from None
        except asyncio.CancelledError:
            if process.pid is not None:
                process.kill()
            raise
        return _Worker(process=process, address=address, connection=ours, started=time.monotonic())

    def _add(self, worker: _Worker) -> None:
        self._workers.append(worker)
        self._run(self._watch(worker))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)  # the event loop has weak references only
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, worker: _Worker) -> None:
        """Wait for the end of a process, and replace it unless that was wanted."""
        async with self._changed:
            self._changed.notify_all()
        await _readable(worker.process.sentinel)
        worker.process.join()
        worker.connection.close()
        worker.address.unlink(missing_ok=True)
        pid, code = worker.process.pid, worker.process.exitcode
        self.metrics.remove(pid)
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        fields = {"worker": pid, "how": signal.Signals(-code).name if code < 0 else f"exit code {code}"}
        log.error("a worker process ended", extra={"fields": fields})
        self.metrics.workers_lost.inc()
        delay = 0.0 if time.monotonic() - worker.started > SHORT_LIFE_SECONDS else 0.1
        while True:
            await asyncio.sleep(delay)
            try:
                async with self._restarting:  # which would not replace a process that is being started
                    return self._add(await self._start())
            except TranslumeError as error:
                log.error("a worker process was not replaced", extra={"fields": {"reason": str(error)}})
                delay = min(MAX_DELAY_SECONDS, 2 * delay or 1.0)


class _Body:
    """The body of a request, kept so that it can be sent again, unless it is long."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.kept = True
        """Whether the body can be sent again."""
        self._sent = bytearray()
        self._complete = False

    async def send(self, write: Callable[[bytes | None], Any]) -> None:
        """Send the body as it arrives; return when the client has disconnected.  write: None is the end of it."""
        if self._sent:
            await write(bytes(self._sent))
        while not self._complete:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            part = message.get("body", b"")
            self.kept = self.kept and len(self._sent) + len(part) <= KEPT_BYTES
            if self.kept:
                self._sent += part
            else:
                self._sent.clear()
            self._complete = not message.get("more_body", False)
            await write(part)
        await write(None)
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _forward(address: Path, scope: Scope, body: _Body, send: Send) -> None:
    """Send a request to a process and its response to the client; _LostError if it sent no byte of one."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(address))
    except OSError:
        raise _UnreachableError from None
    upstream = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)

    async def write(part: bytes | None) -> None:
        event = h11.EndOfMessage() if part is None else h11.Data(data=part)
        writer.write(upstream.send(event) or b"")
        await writer.drain()

    async def send_body() -> None:
        # If the process has closed the connection, it has sent a response before, or is lost: reading tells which.
        with contextlib.suppress(ConnectionError):
            await body.send(write)
            return
        await asyncio.Event().wait()

    started = False

    async def receive() -> None:
        nonlocal started
        while True:
            event = upstream.next_event()
            if event is h11.NEED_DATA:
                upstream.receive_data(await reader.read(CHUNK))
            elif isinstance(event, h11.Response):
                kept = [pair for pair in event.headers if pair[0] not in CONNECTION | {b"transfer-encoding", b"date"}]
                started = True
                await send({"type": "http.response.start", "status": event.status_code, "headers": kept})
            elif isinstance(event, h11.Data):
                await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                return await send({"type": "http.response.body", "body": b""})
            else:
                raise ConnectionError

    tasks: list[asyncio.Task[None]] = []
    try:
        writer.write(upstream.send(_head(scope)) or b"")
        tasks = [asyncio.create_task(receive()), asyncio.create_task(send_body())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():  # the response is complete, the client is gone, or the process is lost
                task.result()
    except (ConnectionError, h11.RemoteProtocolError):
        if started:  # the server then closes the client's connection, so that it notices
            raise RuntimeError("a worker process ended in the middle of a response") from None
        raise _LostError from None
    finally:
        for task in tasks:
            task.cancel()
        writer.close()


def _head(scope: Scope) -> h11.Request:
    """Return the request line and the headers for a process, which gets the client's address from this one."""
    headers = [(name, value) for name, value in scope["headers"] if name not in CONNECTION | FORWARDED]
    client = (scope.get("client") or ("", 0))[0]
    headers += [(b"x-forwarded-for", client.encode()), (b"x-forwarded-proto", scope["scheme"].encode())]
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    return h11.Request(method=scope["method"], target=target, headers=[*headers, (b"connection", b"close")])


async def _readable(descriptor: int) -> None:
    """Return once a file descriptor can be read."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def serve_front(
    front: Front, count: int, listen: Callable[[], socket.socket], proxies: Sequence[str], started: Callable[[], None]
) -> None:
    """Start processes, and distribute requests to them until SIGTERM or Ctrl-C.

    listen: returns the socket that accepts connections.  started: called once it does.
    Raises TranslumeError if a process or the socket cannot be started.
    """
    try:
        await front.start(count)
        bound = listen()
    except BaseException:
        await front.close()
        raise
    server = uvicorn_server(front, front.limits, proxies)
    server.started_callback = started
    reload_on_hangup(partial(asyncio.get_running_loop().call_soon_threadsafe, front.request_restart))
    await server.serve(sockets=[bound])
