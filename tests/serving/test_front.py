"""Several processes behind one: requests are shared out, sent again if a process ends, and none fails at a reload."""

import asyncio
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.serving.conftest import until

from translume.checkpoint import save_model
from translume.serving.files.storage import PrivateFolder
from translume.serving.front import Front, WorkerOptions
from translume.serving.settings import Limits
from translume.translator import Translator
from translume.translator.loading import ComputeOptions

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


SERVE = """
import multiprocessing, sys
multiprocessing.set_executable(sys.argv.pop(1))
from translume.cli import main
main(prog_name="translume")
"""


class Processes:
    """`translume serve --workers 2` of a model that can be replaced.  python: starts the workers."""

    def __init__(self, python: Path, folder: Path, make: Callable[..., Translator]) -> None:
        self.translators = {"one": make(seed=3), "two": make(seed=5)}
        for name, translator in self.translators.items():
            save_model(folder / name, translator.checkpoint)
        shutil.copytree(folder / "one", folder / "model")
        self.folder, self.lines = folder, list[str]()
        command = [sys.executable, "-c", SERVE, str(python), "serve", f"en-de={folder / 'model'}", "--engine", "plain"]
        more = ["--port", "0", "--workers", "2", "--metrics", "0", "--threads", "1"]
        temporary = {**os.environ, "TMPDIR": str(folder)}
        self.process = subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True, env=temporary)
        threading.Thread(target=self._read, daemon=True).start()
        until(lambda: any(line.startswith("serving") for line in self.lines) or self.process.poll() is not None)
        self.port, self.counts = (self._port(word) for word in ("serving", "metrics"))

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.lines.extend(iter(lines.readline, ""))

    def _port(self, word: str) -> int:
        line = next(line for line in self.lines if line.startswith(word))
        return int(line.rpartition(":")[2].partition("/")[0])

    def ask(self, method: str, path: str, body: Any = None, port: int = 0) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=120)
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def says(self, text: str) -> Any:
        status, body = self.ask("POST", "/v1/translate", {"text": text})
        return json.loads(body)["translations"][0]["text"] if status == 200 else (status, body)

    def metric(self, name: str) -> float:
        text = self.ask("GET", "/metrics", port=self.counts)[1].decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def logged(self, message: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [line for line in lines if line["message"] == message]

    def workers(self) -> list[int]:
        """The ids of the processes that hold models."""
        listed = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), "-f", "spawn_main"], capture_output=True, text=True
        )
        return [int(pid) for pid in listed.stdout.split()]

    def under_load(self, seconds: Callable[[], bool], clients: int = 3) -> list[Any]:
        """Return what clients got while a condition did not hold."""
        found, done = list[Any](), threading.Event()

        def ask() -> None:
            while not done.is_set():
                found.append(self.says("a man sleeps"))

        with ThreadPoolExecutor(clients) as pool:
            for _ in range(clients):
                pool.submit(ask)
            try:
                until(lambda: len(found) > 5)
                until(seconds)
            finally:
                done.set()
        return found


@pytest.fixture(scope="module")
def processes(
    make: Callable[..., Translator], tmp_path_factory: pytest.TempPathFactory, warm_python: Path
) -> Iterator[Processes]:
    if shutil.which("pgrep") is None:
        pytest.skip("the system has no pgrep, by which the tests find processes")
    made = Processes(warm_python, tmp_path_factory.mktemp("f"), make)
    yield made
    with suppress(ProcessLookupError):
        made.process.kill()
    made.process.wait(120)


def test_translations_streams_and_files_are_those_of_one_process(processes: Processes) -> None:
    wanted = processes.translators["one"].translate("a man sleeps").text
    assert [processes.says("a man sleeps") for _ in range(4)] == [wanted] * 4
    status, body = processes.ask("POST", "/v1/translate/stream", {"text": "a man sleeps"})
    assert (status, json.loads(body.decode().strip().rpartition("data: ")[2])["translations"][0]["text"]) == (
        200,
        wanted,
    )
    status, body = processes.ask("POST", "/v1/translate", {"text": "a", "beem": 1})
    assert (status, json.loads(body)["code"]) == (422, "unknown_field")
    connection = http.client.HTTPConnection("127.0.0.1", processes.port, timeout=120)
    form = b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\na man sleeps\r\n--xx--\r\n'
    connection.request("POST", "/v1/files", form, {"Content-Type": "multipart/form-data; boundary=xx"})
    job = json.loads(connection.getresponse().read())["id"]
    connection.close()
    until(lambda: json.loads(processes.ask("GET", f"/v1/files/{job}")[1])["status"] == "done")
    assert [processes.ask("GET", f"/v1/files/{job}/result") for _ in range(4)] == [(200, wanted.encode())] * 4
    assert processes.metric('translume_requests_total{code="",route="/v1/translate",status="200"}') == 4
    assert processes.metric("translume_requests_open") == 0


def test_no_request_is_lost_when_a_worker_is_killed_and_it_is_replaced(processes: Processes) -> None:
    killed = processes.workers()[0]

    def replaced() -> bool:
        if not processes.logged("a worker process ended"):
            with suppress(ProcessLookupError):
                os.kill(killed, signal.SIGKILL)
            return False
        return len(processes.workers()) == 2

    wanted = processes.translators["one"].translate("a man sleeps").text
    assert set(processes.under_load(replaced)) == {wanted}
    (line,) = processes.logged("a worker process ended")
    assert (line["worker"], line["how"]) == (killed, "SIGKILL")
    assert processes.metric("translume_workers_lost_total") == 1


def test_no_request_fails_while_sighup_replaces_the_processes_and_a_damaged_model_is_left_out(
    processes: Processes,
) -> None:
    model = processes.folder / "model"
    texts = {processes.translators[name].translate("a man sleeps").text for name in ("one", "two")}
    until(lambda: len(processes.workers()) == 2)
    shutil.rmtree(model)
    shutil.copytree(processes.folder / "two", model)
    processes.process.send_signal(signal.SIGHUP)
    assert set(processes.under_load(lambda: bool(processes.logged("reloaded")))) <= texts
    assert processes.says("a man sleeps") == processes.translators["two"].translate("a man sleeps").text
    shutil.rmtree(model)
    processes.process.send_signal(signal.SIGHUP)
    until(lambda: bool(processes.logged("not reloaded")))
    assert processes.logged("not reloaded")[0]["reason"] == f"{model}: not a model folder: there is no such folder"
    assert processes.says("a man sleeps") == processes.translators["two"].translate("a man sleeps").text
    assert len(processes.logged("a worker process ended")) <= 1  # the one that was killed


def test_sigterm_ends_all_processes_and_deletes_their_folder(processes: Processes) -> None:
    workers = processes.workers()
    processes.process.send_signal(signal.SIGTERM)
    assert processes.process.wait(120) == -signal.SIGTERM
    until(lambda: not any(map(exists, workers)))
    assert not list(processes.folder.glob("translume-files-*"))
    assert not [line for line in processes.lines if "raceback" in line]


def test_workers_end_when_the_process_before_them_is_killed(
    make: Callable[..., Translator], tmp_path: Path, warm_python: Path
) -> None:
    made = Processes(warm_python, tmp_path, make)
    workers = made.workers()
    made.process.kill()
    made.process.wait(120)
    assert len(workers) == 2
    until(lambda: not any(map(exists, workers)))


def test_a_model_that_cannot_be_loaded_ends_the_command_in_one_line(warm_python: Path, tmp_path: Path) -> None:
    command = [str(warm_python), "-m", "translume", "serve", str(tmp_path), "--workers", "2", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr == f"Error: {tmp_path}: not a model folder: it has no manifest.json\n"


@asynccontextmanager
async def front_of(folder: Path, *answers: Answer, **limits: float) -> AsyncIterator[Front]:
    """A front whose processes are functions that answer on Unix sockets."""
    private = PrivateFolder(folder)
    options: Any = WorkerOptions(
        read=lambda: None,  # type: ignore[arg-type, return-value]  # nothing is started
        computing=ComputeOptions(),
        lanes=1,
        folder=private.path,
    )
    front = Front(options, Limits(**limits), private)
    servers = []
    for number, answer in enumerate(answers):
        address = private.path / f"{number}.sock"
        servers.append(await asyncio.start_unix_server(answer, address))
        front._workers.append(SimpleNamespace(address=address, requests=0))  # type: ignore[arg-type]
    try:
        yield front
    finally:
        for server in servers:
            server.close()
        front._workers.clear()
        await front.close()


async def ask(front: Front, parts: list[bytes], *headers: tuple[bytes, bytes]) -> tuple[int, dict[bytes, bytes], bytes]:
    """Send a request whose body arrives in parts, and return the response."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        return messages.pop(0) if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/translate", "raw_path": b"/v1/translate", "query_string": b"a=b",
        "scheme": "https", "client": ("192.0.2.7", 1234), "headers": [(b"host", b"x"), *headers],
    }  # fmt: skip
    await front(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body


CHUNKED = (b"transfer-encoding", b"chunked")


async def lost(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a part of the request, and end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


async def lost_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the whole request, and end."""
    end = b""
    while not end.endswith(b"0\r\n\r\n"):
        end = end[-5:] + await reader.read(65_536)
    writer.transport.abort()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with the request."""
    request = await reader.readuntil(b"0\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nx-own: 1\r\n\r\n" % len(request) + request)
    writer.close()


async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with a part of a response, and end."""
    await reader.readuntil(b"0\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
    writer.close()


def test_a_request_is_sent_whole_to_another_process_if_its_first_one_ends(tmp_path: Path) -> None:
    async def run() -> None:
        async with front_of(tmp_path, lost, echo) as front:
            for _ in range(4):  # each process gets one first
                spoofed = ((b"x-forwarded-for", b"203.0.113.9"), (b"x-request-id", b"r1"), (b"connection", b"close"))
                status, headers, body = await ask(front, [b"abc", b"de"], CHUNKED, *spoofed)
                head, _, sent = body.partition(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                assert (status, headers) == (200, {b"content-length": b"%d" % len(body), b"x-own": b"1"})
                assert lines[0] == b"post /v1/translate?a=b http/1.1"
                assert sorted(lines[1:]) == [
                    b"connection: close", b"host: x", b"transfer-encoding: chunked", b"x-forwarded-for: 192.0.2.7",
                    b"x-forwarded-proto: https", b"x-request-id: r1",
                ]  # fmt: skip
                assert b"".join(sent.split(b"\r\n")[1::2]) == b"abcde"  # the lines between those with sizes

    asyncio.run(run())


def test_a_request_that_ends_two_processes_gets_503(tmp_path: Path) -> None:
    async def run() -> None:
        async with front_of(tmp_path, lost, lost) as front:
            status, headers, body = await ask(front, [b"abc"], CHUNKED)
            assert (status, json.loads(body)) == (
                503,
                {"error": "two processes ended at this request; see the server's log", "code": "worker_lost"},
            )
            assert headers[b"x-content-type-options"] == b"nosniff"

    asyncio.run(run())


def test_a_long_request_is_not_sent_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with front_of(tmp_path, lost_late, echo) as front:
            status, headers, body = await ask(front, [b"a" * 600_000] * 2, CHUNKED)
            assert (status, headers[b"retry-after"], json.loads(body)) == (
                503,
                b"1",
                {
                    "error": "a process ended at this request, which is too long to be sent to another one; try again",
                    "code": "worker_lost",
                },
            )

    asyncio.run(run())


def test_a_response_that_has_begun_is_not_sent_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with front_of(tmp_path, half) as front:
            with pytest.raises(RuntimeError, match=r"^a worker process ended in the middle of a response$"):
                await ask(front, [b"abc"], CHUNKED)

    asyncio.run(run())


def test_requests_are_refused_without_a_process_beyond_the_limit_and_with_two_lengths(tmp_path: Path) -> None:
    async def run() -> None:
        async with front_of(tmp_path, timeout_seconds=0.05) as front:
            assert json.loads((await ask(front, []))[2])["error"] == "no process serves now; try later"
        async with front_of(tmp_path, echo, requests=1) as front:
            both = await asyncio.gather(ask(front, [b"a"], CHUNKED), ask(front, [b"a"], CHUNKED))
            assert sorted(status for status, *_ in both) == [200, 503]
            assert json.loads(both[1][2])["error"] == "1 requests are in progress already; try later"
            status, headers, body = await ask(front, [b"a"], CHUNKED, (b"content-length", b"1"))
            assert (status, headers[b"connection"], json.loads(body)["code"]) == (400, b"close", "two_lengths")

    asyncio.run(run())


def test_a_process_that_is_being_started_at_a_reload_is_replaced_too(tmp_path: Path) -> None:
    async def run() -> None:
        read, ready = ["old"], asyncio.Event()

        async def start() -> Any:
            content = read[-1]
            read.append(content)
            await ready.wait()
            sentinel, end = os.pipe()
            process = SimpleNamespace(
                **{"sentinel": sentinel, "join": lambda: os.close(sentinel), "terminate": lambda: os.close(end)},
                **{"pid": 1, "exitcode": 1},
            )
            connection = SimpleNamespace(close=lambda: None)
            return SimpleNamespace(process=process, address=tmp_path / content, connection=connection, started=0.0)

        async with front_of(tmp_path) as front, asyncio.timeout(60):
            front._start = start  # type: ignore[method-assign]  # instead of a real process
            ready.set()
            await front.start(1)
            ready.clear()
            front._workers[0].process.terminate()  # as if it had ended by itself
            while len(read) < 3:
                await asyncio.sleep(0.001)
            read.append("new")
            front.request_restart()
            await asyncio.sleep(0)
            ready.set()
            while [worker.address.name for worker in front._workers] != ["new"]:
                await asyncio.sleep(0.001)
            front._workers[0].process.terminate()

    asyncio.run(run())
