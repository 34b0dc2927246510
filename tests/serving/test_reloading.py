"""Reloading: valid changes take effect between two requests; an invalid change is reported and the old state kept."""

import gc
import http.client
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.serving.conftest import until

from translume.checkpoint import save_model
from translume.cli import main
from translume.errors import TranslumeError
from translume.serving.access.keys import add_key, remove_key
from translume.serving.metrics import serve_metrics
from translume.serving.reloading import Loader, Reloader, load_served
from translume.serving.run import JsonLines
from translume.serving.settings import ServeSettings
from translume.translator import Translator
from translume.translator.loading import ComputeOptions

TEXT = "a man sleeps"


class Running:
    """A server of a serve.toml in a folder, with two different models, one and two."""

    def __init__(self, folder: Path, translators: dict[str, Translator], start: Callable[..., Any]) -> None:
        self.folder, self.path, self.translators = folder, folder / "serve.toml", translators
        for name, translator in translators.items():
            save_model(folder / name, translator.checkpoint)
        shutil.copytree(folder / "one", folder / "model")
        self.write('[models]\nen-de = "model"\n')
        self.loader = Loader(partial(load_served, ComputeOptions(engine="plain", device="cpu", dtype="fp32")))
        settings = ServeSettings.read(self.path)
        self.models = self.loader.load_all({name: Path(place) for name, place in settings.models.items()})
        self.live = start(*self.models.all)
        self.server = self.live.server
        self.server.settings = settings
        self.reloader = Reloader(self.server, self.loader, lambda: ServeSettings.read(self.path))

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def put(self, name: str) -> None:
        """Replace the model in the served folder file by file, the manifest last."""
        self.empty()
        for path in (self.folder / name).iterdir():
            if path.name != "manifest.json":
                shutil.copy(path, self.folder / "model")
        shutil.copy(self.folder / name / "manifest.json", self.folder / "model")

    def empty(self) -> None:
        for path in (self.folder / "model").iterdir():
            if path.name != "manifest.json":
                path.unlink()

    def says(self, **fields: Any) -> Any:
        answer = self.live.post("/v1/translate", text=TEXT, **fields)
        return answer.json()["translations"][0]["text"] if answer.status == 200 else answer.json()["code"]

    def of(self, name: str) -> str:
        return self.translators[name].translate(TEXT).text


@pytest.fixture(scope="module")
def translators(make: Callable[..., Translator]) -> dict[str, Translator]:
    return {"one": make(seed=3), "two": make(seed=5)}


@pytest.fixture
def running(tmp_path: Path, translators: dict[str, Translator], start: Callable[..., Any]) -> Iterator[Running]:
    found = Running(tmp_path, translators, start)
    yield found
    found.reloader.close()


def ready(running: Running) -> Any:
    answer = running.live.get("/health/ready")
    assert answer.status == 200
    return answer.json()


def test_the_two_models_differ(running: Running) -> None:
    assert running.of("one") != running.of("two")
    assert running.says() == running.of("one")
    assert ready(running) == {"status": "ready"}


def test_a_new_model_in_the_folder_is_loaded(running: Running) -> None:
    running.put("two")
    assert running.says() == running.of("one")
    found = running.reloader.reload()
    assert (found.loaded, found.kept, found.unloaded, found.problems) == (("en-de",), (), (), {})
    assert running.says() == running.of("two")
    assert ready(running) == {"status": "ready", "last_reload": {"at": found.at, "done": True, "kept_as_before": []}}


def test_an_unchanged_model_is_not_loaded_again(running: Running) -> None:
    before = running.server.models.all[0]
    found = running.reloader.reload()
    assert (found.loaded, found.kept) == ((), ("en-de",))
    assert running.server.models.all[0] is before


def test_models_are_added_and_removed(running: Running) -> None:
    running.write('models = {"en-de" = "model", "second" = "two"}')
    found = running.reloader.reload()
    assert (found.loaded, found.kept, found.unloaded) == (("second",), ("en-de",), ())
    assert running.says(model="second") == running.of("two")
    running.write('models = {"second" = "two"}')
    found = running.reloader.reload()
    assert (found.loaded, found.kept, found.unloaded) == ((), ("second",), ("en-de",))
    assert running.says() == running.of("two")
    assert running.says(model="en-de") == "unknown_model"


def damaged(running: Running) -> str:
    weights = next(path for path in (running.folder / "model").iterdir() if path.suffix == ".safetensors")
    content = bytearray(weights.read_bytes())
    content[-7] ^= 1
    weights.write_bytes(content)
    return f"{weights}: damaged or changed: its SHA-256 is not the one in manifest.json"


def cut_short(running: Running) -> str:
    weights = next(path for path in (running.folder / "model").iterdir() if path.suffix == ".safetensors")
    size = weights.stat().st_size
    os.truncate(weights, 1000)
    return f"{weights}: damaged: 1,000 bytes, expected {size:,}"


def half_replaced(running: Running) -> str:
    running.put("two")
    weights = next(path for path in (running.folder / "model").iterdir() if path.suffix == ".safetensors")
    weights.unlink()
    return f"{weights}: missing, but manifest.json names it as weights.safetensors"


def emptied(running: Running) -> str:
    running.empty()
    config = json.loads((running.folder / "model" / "manifest.json").read_text())["files"]["config.toml"]["file"]
    return f"{running.folder / 'model' / config}: missing, but manifest.json names it as config.toml"


def gone(running: Running) -> str:
    shutil.rmtree(running.folder / "model")
    return f"{running.folder / 'model'}: not a model folder: there is no such folder"


@pytest.mark.parametrize("harm", [damaged, cut_short, half_replaced, emptied, gone])
def test_a_damaged_folder_leaves_the_old_model_serving(
    running: Running, harm: Callable[[Running], str], caplog: pytest.LogCaptureFixture
) -> None:
    reason = harm(running)
    with caplog.at_level(logging.INFO, logger="translume.serving"):
        running.reloader.request()
        until(lambda: any(record.message == "reloaded" for record in caplog.records))
    line = next(json.loads(JsonLines().format(each)) for each in caplog.records if each.message == "reloaded")
    assert (line["level"], line["problems"], line["kept"]) == ("error", {"models.en-de": reason}, ["en-de"])
    assert running.says() == running.of("one")
    last_reload = ready(running)["last_reload"]
    assert (last_reload["done"], last_reload["kept_as_before"]) == (False, ["models.en-de"])
    assert str(running.folder) not in json.dumps(last_reload)
    shutil.rmtree(running.folder / "model", ignore_errors=True)
    shutil.copytree(running.folder / "two", running.folder / "model")
    assert running.reloader.reload().problems == {}
    assert running.says() == running.of("two")


def test_a_model_that_raises_while_loading_is_not_used(running: Running) -> None:
    running.put("two")

    def failing(name: str, folder: Path) -> Any:
        raise MemoryError("no room")

    running.loader._load = failing
    found = running.reloader.reload()
    assert found.problems == {"models.en-de": "cannot be loaded: MemoryError"}
    assert running.says() == running.of("one")


def test_a_broken_new_model_is_left_out(running: Running) -> None:
    running.write('models = {"en-de" = "model", "second" = "nowhere"}')
    found = running.reloader.reload()
    assert found.problems == {
        "models.second": f"{running.folder / 'nowhere'}: not a model folder: there is no such folder"
    }
    assert running.says(model="en-de") == running.of("one")
    running.write('models = {"second" = "nowhere"}')
    found = running.reloader.reload()
    assert list(found.problems) == ["models.second"]
    assert running.says(model="en-de") == running.of("one")


def test_invalid_settings_change_nothing(running: Running) -> None:
    running.write('[models]\nen-de = "two"\n[limit]\ntexts = 3\n')
    found = running.reloader.reload()
    assert found.problems == {"settings": f"{running.path}: limit: no such setting; did you mean 'limits'?"}
    assert running.says() == running.of("one")
    assert ready(running)["last_reload"]["kept_as_before"] == ["settings"]


def test_valid_settings_apply_immediately_or_are_reported_as_waiting_for_a_restart(running: Running) -> None:
    running.write(
        'port = 1\ncors_origins = ["https://app.example"]\nlog_text = true\n'
        '[models]\nen-de = "model"\n[limits]\ncharacters = 5\nqueue = 3000\n'
    )
    found = running.reloader.reload()
    assert found.waiting == ("port", "limits.queue")
    assert running.says() == "text_too_long"
    assert running.live.get("/v1/info").json()["limits"]["queue"] == 2048
    answer = running.live.ask("GET", "/languages", Origin="https://app.example")
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert running.reloader.reload().waiting == ("port", "limits.queue")


def ask_with(running: Running, secret: str) -> int:
    body = json.dumps({"text": "a"}).encode()
    headers = {"content_type": "application/json", "authorization": f"Bearer {secret}"}
    status: int = running.live.ask("POST", "/v1/translate", body, **headers).status
    return status


def test_new_keys_are_accepted_and_removed_keys_refused(running: Running) -> None:
    keys = running.folder / "keys.json"
    alice = add_key(keys, "alice", {})
    running.write('keys.file = "keys.json"\n[models]\nen-de = "model"\n')
    running.reloader.reload()
    bob = add_key(keys, "bob", {})
    assert [ask_with(running, secret) for secret in (alice, bob, "")] == [200, 401, 401]
    assert running.reloader.reload().keys == 2
    counts = running.server.access.counts
    remove_key(keys, "alice")
    assert ask_with(running, alice) == 200
    running.reloader.reload()
    assert [ask_with(running, secret) for secret in (alice, bob)] == [401, 200]
    assert running.server.access.counts is counts
    running.write('[models]\nen-de = "model"\n')
    assert running.reloader.reload().keys is None
    assert ask_with(running, "") == 200


@pytest.mark.parametrize("harm", ["cut", "gone", "folder"])
def test_unreadable_keys_leave_the_old_keys_in_use(running: Running, harm: str) -> None:
    keys = running.folder / "keys.json"
    alice = add_key(keys, "alice", {})
    running.write('keys.file = "keys.json"\n[models]\nen-de = "model"\n')
    running.reloader.reload()
    reason = f"{keys}: damaged: not keys as `translume keys add` writes them; restore it from a copy"
    if harm == "cut":
        keys.write_text(keys.read_text()[:50])
    else:
        keys.unlink()
        reason = f"{keys}: no such file of keys; `translume keys add {keys} NAME` creates one"
    if harm == "folder":
        keys.mkdir()
        reason = f"{keys}: keys cannot be read: Is a directory"
    running.put("two")
    found = running.reloader.reload()
    assert (found.problems, found.loaded) == ({"keys": reason}, ("en-de",))
    assert [ask_with(running, secret) for secret in (alice, "tlk_00000000_x")] == [200, 401]
    assert ready(running)["last_reload"]["kept_as_before"] == ["keys"]


def test_a_usage_file_that_cannot_be_opened_leaves_the_old_keys_in_use(running: Running) -> None:
    keys = running.folder / "keys.json"
    alice = add_key(keys, "alice", {})
    running.write('keys.file = "keys.json"\n[models]\nen-de = "model"\n')
    running.reloader.reload()
    running.write('keys.file = "keys.json"\nkeys.usage = "no/usage"\n[models]\nen-de = "model"\n')
    place = running.folder / "no" / "usage"
    assert running.reloader.reload().problems == {
        "keys": f"{place}: usage cannot be counted: No such file or directory"
    }
    assert ask_with(running, alice) == 200


def test_no_request_is_dropped_while_models_change(running: Running) -> None:
    known = {running.of("one"), running.of("two")}
    found: list[tuple[int, str]] = []
    stop = threading.Event()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", running.live.port, timeout=120)
        while not stop.is_set():
            body = json.dumps({"text": TEXT})
            connection.request("POST", "/v1/translate", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            values = json.loads(answer.read())
            found.append((answer.status, values["translations"][0]["text"]))
        connection.close()

    clients = [threading.Thread(target=client) for _ in range(4)]
    for each in clients:
        each.start()
    for name in ("two", "one", "two"):
        running.put(name)
        assert running.reloader.reload().loaded == ("en-de",)
        until(lambda name=name: running.says() == running.of(name))
    stop.set()
    for each in clients:
        each.join()
    assert len(found) > 20
    assert {status for status, _ in found} == {200}
    assert {text for _, text in found} == known


def test_a_replaced_model_is_unloaded(running: Running) -> None:
    running.says()
    before = weakref.ref(running.server.models.all[0].model)
    del running.models
    running.put("two")
    running.reloader.reload()
    assert running.says() == running.of("two")

    def gone() -> bool:
        gc.collect()
        return before() is None

    until(gone)


def test_many_requests_to_reload_are_handled_one_after_another(running: Running) -> None:
    running.put("two")
    for _ in range(20):
        running.reloader.request()
    until(lambda: running.says() == running.of("two"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "serve: found no model, expected MODEL, or a table [models] in --config"),
        (["a=x", "a=y"], "a: two models have this name; rename one with NAME=MODEL"),
        (["x", "--config", "no.toml"], "no.toml: cannot be read: No such file or directory"),
        (["x", "--set", "prot=1"], "serve: prot: no such setting; did you mean 'port'?"),
        (
            ["x", "--metrics", "x"],
            "serve: metrics: found 'x', expected a port or ADDRESS:PORT, such as '127.0.0.1:9100'",
        ),
        (["x", "--keys", "no.json"], "no.json: no such file of keys; `translume keys add no.json NAME` creates one"),
        (["x", "--port", "0"], "x: not a model folder: there is no such folder"),
    ],
)
def test_invalid_serve_settings_give_a_one_line_error(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["serve", *words], prog_name="translume")
    assert (done.exit_code, done.output) == (1, f"Error: {line}\n")


def test_a_metrics_port_in_use_gives_a_one_line_error(running: Running) -> None:
    port = running.live.port
    with pytest.raises(TranslumeError) as caught, serve_metrics(running.server.metrics.registry, "127.0.0.1", port):
        pass
    assert str(caught.value) == (
        f"127.0.0.1:{port}: cannot listen: address already in use; stop the other process or choose another --metrics"
    )


class Process:
    """A `translume serve --config serve.toml` process with its log."""

    def __init__(self, path: Path, *, python: Path | None = None, terminal: int | None = None) -> None:
        """python: instead of a new interpreter.  terminal: start the server from a pseudo-terminal of its own."""
        program = str(python or sys.executable)
        command = [program, "-m", "translume", "serve", "--config", str(path), "--engine", "plain"]
        if terminal is not None:
            own = "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            own += "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # SIGHUP is ignored when the tests run under nohup
            own += "os.execv(sys.argv[1], sys.argv[1:])"
            command = [sys.executable, "-c", own, *command]
        self.process = subprocess.Popen(
            command, stdin=terminal, stderr=subprocess.PIPE, text=True, start_new_session=terminal is not None
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        until(lambda: any(line.startswith("serving") for line in self.lines) or self.process.poll() is not None)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def port(self, word: str) -> int:
        line = next(line for line in self.lines if line.startswith(word))
        return int(line.rpartition(":")[2].partition("/")[0])

    def ask(self, port: int, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        found = answer.status, answer.read().decode()
        connection.close()
        return found


def test_the_serve_command_reloads_on_sighup_and_serves_metrics_on_another_port(
    running: Running, warm_python: Path
) -> None:
    keys = running.folder / "keys.json"
    alice = add_key(keys, "alice", {})
    text = 'port = 0\nmetrics = "0"\nlog_text = {}\nkeys.file = "keys.json"\n[models]\nen-de = "model"\n'
    running.write(text.format("false"))
    server = Process(running.path, python=warm_python)
    try:
        port, counts = server.port("serving en-de at http://127.0.0.1:"), server.port("metrics for Prometheus at")
        head = {"Authorization": f"Bearer {alice}", "X-Request-Id": "first"}
        body = json.dumps({"text": TEXT})
        status, answer = server.ask(port, "POST", "/v1/translate", body, **head)
        assert (status, json.loads(answer)["translations"][0]["text"]) == (200, running.of("one"))
        assert server.ask(port, "GET", "/metrics", **head)[0] == 404
        assert 'route="/v1/translate",status="200"' in server.ask(counts, "GET", "/metrics")[1]
        running.put("two")
        running.write(text.format("true"))
        server.process.send_signal(signal.SIGHUP)
        until(lambda: any('"reloaded"' in line for line in server.lines))
        status, answer = server.ask(port, "POST", "/v1/translate", body, **{**head, "X-Request-Id": "second"})
        assert (status, json.loads(answer)["translations"][0]["text"]) == (200, running.of("two"))
        keys.write_text("{")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: sum('"reloaded"' in line for line in server.lines) == 2)
        assert server.ask(port, "POST", "/v1/translate", body, **{**head, "X-Request-Id": "third"})[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == -signal.SIGTERM
        until(lambda: any('"second"' in line for line in server.lines))
        logged = [json.loads(line) for line in server.lines if line.startswith("{")]
        by_id = {line.get("request_id"): line for line in logged}
        assert "texts" not in by_id["first"]
        assert by_id["second"]["texts"] == [TEXT]
        assert alice not in "".join(server.lines)
        assert alice.split("_")[1] not in "".join(server.lines)
    finally:
        server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="uses a Linux pseudo-terminal")
def test_closing_the_terminal_ends_the_server(running: Running) -> None:
    running.write('port = 0\n[models]\nen-de = "model"\n')
    terminal, side = os.openpty()
    server = Process(running.path, terminal=side)
    os.close(side)
    try:
        running.put("two")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: any('"reloaded"' in line for line in server.lines))
        assert server.process.poll() is None
        os.close(terminal)
        assert server.process.wait(120) == -signal.SIGTERM
    finally:
        server.close()
