"""Models in worker processes give the same responses, and requests survive workers that end or hang."""

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from translume.checkpoint import commit, save_model, unique_tensors
from translume.checkpoint.loading import model_files
from translume.config import DecodingSettings
from translume.errors import ModelFolderError, SettingsError
from translume.processes import Connection
from translume.serving.api.errors import RequestError
from translume.serving.api.inspection import entropies, inspect, inspection_of
from translume.serving.workers.main import Worker
from translume.serving.workers.models import Served, ServedClassifier, ServedModels
from translume.serving.workers.pool import WorkerPool
from translume.serving.workers.proxy import TranslatorProxy
from translume.translator import Classifier, Translation, Translator, load
from translume.translator.loading import ComputeOptions
from translume.translator.messages import CHUNK, encode_lines, encode_settings
from translume.translator.planning import Line, LineError

Start = Callable[..., Any]
PLAIN = ComputeOptions(engine="plain", device="cpu", dtype="fp32", threads=1)


def until(true: Callable[[], Any]) -> None:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < 120
        time.sleep(0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, translator: Translator) -> Path:
    path = tmp_path_factory.mktemp("models") / "en-de"
    save_model(path, translator.checkpoint)
    return path


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1, PLAIN) as begun:
        yield begun


@pytest.fixture(scope="module")
def remote(pool: WorkerPool, folder: Path) -> Served:
    found = pool.load("en-de", folder)
    assert isinstance(found, Served)
    return found


@pytest.fixture(scope="module")
def worker_server(start: Start, remote: Served) -> Any:
    return start(remote, width=6)


@pytest.fixture(scope="module")
def local_server(start: Start, folder: Path) -> Any:
    loaded = load(folder, device="cpu", dtype="fp32")
    return start(Served.of("en-de", Local(loaded.checkpoint)), width=6)


CHOICE = ("model", "source", "target")


class Local(Translator):
    """A translator in the process of the server, with the methods of a `TranslatorProxy`."""

    def inspected(
        self, values: Any, limits: Any, form: str, check_cancelled: Callable[[], None], frames: Any = None
    ) -> str:
        chosen = ServedModels([Served.of("en-de", self)]).choose(*(values.get(name, "") for name in CHOICE))
        return inspect(inspection_of(chosen, values, limits, frames), limits, form, check_cancelled)

    def entropies(self, source: str, target: Any, settings: Any) -> list[float]:
        return entropies(self, source, target, settings)


class LocalClassifier(Classifier):
    """A classifier in the process of the server."""


def nearly_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal, numbers within rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(nearly_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(nearly_equal, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-4, abs=1e-4)
    return bool(one == other)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/translate", {"text": ["a man 7", "", "b\nc d"], "detail": True, "nbest": 3}),
        ("/v1/translate", {"text": "ab cd", "strategy": "sampling", "seed": 7, "samples": 3}),
        ("/v1/translate", {"text": "ab cd\nef", "prefix": "xyz"}),
        ("/v1/translate", {"text": "ab", "constraints": ["cd"], "detail": True}),
        ("/v1/translate", {"text": ["a", "b" * 50]}),
        ("/v1/translate", {"text": "a", "calibrated": True}),
        ("/v1/translate", {"text": "a", "unsmooth": 0.1}),
        ("/v1/score", {"sources": ["a b", "c"], "targets": ["d", ""]}),
        ("/v1/score", {"sources": "a", "targets": "b" * 50}),
        ("/v1/inspect", {"text": "a man", "k": 2, "search": True, "reference": "b"}),
        ("/v1/inspect", {"text": " "}),
        ("/v1/inspect", {"text": "ab", "prefix_tokens": ["nowhere"]}),
        ("/translate", {"q": ["a b", ":-)"], "source": "en", "target": "de", "alternatives": 2}),
        ("/translate", {"q": "<p>a <b>b c</b></p>", "source": "en", "target": "de", "format": "html"}),
    ],
)
def test_responses_equal_those_of_a_model_in_the_server_process(
    local_server: Any, worker_server: Any, path: str, fields: dict[str, Any]
) -> None:
    one, other = local_server.post(path, fields), worker_server.post(path, fields)
    assert one.status == other.status
    assert nearly_equal(one.json(), other.json())


def test_streams_pages_and_model_lists_equal_those_of_a_model_in_the_server_process(
    local_server: Any, worker_server: Any
) -> None:
    fields = {"text": ["abc de", "fgh\nijk"]}
    events = [live.post("/v1/translate/stream", fields).body.decode() for live in (local_server, worker_server)]
    assert events[0].rpartition("event: done")[2] == events[1].rpartition("event: done")[2]
    assert "event: prefix" in events[1]
    pages = [live.post("/v1/inspect/page", text="a man").body for live in (local_server, worker_server)]
    assert pages[1].startswith(pages[0][:200])
    for path in ("/v1/models", "/languages"):
        assert local_server.get(path).json() == worker_server.get(path).json()
    assert worker_server.get("/health/ready").json() == {"status": "ready"}


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_45_bans_of_two_kilobytes_do_not_hang_the_server(worker_server: Any, pool: WorkerPool) -> None:
    """Each took 2.6 CPU-seconds while it held a thread of the server, of which there are 40."""
    bans = [f"{'ab ' * 650}x{number}" for number in range(45)]
    clients = [
        threading.Thread(target=worker_server.post, args=("/v1/translate", {"text": "a", "ban": ban})) for ban in bans
    ]
    (worker,) = pool.pids
    before = time.process_time() + processor_seconds(worker)
    for each in clients:
        each.start()
    assert worker_server.post("/v1/translate", text="a").status == 200
    assert worker_server.post("/v1/translate", text="a", ban="xyz").status in (200, 503)  # 503: not checked in time
    for each in clients:
        each.join()
    assert time.process_time() + processor_seconds(worker) - before < 30  # on a busy machine too
    until(lambda: worker_server.post("/v1/translate", text="a", ban="xyz").status == 200)


def test_the_standby_process_replaces_a_worker_that_was_killed(folder: Path) -> None:
    """Starting another process takes seconds, 4 to 12 on a busy machine."""
    with WorkerPool(1, PLAIN, standby=True) as pool:
        served = pool.load("en-de", folder)
        until(lambda: pool._standby is not None)
        standby, (worker,) = pool._standby, pool.pids
        assert standby is not None
        os.kill(worker, signal.SIGKILL)
        until(lambda: pool.pids == [standby.pid])
        assert list(served.model.translate_each([Line(number=0, text="a")], served.model.config.decoding))
        until(lambda: pool._standby not in (None, standby))


def test_classifications_equal_those_of_a_classifier_in_the_server_process(
    pool: WorkerPool, start: Start, make_classifier: Callable[..., Classifier], tmp_path: Path
) -> None:
    classifier = make_classifier()
    checkpoint = classifier.checkpoint
    weights = unique_tensors(checkpoint.model)
    commit(tmp_path / "kinds", model_files(checkpoint.config, weights, checkpoint.source_tokenizer, checkpoint.labels))
    found = pool.load("kinds", tmp_path / "kinds")
    assert isinstance(found, ServedClassifier)
    worker_server, local_server = (
        start(found),
        start(ServedClassifier.of("kinds", LocalClassifier(classifier.checkpoint))),
    )
    for fields in ({"text": ["abc", "hgf e"]}, {"text": ["a", "b" * 20]}):
        one, other = (live.post("/v1/classify", fields) for live in (local_server, worker_server))
        assert one.status == other.status
        assert nearly_equal(one.json(), other.json())
    assert local_server.get("/v1/models").json() == worker_server.get("/v1/models").json()


def test_errors_keep_their_class_and_message(remote: Served) -> None:
    translator, before = remote.translator, 2 * CHUNK + 3
    lines = [Line(number=number, text="ab c"[: number % 5]) for number in range(1, before + 3)]
    lines[before] = Line(number=before + 1, text="b" * 50)
    done = dict(translator.translate_each(lines, DecodingSettings()))
    error = done.pop(before)
    assert isinstance(error, LineError)
    assert error.line.number == before + 1
    expected = f"line {before + 1}: a sentence has 50 tokens, expected at most 40; decoding.max_length_act"
    assert str(error).startswith(expected)
    assert [done[place].source for place in sorted(done)] == [line.text for line in lines if line.number != before + 1]
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"^decoding.calibrated: no temperature was fitted"):
            translator.check(DecodingSettings(calibrated=True))


def test_a_folder_without_a_model_gives_the_original_error(pool: WorkerPool, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError) as caught:
        pool.load("none", tmp_path / "none")
    assert str(caught.value) == f"{tmp_path / 'none'}: not a model folder: there is no such folder"


@pytest.fixture
def connection() -> Iterator[Connection]:
    """Return the server's end of a connection to a worker in a thread of this process."""
    ours, theirs = (Connection(end) for end in socket.socketpair())
    worker = Worker()
    thread = threading.Thread(target=worker.serve, args=(theirs,))
    thread.start()
    yield ours
    ours.shutdown()
    thread.join(60)
    for each in worker._threads.values():
        each.shutdown()
    for end in (ours, theirs):
        end.close()


def load_model(connection: Connection, folder: Path, lanes: int = 1) -> list[str]:
    """Load a model as "0", and return the types of the messages that follow."""
    computing = {"engine": "plain", "device": "cpu", "dtype": "fp32", "threads": None}
    values = {"model": "0", "name": "a", "folder": str(folder), "state": "", "computing": computing, "lanes": lanes}
    connection.send({"type": "request", "id": 0, "method": "load", "values": values})
    found: list[str] = []
    while not {"done", "error"} & set(found):
        message = connection.receive()
        assert message is not None
        found.append(message.values["type"] if "error" not in message.values else str(message.values["error"]))
        if "error" in message.values:
            return found
    return found


def test_lanes_of_a_worker_translate_at_the_same_time_with_one_model(
    connection: Connection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_model(connection, folder, lanes=2) == ["response", "done"]
    held, translate_lines, models = threading.Event(), Translator.translate_lines, set[int]()

    def slow(translator: Translator, lines: list[Line], *more: Any) -> Iterator[Translation]:
        models.add(id(translator))
        assert lines[0].text == "b" or held.wait(60)
        return translate_lines(translator, lines, *more)

    monkeypatch.setattr(Translator, "translate_lines", slow)
    for number, text in enumerate(("a", "b"), start=1):
        settings = encode_settings(DecodingSettings())
        values = {"model": "0", "lines": encode_lines([Line(number=1, text=text)]), "settings": settings, "watched": []}
        connection.send({"type": "request", "id": number, "method": "translate", "values": values})
    messages = [connection.receive() for _ in range(2)]
    held.set()
    messages += [connection.receive() for _ in range(2)]
    found = [(each.values["id"], each.values["type"]) for each in messages if each is not None]
    assert found == [(2, "response"), (2, "done"), (1, "response"), (1, "done")]
    assert len(models) == 1


def test_a_cancelled_search_is_abandoned(connection: Connection, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_model(connection, folder) == ["response", "done"]
    held, begun, translate_lines = threading.Event(), threading.Event(), Translator.translate_lines

    def slow(*arguments: Any) -> Iterator[Translation]:
        begun.set()
        assert held.wait(60)
        return translate_lines(*arguments)

    monkeypatch.setattr(Translator, "translate_lines", slow)
    values = {
        "lines": encode_lines([Line(number=0, text="a b c")]),
        "settings": encode_settings(DecodingSettings()),
        "watched": [],
    }
    about = {"method": "translate", "values": {"model": "0", **values}}
    connection.send({"type": "request", "id": 1, **about})
    assert begun.wait(60)  # later requests do not share the first one's search
    connection.send({"type": "request", "id": 2, **about})
    connection.send({"type": "cancel", "id": 1})
    connection.send({"type": "request", "id": 3, "method": "unload", "values": {"model": "other"}})
    answer = connection.receive()  # the request after the cancellation
    assert answer is not None
    assert answer.values == {"type": "done", "id": 3}
    held.set()
    answer = connection.receive()
    assert answer is not None
    assert (answer.values["id"], answer.values["type"]) == (1, "done")
    kinds = [message.values["type"] for message in (connection.receive(), connection.receive()) if message]
    assert kinds == ["response", "done"]


def test_an_unexpected_error_is_sent_to_the_server(
    connection: Connection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("translume.serving.workers.main.load_served", unreadable)
    (error,) = load_model(connection, folder)
    assert "PermissionError" in error
    assert "Permission denied" not in error.replace('raise PermissionError(13, "Permission denied")', "")


def test_requests_of_a_worker_that_hangs_are_answered_by_the_next_worker(
    pool: WorkerPool,
    worker_server: Any,
    local_server: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert worker_server.post("/v1/translate", text="a").status == 200
    (pid,) = pool.pids
    monkeypatch.setattr("translume.serving.workers.proxy.HANG_TIMEOUT_SECONDS", 5.0)
    os.kill(pid, signal.SIGSTOP)
    waiting = [send_in_background(worker_server, path, text="abc de") for path in ("/v1/translate", "/v1/inspect")]
    until(lambda: pool.pids and pool.pids != [pid])
    monkeypatch.undo()
    for thread, answers in waiting:
        thread.join(120)
        assert answers[0].status == 200
    assert waiting[0][1][0].json() == local_server.post("/v1/translate", text="abc de").json()
    ended = [record.fields for record in caplog.records if record.message == "a worker process ended"]  # type: ignore[attr-defined]  # the server's own
    assert ended == [{"worker": pid, "how": "SIGKILL"}]


def test_the_request_of_a_client_that_disconnected_is_cancelled(pool: WorkerPool, worker_server: Any) -> None:
    assert worker_server.post("/v1/translate", text="a").status == 200
    process = pool.next_worker()
    body = b'{"text": "abc de"}'
    head = f"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with stopped(process.pid):
        with socket.create_connection(("127.0.0.1", worker_server.port), timeout=120) as client:
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            until(lambda: process._calls)
        until(lambda: not process._calls)
    assert worker_server.post("/v1/translate", text="b").status == 200


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Suspend a process (SIGSTOP) while the context lasts."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def send_in_background(worker_server: Any, path: str, **fields: Any) -> "tuple[threading.Thread, list[Any]]":
    """Send a request in a thread; return the thread and the list that receives the response."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(worker_server.post(path, fields)))
    thread.start()
    return thread, answers


def test_requests_to_a_killed_worker_are_answered_by_the_next(
    pool: WorkerPool, worker_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert worker_server.post("/v1/translate", text="a").status == 200  # a worker has checked the settings
    (pid,) = pool.pids
    process = pool.next_worker()
    paths = ("/v1/translate/stream", "/v1/inspect")
    with stopped(pid):
        waiting = [send_in_background(worker_server, path, text="abc de") for path in paths]
        until(lambda: len(process._calls) == len(paths))
        os.kill(pid, signal.SIGKILL)
        until(lambda: pool.pids and pool.pids != [pid])
    for thread, answers in waiting:
        thread.join(120)
        assert answers[0].status == 200
    ended = [record.fields for record in caplog.records if record.message == "a worker process ended"]  # type: ignore[attr-defined]  # the server's own
    assert ended == [{"worker": pid, "how": "SIGKILL"}]


def test_a_crash_in_native_code_logs_its_traceback(
    pool: WorkerPool, worker_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (pid,) = pool.pids
    assert worker_server.post("/v1/translate", text="a").status == 200
    os.kill(pid, signal.SIGSEGV)
    until(lambda: pool.pids and pool.pids != [pid])
    said = [record.fields for record in caplog.records if record.message == "a worker process said"]  # type: ignore[attr-defined]  # the server's own
    assert {"worker": pid, "line": "Fatal Python error: Segmentation fault"} in said
    assert worker_server.post("/v1/translate", text="a").status == 200


def test_a_replacement_process_does_not_load_a_changed_model(
    pool: WorkerPool, make: Callable[..., Translator], start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    save_model(folder, make(seed=3).checkpoint)
    served = pool.load("model", folder)
    live = start(served)
    assert live.post("/v1/translate", text="a").status == 200
    save_model(folder, make(seed=5).checkpoint)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    until(lambda: pool.pids and pool.pids != [pid])
    answer = live.post("/v1/translate", text="a")
    assert (answer.status, answer.json()["code"]) == (503, "model_unavailable")
    assert answer.headers["Retry-After"] == "10"


def test_unused_models_are_unloaded(pool: WorkerPool, folder: Path) -> None:
    served = pool.load("again", folder)
    assert isinstance(served, Served)
    translator = served.translator
    assert isinstance(translator, TranslatorProxy)
    key = translator._key
    assert key in pool._models
    line = [Line(number=0, text="a")]
    assert len(list(translator.translate_each(line, DecodingSettings()))) == 1
    other = TranslatorProxy.__new__(TranslatorProxy)
    other._pool, other._key = pool, key
    del served, translator
    gc.collect()
    until(lambda: key not in pool._models)

    def unknown() -> bool:
        try:
            list(other.translate_each(line, DecodingSettings()))
        except RequestError as error:
            return error.code == "model_unavailable"
        return False

    until(unknown)


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_outlives_a_server_that_is_killed(folder: Path) -> None:
    command = [sys.executable, "-m", "translume", "serve", str(folder), "--port", "0", "--engine", "plain"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert server.stderr is not None
    try:
        line = server.stderr.readline()
        assert line.startswith("serving en-de at http://127.0.0.1:"), line + server.stderr.read()
        until(lambda: len(children_of(server.pid)) == 2)  # a worker and its standby process
        workers = children_of(server.pid)
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])), timeout=120) as client:
            body = json.dumps({"text": ["a b c"] * 16}).encode()
            head = f"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            server.kill()
        server.wait(120)
        until(lambda: not any(map(running, workers)))
    finally:
        for each in (server.pid, *children_of(server.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        server.wait()
        server.stderr.close()
