"""Child processes: messages arrive unchanged, a child that ends or hangs is detected, none outlives its parent."""

import contextlib
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
from hypothesis import given
from hypothesis import strategies as st

from translume import processes
from translume.errors import DataError, SettingsError, TranslumeError
from translume.processes import (
    FRAME,
    MAGIC,
    MAX_BYTES,
    ChildProcess,
    Connection,
    Message,
    ProcessLostError,
    ProtocolError,
    Request,
    UnexpectedChildError,
    decode_error,
    encode_error,
    exit_reason,
    requests,
)

CHILD = "tests.child"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=9,
)


def until(true: Callable[[], Any]) -> None:
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < 60
        time.sleep(0.01)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def child() -> Iterator[ChildProcess]:
    with ChildProcess(CHILD) as begun:
        yield begun


@pytest.fixture
def connections() -> Iterator[tuple[Connection, Connection]]:
    one, other = (Connection(end) for end in socket.socketpair())
    yield one, other
    for each in (one, other):
        each.shutdown()
        each.close()


@given(messages=st.lists(st.tuples(st.dictionaries(st.text(), values, max_size=4), st.binary()), max_size=5))
def test_messages_arrive_unchanged_and_in_order(messages: list[tuple[dict[str, Any], bytes]]) -> None:
    one, other = (Connection(end) for end in socket.socketpair())
    for head, body in messages:
        one.send(head, body)
    one.shutdown()
    for head, body in messages:
        assert other.receive() == Message(head, body)
    assert other.receive() is None
    one.close()
    other.close()


@given(noise=st.binary(max_size=40))
def test_arbitrary_bytes_give_a_frame_an_error_or_the_end(noise: bytes) -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    theirs.sendall(noise)
    theirs.close()
    if len(noise) >= FRAME.size and not noise.startswith(MAGIC):
        with pytest.raises(ProtocolError):
            connection.receive()
    else:
        assert connection.receive() is None
    connection.close()


@pytest.mark.parametrize(
    "frame",
    [
        FRAME.pack(MAGIC, MAX_BYTES + 1, 0),
        FRAME.pack(MAGIC, 0, MAX_BYTES + 1),
        FRAME.pack(MAGIC, 1, 0) + b"{",
        FRAME.pack(MAGIC, 2, 0) + b"[]",
        FRAME.pack(MAGIC, 2, 0) + b"\xff\xff",
    ],
)
def test_invalid_frames_are_errors(connections: tuple[Connection, Connection], frame: bytes) -> None:
    one, other = connections
    one._socket.sendall(frame)
    with pytest.raises(ProtocolError):
        other.receive()


@pytest.mark.parametrize("start", [b"", b"TL", FRAME.pack(MAGIC, 5, 5) + b"{"])
def test_an_incomplete_frame_is_the_end(connections: tuple[Connection, Connection], start: bytes) -> None:
    one, other = connections
    one._socket.sendall(start)
    one.shutdown()
    assert other.receive() is None


def test_messages_of_several_threads_arrive_whole_and_in_order_per_thread(
    connections: tuple[Connection, Connection],
) -> None:
    one, other = connections

    def send(sender: int) -> None:
        for number in range(50):
            one.send({"sender": sender, "number": number}, bytes([sender]) * 10 * number)

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(3)]
    for each in threads:
        each.start()
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(150):
        message = other.receive()
        assert message is not None
        sender, number = message.values["sender"], message.values["number"]
        assert message.body == bytes([sender]) * 10 * number
        found[sender].append(number)
    assert all(numbers == list(range(50)) for numbers in found.values())
    for each in threads:
        each.join()
    other.shutdown()
    with pytest.raises(OSError, match=r"[Pp]ipe"):
        one.send({})


def test_known_errors_keep_their_class_and_text_and_others_withhold_their_text() -> None:
    class OwnError(DataError):
        pass

    for error, kind in [
        (SettingsError("a: no"), SettingsError),
        (OwnError("b: no"), DataError),
        (TranslumeError("c"), TranslumeError),
    ]:
        found = decode_error(json.loads(json.dumps(encode_error(error))))
        assert (type(found), str(found)) == (kind, str(error))
    secret = "a secret"
    try:
        raise ValueError(secret)
    except ValueError as error:
        found = decode_error(encode_error(error))
    assert isinstance(found, UnexpectedChildError)
    assert (str(found), found.kind) == ("ValueError", "ValueError")
    assert "test_processes.py" in found.trace
    assert secret not in found.trace


def test_the_exit_status_of_a_process_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("Traceback …\nRuntimeError: out of luck\n\n", encoding="utf-8")
    assert exit_reason(1, log) == f"RuntimeError: out of luck (see {log})"
    assert exit_reason(-9, log) == f"killed by SIGKILL (see {log})"
    log.write_text("", encoding="utf-8")
    assert exit_reason(-9, log) == "killed by SIGKILL"
    assert exit_reason(3, log) == "exit code 3"


def test_cancel_reaches_the_request_and_finished_requests_are_removed(
    connections: tuple[Connection, Connection],
) -> None:
    one, other = connections
    iterator = requests(other)
    for number in range(3):
        one.send({"type": "request", "id": number, "method": "a", "values": {}})
    first, second = next(iterator), next(iterator)
    one.send({"type": "cancel", "id": 0})
    one.send({"type": "cancel", "id": 99})
    third = next(iterator)
    assert (first.cancelled.is_set(), second.cancelled.is_set(), third.cancelled.is_set()) == (False, False, False)
    one.shutdown()
    assert list(iterator) == []
    assert (first.cancelled.is_set(), second.cancelled.is_set(), third.cancelled.is_set()) == (True, False, False)
    assert isinstance(first, Request)


def test_responses_arrive_in_order_with_their_bytes(child: ChildProcess) -> None:
    big = os.urandom(3_000_000)
    calls = [child.request("echo", {"times": 3, "number": number}, big) for number in range(3)]
    for number, call in reversed(list(enumerate(calls))):
        assert list(call.responses(30)) == [Message({"times": 3, "number": number}, big)] * 3
    assert child._calls == {}


def test_errors_of_a_handler_are_raised_and_the_child_continues(child: ChildProcess) -> None:
    with pytest.raises(SettingsError, match=r"^a.b: found 1, expected 2$"):
        list(child.request("fail").responses(30))
    with pytest.raises(UnexpectedChildError) as caught:
        list(child.request("crash").responses(30))
    assert str(caught.value) == "ValueError"
    assert "in handle" in caught.value.trace
    assert len(list(child.request("echo").responses(30))) == 1


def test_output_of_libraries_does_not_disturb_the_protocol(tmp_path: Path) -> None:
    lines: list[str] = []
    pids: list[int] = []

    def note(pid: int, line: str) -> None:
        pids.append(pid)
        lines.append(line)

    for output in (tmp_path / "log", note):
        with ChildProcess(CHILD, output=output) as begun:
            (message,) = begun.request("print").responses(30)
            assert message.values["group"] == begun.pid != os.getpgrp()
            assert set(filter(None, sys.path)) <= set(message.values["path"])
    assert lines == (tmp_path / "log").read_text().splitlines() == ["noise", "from C", "warning"]
    assert pids == [begun.pid] * 3


def test_output_goes_to_the_parents_stderr_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    with ChildProcess(CHILD) as begun:
        list(begun.request("print").responses(30))
    assert capfd.readouterr() == ("", "noise\nfrom C\nwarning\n")


def test_a_module_in_the_current_folder_does_not_shadow_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    with ChildProcess(CHILD) as begun:
        assert len(list(begun.request("echo").responses(30))) == 1


@pytest.mark.parametrize("method", ["kill", "garbage", "grandchild", "close"])
def test_a_lost_child_ends_its_requests(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CLOSE_SECONDS", 0.5)
    with ChildProcess(CHILD) as begun:
        calls = [begun.request(method), begun.request("echo")]
        for call in (*calls, begun.request("echo")):
            with pytest.raises(ProcessLostError, match=r"^a worker process ended in the middle of its work$"):
                list(call.responses(30))
        assert begun.ended
    assert begun.close() == {"grandchild": 3, "close": 0}.get(method, -signal.SIGKILL)
    assert not running(begun.pid)


def test_a_module_that_cannot_be_imported_is_a_lost_child(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ChildProcess("tests.no_such_module", output=log) as begun, pytest.raises(ProcessLostError):
        list(begun.request("echo").responses(30))
    assert exit_reason(begun.wait(), log).endswith(f"No module named 'tests.no_such_module' (see {log})")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_that_hangs_is_killed(*, stopped: bool) -> None:
    with ChildProcess(CHILD) as begun:
        responses = begun.request("wait").responses(0.5)
        next(responses)
        if stopped:
            begun.send_signal(signal.SIGSTOP)
        with pytest.raises(ProcessLostError, match=r"^a worker process did not respond for 0.5 s$"):
            next(responses)
    assert begun.close() == -signal.SIGKILL


def test_a_child_that_does_not_read_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SEND_SECONDS", 1)
    with ChildProcess(CHILD) as begun:
        list(begun.request("echo").responses(30))
        begun.send_signal(signal.SIGSTOP)
        with pytest.raises(ProcessLostError):
            list(begun.request("echo", {}, bytes(5_000_000)).responses(30))
    assert begun.close() == -signal.SIGKILL


def test_an_error_raised_by_poll_cancels_the_request(child: ChildProcess) -> None:
    polls = iter([None, None, TimeoutError()])

    def poll() -> None:
        if (error := next(polls)) is not None:
            raise error

    with pytest.raises(TimeoutError):
        list(child.request("wait").responses(30, poll))
    assert len(list(child.request("echo").responses(30))) == 1  # after the cancelled request


def test_stopping_the_iteration_cancels_the_request(child: ChildProcess) -> None:
    responses = child.request("wait").responses(30)
    next(responses)
    del responses
    assert len(list(child.request("echo").responses(30))) == 1


def test_closing_leaves_no_process_thread_or_file_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    monkeypatch.setattr(processes, "CLOSE_SECONDS", 0.5)
    before, threads = files(), threading.active_count()
    for stuck in ("", "yes"):
        monkeypatch.setenv("STUCK", stuck)
        begun = ChildProcess(CHILD, output=lambda pid, line: None)
        call = begun.request("wait")
        next(call.responses(30))
        begun.send_signal(signal.SIGINT)
        assert begun.close() == (-signal.SIGKILL if stuck else 0)
        assert begun.close() == begun.wait()
        with pytest.raises(ChildProcessError):
            os.waitpid(begun.pid, 0)
    assert (files(), threading.active_count()) == (before, threads)


def test_a_failed_start_leaves_no_thread_or_file_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(FileNotFoundError):
            ChildProcess(CHILD)
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_two(thread: threading.Thread) -> None:
        started.append(thread)
        if thread.name.endswith("-read"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_two)
        with pytest.raises(RuntimeError):
            ChildProcess(CHILD)
    for each in started:
        with contextlib.suppress(RuntimeError):
            each.join(30)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_outlives_the_thread_that_started_it() -> None:
    found: list[ChildProcess] = []
    thread = threading.Thread(target=lambda: found.append(ChildProcess(CHILD)))
    thread.start()
    thread.join()
    with found[0] as begun:
        for _ in range(3):
            assert len(list(begun.request("echo").responses(30))) == 1
            time.sleep(0.05)


PARENT = f"""
import os, signal, sys, time
from translume.processes import ChildProcess
child = ChildProcess("{CHILD}")
next(child.request("wait").responses())
print(child.pid, flush=True)
if sys.argv[1] == "fork" and not os.fork():
    time.sleep(60)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("how", "stuck"), [("", ""), ("", "yes"), ("fork", "")])
def test_no_child_outlives_a_parent_that_is_killed(how: str, stuck: str) -> None:
    """Two hard cases: a child that reads nothing, and a socket that a fork of the parent holds open."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "STUCK": stuck}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert running(child)
        parent.kill()
        until(lambda: not running(child))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
