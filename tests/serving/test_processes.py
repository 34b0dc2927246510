"""Models in processes of their own: the same answers, and whatever becomes of a process, nobody is left waiting."""

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
from translume.serving.api.errors import RequestError
from translume.serving.workers.channel import Channel
from translume.serving.workers.main import TOGETHER, Working
from translume.serving.workers.models import Served, ServedClassifier
from translume.serving.workers.plain import settings_text
from translume.serving.workers.pool import Processes
from translume.serving.workers.proxy import RemoteTranslator
from translume.translator import Classifier, Translation, Translator, load_translator
from translume.translator.engines import Computing
from translume.translator.plan import Line, LineError

Start = Callable[..., Any]
PLAIN = Computing(engine="plain", device="cpu", dtype="fp32", threads=1)


def until(true: Callable[[], Any]) -> None:
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < 120
        time.sleep(0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, translator: Translator) -> Path:
    path = tmp_path_factory.mktemp("models") / "en-de"
    save_model(path, translator.checkpoint)
    return path


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(1, PLAIN) as begun:
        yield begun


@pytest.fixture(scope="module")
def remote(processes: Processes, folder: Path) -> Served:
    found = processes.load("en-de", folder)
    assert isinstance(found, Served)
    return found


@pytest.fixture(scope="module")
def far(start: Start, remote: Served) -> Any:
    return start(remote, width=6)


@pytest.fixture(scope="module")
def near(start: Start, folder: Path) -> Any:
    return start(Served.of("en-de", load_translator(folder, device="cpu", dtype="fp32")), width=6)


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same, numbers within rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
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
def test_answers_are_those_of_a_model_in_the_server_itself(
    near: Any, far: Any, path: str, fields: dict[str, Any]
) -> None:
    one, other = near.post(path, fields), far.post(path, fields)
    assert one.status == other.status
    assert alike(one.json(), other.json())


def test_streams_and_pages_and_what_is_told_of_models_are_the_same_too(near: Any, far: Any) -> None:
    fields = {"text": ["abc de", "fgh\nijk"]}
    events = [live.post("/v1/translate/stream", fields).body.decode() for live in (near, far)]
    assert events[0].rpartition("event: done")[2] == events[1].rpartition("event: done")[2]
    assert "event: prefix" in events[1]
    pages = [live.post("/v1/inspect/page", text="a man").body for live in (near, far)]
    assert pages[1].startswith(pages[0][:200])
    for path in ("/v1/models", "/languages"):
        assert near.get(path).json() == far.get(path).json()
    assert far.get("/health/ready").json() == {"status": "ready"}


def test_texts_are_classified_elsewhere_as_they_are_here(
    processes: Processes, start: Start, make_classifier: Callable[..., Classifier], tmp_path: Path
) -> None:
    classifier = make_classifier()
    checkpoint = classifier.checkpoint
    weights = unique_tensors(checkpoint.model)
    commit(tmp_path / "kinds", model_files(checkpoint.config, weights, checkpoint.source_tokenizer, checkpoint.labels))
    found = processes.load("kinds", tmp_path / "kinds")
    assert isinstance(found, ServedClassifier)
    far, near = start(found), start(ServedClassifier.of("kinds", classifier))
    for fields in ({"text": ["abc", "hgf e"]}, {"text": ["a", "b" * 20]}):
        one, other = (live.post("/v1/classify", fields) for live in (near, far))
        assert one.status == other.status
        assert alike(one.json(), other.json())
    assert near.get("/v1/models").json() == far.get("/v1/models").json()


def test_errors_are_those_that_they_were(remote: Served) -> None:
    translator, before = remote.translator, 2 * TOGETHER + 3
    lines = [Line(number=number, text="ab c"[: number % 5]) for number in range(1, before + 3)]
    lines[before] = Line(number=before + 1, text="b" * 50)
    done: list[Translation] = []
    with pytest.raises(LineError) as caught:
        done.extend(translator.translate_lines(lines, DecodingSettings()))
    assert caught.value.line.number == before + 1
    told = f"line {before + 1}: a sentence has 50 tokens, wanted at most 40; decoding.max_length_act"
    assert str(caught.value).startswith(told)
    assert [each.source for each in done] == [line.text for line in lines[:before]]
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"^decoding.calibrated: no temperature was fitted"):
            translator.check(DecodingSettings(calibrated=True))


def test_a_folder_that_is_no_model_is_said_in_its_own_words(processes: Processes, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError) as caught:
        processes.load("none", tmp_path / "none")
    assert str(caught.value) == f"{tmp_path / 'none'}: not a model folder: there is no such folder"


def test_a_search_is_left_off_where_its_process_is_told_to(folder: Path) -> None:
    ours, theirs = socket.socketpair()
    channel, working = Channel(ours), Working(Channel(theirs))
    thread = threading.Thread(target=working.serve)
    thread.start()
    computing = {"engine": "plain", "device": "cpu", "dtype": "fp32", "threads": None}
    load = {"name": "a", "folder": str(folder), "state": "", "computing": computing}
    channel.send({"do": "load", "call": 0, "key": "0", **load})
    assert [message.head["kind"] for message in (channel.receive(), channel.receive()) if message] == ["result", "done"]
    held = threading.Event()
    working._lanes["work"].submit(held.wait)
    about = {"lines": [[0, "a b c", []]], "settings": settings_text(DecodingSettings()), "told": []}
    channel.send({"do": "translate", "call": 1, "key": "0", **about})
    channel.send({"do": "leave", "call": 1})
    until(lambda: (left := working._left.get(1)) is not None and left.is_set())
    held.set()
    answer = channel.receive()
    assert answer is not None
    assert (answer.head["kind"], answer.head["error"]["status"]) == ("error", 499)
    channel.end()
    thread.join(60)
    for lane in working._lanes.values():
        lane.shutdown()
    for each in (channel, working._channel):
        each.close()


def test_a_file_that_cannot_be_read_is_told_and_keeps_nobody_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("translume.serving.workers.main.served_in", unreadable)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel, working = Channel(ours), Working(Channel(theirs))
        computing = {"engine": "plain", "device": "cpu", "dtype": "fp32", "threads": None}
        load = {"name": "a", "folder": str(folder), "state": "", "computing": computing}
        working._left[0] = threading.Event()
        working._answer(0, {"do": "load", "call": 0, "key": "0", **load})
        answer = channel.receive()
    assert answer is not None
    assert answer.head["kind"] == "error"
    assert "PermissionError" in str(answer.head["error"])


def test_what_a_client_that_has_gone_asked_for_is_left_off(processes: Processes, far: Any) -> None:
    assert far.post("/v1/translate", text="a").status == 200
    process = processes.any()
    body = b'{"text": "abc de"}'
    head = f"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    with stopped(process.pid):
        with socket.create_connection(("127.0.0.1", far.port), timeout=60) as client:
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            until(lambda: process._calls)
        until(lambda: not process._calls)
    assert far.post("/v1/translate", text="b").status == 200


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keep a process from going on meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def asked(far: Any, path: str, **fields: Any) -> "tuple[threading.Thread, list[Any]]":
    """A request on its way, and where its answer will be."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(far.post(path, fields)))
    thread.start()
    return thread, answers


@pytest.mark.parametrize("path", ["/v1/translate", "/v1/translate/stream", "/v1/inspect"])
def test_what_a_killed_process_was_asked_is_answered_by_the_next(
    processes: Processes, far: Any, near: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    (pid,) = processes.pids
    process = processes.any()
    with stopped(pid):
        thread, answers = asked(far, path, text="abc de")
        until(lambda: process._calls)
        os.kill(pid, signal.SIGKILL)
        until(lambda: processes.pids and processes.pids != [pid])
    thread.join(120)
    assert answers[0].status == 200
    if path == "/v1/translate":
        assert answers[0].json() == near.post(path, text="abc de").json()
    ended = [record.fields for record in caplog.records if record.message == "a worker process ended"]  # type: ignore[attr-defined]  # the server's own
    assert ended == [{"worker": pid, "how": "SIGKILL"}]


def test_where_native_code_crashed_is_in_the_log(
    processes: Processes, far: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (pid,) = processes.pids
    assert far.post("/v1/translate", text="a").status == 200
    os.kill(pid, signal.SIGSEGV)
    until(lambda: processes.pids and processes.pids != [pid])
    said = [record.fields for record in caplog.records if record.message == "a worker process said"]  # type: ignore[attr-defined]  # the server's own
    assert {"worker": pid, "line": "Fatal Python error: Segmentation fault"} in said
    assert far.post("/v1/translate", text="a").status == 200


def test_a_process_that_comes_later_takes_no_other_model_for_the_one_that_is_served(
    processes: Processes, make: Callable[..., Translator], start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    save_model(folder, make(seed=3).checkpoint)
    served = processes.load("model", folder)
    live = start(served)
    assert live.post("/v1/translate", text="a").status == 200
    save_model(folder, make(seed=5).checkpoint)
    (pid,) = processes.pids
    os.kill(pid, signal.SIGKILL)
    until(lambda: processes.pids and processes.pids != [pid])
    answer = live.post("/v1/translate", text="a")
    assert (answer.status, answer.json()["code"]) == (503, "model_unavailable")
    assert answer.headers["Retry-After"] == "10"


def test_a_model_that_nobody_uses_any_more_is_forgotten_by_the_processes(processes: Processes, folder: Path) -> None:
    served = processes.load("again", folder)
    assert isinstance(served, Served)
    translator = served.translator
    assert isinstance(translator, RemoteTranslator)
    key = translator._key
    assert key in processes._loads
    line = [Line(number=0, text="a")]
    assert len(list(translator.translate_lines(line, DecodingSettings()))) == 1
    other = RemoteTranslator.__new__(RemoteTranslator)
    other._room, other._key = processes, key
    del served, translator
    gc.collect()
    until(lambda: key not in processes._loads)

    def unknown() -> bool:
        try:
            list(other.translate_lines(line, DecodingSettings()))
        except RequestError as error:
            return error.code == "model_unavailable"
        return False

    until(unknown)


def children_of(pid: int) -> list[int]:
    """The processes that a process has begun."""
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


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at as Linux has them")
@pytest.mark.parametrize("how", ["ctrl-c", "sigkill"])
def test_no_process_outlives_its_server(folder: Path, how: str) -> None:
    command = [sys.executable, "-m", "translume", "serve", str(folder), "--port", "0", "--engine", "plain"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert server.stderr is not None
    try:
        line = server.stderr.readline()
        assert line.startswith("serving en-de at http://127.0.0.1:"), line + server.stderr.read()
        workers = children_of(server.pid)
        assert len(workers) == 1
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])), timeout=60) as client:
            body = json.dumps({"text": ["a b c"] * 16}).encode()
            head = f"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            if how == "sigkill":
                server.kill()
            else:
                os.killpg(server.pid, signal.SIGINT)
        server.wait(120)
        until(lambda: not any(map(running, workers)))
    finally:
        for each in (server.pid, *children_of(server.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        server.wait()
        server.stderr.close()
