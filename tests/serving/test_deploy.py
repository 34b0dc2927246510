"""docs/deploy.md and the Dockerfile: commands, options, paths and ports exist and agree."""

import configparser
import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from translume.cli import main
from translume.serving.access.keys import Keys
from translume.serving.access.quotas import OPEN
from translume.serving.settings import Limits, ServeSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {title: text for _, title, text in FENCE.findall(PAGE) if title}
COMMANDS = [
    line[2:]
    for kind, _, text in FENCE.findall(PAGE)
    if kind == "console"
    for line in text.splitlines()
    if line.startswith("$ ")
]


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the parameters that `translume WORDS` is called with; fail if it would reject them."""
    verb: click.Command = main
    # Nested contexts, as the command line creates them: click reuses the first help option of a command.
    context = click.Context(main, info_name="translume", **main.context_settings)
    while isinstance(verb, click.Group):
        found = verb.get_command(context, words[0])
        assert found is not None, words
        verb, words = found, words[1:]
        if isinstance(verb, click.Group):
            context = click.Context(verb, info_name=verb.name, parent=context)
    return verb.make_context(verb.name, list(words), parent=context).params


def instructions(name: str) -> list[str]:
    """Return the arguments of every occurrence of a Dockerfile instruction."""
    joined = re.sub(r"\\\n\s*", "", "".join(f"{line}\n" for line in DOCKERFILE.splitlines() if line[:1] != "#"))
    return re.findall(rf"^\s*{name} (.*)$", joined, re.MULTILINE)


def test_the_image_is_built_with_a_compiler_and_has_none() -> None:
    *_, build, last = DOCKERFILE.split("\nFROM ")
    assert "gcc libc6-dev" in build
    assert "gcc" not in last
    assert f"TRANSLUME_CACHE={words_of(instructions('VOLUME')[0])}/cache" in last


def words_of(instruction: str) -> list[str]:
    found: list[str] = yaml.safe_load(instruction)
    return found


def test_the_page_contains_every_file() -> None:
    assert set(FILES) == {"serve.toml", "translume.service", "compose.yaml", "nginx.conf"}
    for name in FILES:
        assert f"`{name}`" in PAGE or f"/{name}`" in PAGE


def test_the_settings_file_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(FILES["serve.toml"])
    found = ServeSettings.read(path).must_have_models()
    assert found.host == "127.0.0.1"
    assert found.keys.file


def test_every_command_on_the_page_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    called = [shlex.split(line) for line in COMMANDS]
    ours = [words[1:] for words in called if words[0] == "translume"]
    assert len(ours) == 3
    for words in ours:
        parsed(words)
    composed = next(words for words in called if "--entrypoint" in words)
    service = composed[composed.index("--entrypoint") + 2]
    assert composed[composed.index("--entrypoint") + 1] == "translume"
    assert service in yaml.safe_load(FILES["compose.yaml"])["services"]
    assert parsed(composed[composed.index(service) + 1 :])["name"] == "alice"
    run = next(words for words in called if words[:2] == ["docker", "run"])
    assert parsed(["serve", *run[run.index("translume") + 1 :]])["host"] == "0.0.0.0"


def test_keys_added_by_the_page_are_valid(tmp_path: Path) -> None:
    from click.testing import CliRunner

    words = next(shlex.split(line)[1:] for line in COMMANDS if line.startswith("translume keys add"))
    path = tmp_path / "keys.json"
    words[2] = str(path)
    secret = CliRunner().invoke(main, words, prog_name="translume").stdout.strip()
    key = Keys.read(path).find(secret)
    assert key is not None
    assert key.characters_per_day == 200_000


class Unit(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture
def unit() -> Unit:
    found = Unit(delimiters=("=",), strict=True, interpolation=None)
    found.read_string(FILES["translume.service"])
    return found


def test_the_systemd_unit_starts_reloads_and_stops_the_server(unit: Unit) -> None:
    service = dict(unit["Service"])
    program, *words = shlex.split(service["ExecStart"])
    assert (program, parsed(words)["config"]) == ("/opt/translume/bin/translume", Path("/etc/translume/serve.toml"))
    assert shlex.split(service["ExecReload"]) == ["/bin/kill", "-HUP", "$MAINPID"]
    assert int(service["TimeoutStopSec"]) > Limits().drain_seconds
    assert service["User"] == "translume"
    settings = tomllib.loads(FILES["serve.toml"])
    assert settings["keys"]["file"].startswith(f"/var/lib/{service['StateDirectory']}/")
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_every_line_of_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "translume.service"
    # The program is not installed where tests run.
    path.write_text(FILES["translume.service"].replace("/opt/translume/bin/translume", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if str(path) in line]
    assert not complaints


def test_the_image_is_small_unprivileged_and_has_a_health_check() -> None:
    stages = instructions("FROM")
    assert [stage.split()[0] for stage in stages] == ["debian:bookworm-slim", "debian:bookworm-slim"]
    assert stages[0].endswith("AS build")
    assert instructions("USER") == ["translume"]
    copied = [words.split()[:-1] for words in instructions("COPY") if not words.startswith("--from")]
    names = [name for words in copied for name in words]
    assert all((ROOT / name).exists() for name in names)
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(names) == sorted(allowed)


def test_the_image_runs_the_server_with_valid_options() -> None:
    entry, command = words_of(instructions("ENTRYPOINT")[0]), words_of(instructions("CMD")[-1])
    assert entry[0] == "translume"
    assert parsed([*entry[1:], *command])["config"] == Path("/etc/translume/serve.toml")
    health = re.search(r"http://127\.0\.0\.1:(\d+)(/[\w/]+)", DOCKERFILE)
    assert health is not None
    assert int(health[1]) == ServeSettings().port == int(instructions("EXPOSE")[0])
    assert health[2] in OPEN
    code = words_of(re.search(r"CMD (\[\"python\".*\])", DOCKERFILE)[1])[2]  # type: ignore[index]  # found above
    compile(code, "HEALTHCHECK", "exec")


def test_the_image_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE + PAGE)
    assert extras
    assert set(",".join(extras).split(",")) <= set(project["optional-dependencies"])


def test_the_replicas_are_two_identical_servers_behind_nginx() -> None:
    whole = yaml.safe_load(FILES["compose.yaml"])
    services = whole["services"]
    replicas = [name for name in services if services[name]["image"] == "translume"]
    assert len(replicas) == 2
    assert services[replicas[0]] == services[replicas[1]]
    words = parsed(["serve", *services[replicas[0]]["command"]])
    assert (words["config"], words["host"]) == (Path("/etc/translume/serve.toml"), "0.0.0.0")
    assert words["keys"].parent == Path("/data")
    assert int(services[replicas[0]]["stop_grace_period"].removesuffix("s")) > Limits().drain_seconds
    assert "ports" not in services[replicas[0]]
    assert set(services["nginx"]["depends_on"]) == set(replicas)
    mounted = [volume.split(":")[0] for name in services for volume in services[name]["volumes"]]
    assert {place for place in mounted if not place.startswith("./")} == set(whole["volumes"])
    models = tomllib.loads(FILES["serve.toml"])["models"].values()
    assert all(folder.startswith("/srv/models/") for folder in models)
    upstream = re.findall(r"server ([\w-]+):(\d+)", FILES["nginx.conf"])
    assert upstream == [(name, str(ServeSettings().port)) for name in replicas]


def seconds(name: str) -> int:
    found = re.search(rf"{name} (\d+)s;", FILES["nginx.conf"])
    assert found is not None
    return int(found[1])


def test_the_limits_and_timeouts_of_nginx_match_the_servers() -> None:
    text = FILES["nginx.conf"]
    limits = Limits()
    size = re.search(r"client_max_body_size (\d+)m;", text)
    assert size is not None
    sizes = [value for name, value in limits.model_dump().items() if name in ("body_bytes", "file_bytes")]
    assert int(size[1]) * 2**20 >= max(sizes)
    assert seconds("proxy_read_timeout") > limits.timeout_seconds
    assert seconds("client_body_timeout") >= limits.read_seconds
    assert seconds("keepalive_timeout") < 5
    assert "proxy_buffering off;" in text
    assert text.count("{") == text.count("}")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^\s*ssl_certificate.*$", "", FILES["nginx.conf"]).replace("listen 443 ssl", "listen 8443")
    text = re.sub(r"translume-\d:", "127.0.0.1:", text)
    path = tmp_path / "nginx.conf"
    path.write_text(f"pid {tmp_path}/pid; error_log stderr;\n{text}")
    nginx = str(shutil.which("nginx"))
    done = subprocess.run(
        [nginx, "-t", "-c", str(path), "-p", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "syntax is ok" in done.stderr, done.stderr


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_forwards_health_checks_and_answers_as_the_server_does(tmp_path: Path, live: Any) -> None:
    """A body beyond its limit gets JSON, an address gets 64 connections, and /health is not redirected."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = re.sub(r"(?m)^\s*ssl_certificate.*$|^.*server translume-2:.*$", "", FILES["nginx.conf"])
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    text = text.replace("translume-1:8000", f"127.0.0.1:{live.port}")
    user = "user root;" if os.geteuid() == 0 else ""
    path = tmp_path / "nginx.conf"
    path.write_text(f"{user} daemon off; pid {tmp_path}/pid; error_log {tmp_path}/log;\n{text}")
    process = subprocess.Popen([str(shutil.which("nginx")), "-c", str(path), "-p", str(tmp_path)])
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)

        def ask(method: str, where: str, body: bytes = b"") -> tuple[int, Any]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            with contextlib.closing(connection):
                connection.request(method, where, body, {"Host": "localhost", "Content-Type": "application/json"})
                found = connection.getresponse()
                return found.status, json.loads(found.read())

        assert ask("GET", "/health") == (200, {"status": "ok"})
        assert ask("GET", "/health/ready")[0] == 200
        status, answer = ask("POST", "/v1/translate", b'{"text": "a dog"}')
        assert (status, answer["model"]) == (200, "en-de")
        assert ask("POST", "/v1/files", bytes(7_000_000)) == (
            413,
            {"error": "the body is too large", "code": "request_too_large"},
        )
        with contextlib.ExitStack() as slow:
            for _ in range(64):
                each = slow.enter_context(socket.create_connection(("127.0.0.1", port)))
                each.sendall(b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            time.sleep(0.3)
            status, answer = ask("GET", "/v1/models")
            assert (status, answer["code"]) == (429, "too_many_open")
    finally:
        process.terminate()
        process.wait(120)
