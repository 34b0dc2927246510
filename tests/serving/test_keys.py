"""API keys: shown once, stored as digests; the key file is private and replaced atomically."""

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.conftest import message_of

from translume.cli import main
from translume.serving.access.keys import Key, Keys, add_key, remove_key
from translume.serving.access.quotas import DAY, MINUTE, open_counts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["keys", *map(str, words)], prog_name="translume")


def test_keys_are_found_by_their_secret_which_the_file_does_not_contain(path: Path) -> None:
    alice, bob = add_key(path, "alice", {}), add_key(path, "bob", {"requests_per_minute": 3})
    keys = Keys.read(path)
    found = [keys.find(secret) for secret in (alice, bob)]
    assert [(key.name, key.requests_per_minute) for key in found if key] == [("alice", None), ("bob", 3)]
    text = path.read_text()
    for secret in (alice, bob):
        assert secret not in text
        assert secret.split("_", 2)[2] not in text
    assert len({key.salt for key in keys.all}) == 2
    assert len(alice) == len("tlk_") + 8 + 1 + 43


@given(st.text(max_size=80))
def test_arbitrary_text_finds_no_key(text: str) -> None:
    keys = Keys((Key(name="a", id="0f", salt="00" * 16, digest="11" * 32, made="2026-01-01"),))
    for secret in (text, f"tlk_0f_{text}", f"tlk_none_{text}", f"tlk__{text}", f"tlk_{text}"):
        assert keys.find(secret) is None


def test_a_key_with_one_changed_character_is_not_found(path: Path) -> None:
    secret = add_key(path, "alice", {})
    keys = Keys.read(path)
    for place, character in enumerate(secret):
        other = "a" if character != "a" else "b"
        assert keys.find(secret[:place] + other + secret[place + 1 :]) is None or place < 3
    assert keys.find(secret) is not None


def test_the_file_is_private_and_keeps_changed_permissions(path: Path) -> None:
    add_key(path, "alice", {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    add_key(path, "bob", {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [child.name for child in path.parent.iterdir()] == ["keys.json"]


def test_names_are_validated_and_unique(path: Path) -> None:
    add_key(path, "alice", {})
    assert message_of(lambda: add_key(path, "alice", {})) == (
        f"{path}: has a key named 'alice' already; `translume keys remove` removes it"
    )
    for name in ("", " ", "a\nb", "x" * 61):
        assert message_of(lambda name=name: add_key(path, name, {})) == (
            f"NAME: found {len(name)} characters, expected 1 to 60 printable ones"
        )
    assert message_of(lambda: remove_key(path, "alcie")) == f"{path}: 'alcie': no such key; did you mean 'alice'?"
    remove_key(path, "alice")
    assert Keys.read(path).all == ()


GOOD = {"name": "a", "id": "0f", "salt": "00", "digest": "11", "made": "2026-01-01"}
CHANGES = [
    *({"name": 5}, {"salt": "x"}, {"salt": 5}, {"characters_per_day": True}, {"characters_per_day": 1.5}),
    *({"characters_per_day": -1}, {"characters_per_day": 10**400}, {"characters_per_day": "5"}, {"secret": "5"}),
    *({"requests_per_minute": value} for value in (0, float("inf"), float("nan"))),
]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"5", b'{"format": 1}', b'{"format": "one", "keys": []}', b'{"format": 1, "keys": [5]}'),
        *(b'{"format": 1, "keys": 5}', b"[" * 100_000),
        *(json.dumps({"format": 1, "keys": [{**GOOD, **change}]}).encode() for change in CHANGES),
        json.dumps({"format": 1, "keys": [{"name": "a"}]}).encode(),
    ],
)
def test_a_damaged_file_gives_a_one_line_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    what = "not keys as `translume keys add` writes them; restore it from a copy"
    assert message_of(lambda: Keys.read(path)) == f"{path}: damaged: {what}"
    message_of(lambda: add_key(path, "bob", {}))
    assert path.read_bytes() == content


def test_a_changed_file_is_refused_unless_its_digest_is_deleted(path: Path) -> None:
    add_key(path, "alice", {"requests_per_minute": 3})
    changed = json.loads(path.read_text())
    changed["keys"][0]["requests_per_minute"] = 7
    path.write_text(json.dumps(changed))
    what = 'its digest is wrong; restore it from a copy, or delete "sha256" to keep a change'
    assert message_of(lambda: Keys.read(path)) == f"{path}: damaged or changed: {what}"
    del changed["sha256"]
    path.write_text(json.dumps(changed))
    assert [key.requests_per_minute for key in Keys.read(path).all] == [7]


def test_unreadable_files_give_a_one_line_error_each(path: Path) -> None:
    assert message_of(lambda: Keys.read(path)) == (
        f"{path}: no such file of keys; `translume keys add {path} NAME` creates one"
    )
    assert message_of(lambda: Keys.read(path.parent)) == f"{path.parent}: keys cannot be read: Is a directory"
    path.write_bytes(b"\xff")
    assert message_of(lambda: Keys.read(path)) == f"{path}: damaged: not UTF-8 text; restore it from a copy"
    path.write_text('{"format": 2, "keys": []}')
    assert message_of(lambda: Keys.read(path)) == (
        f"{path}: format 2 is newer than format 1, the newest this Translume reads"
    )
    path.write_text(json.dumps({"format": 1, "keys": [GOOD, {**GOOD, "name": "b"}]}))
    assert message_of(lambda: Keys.read(path)) == f"{path}: damaged: two keys have the same name or id"
    assert message_of(lambda: add_key(path.parent / "no" / "keys.json", "a", {})) == (
        f"{path.parent / 'no'}: cannot be opened: No such file or directory"
    )


def test_a_full_disk_leaves_the_file_unchanged(
    path: Path, full_disk: Callable[[], AbstractContextManager[None]]
) -> None:
    add_key(path, "alice", {})
    before = path.read_bytes()
    with full_disk():
        assert message_of(lambda: add_key(path, "bob", {})) == f"{path}: cannot be written: No space left on device"
    assert path.read_bytes() == before
    assert [child.name for child in path.parent.iterdir()] == ["keys.json"]


def test_keys_added_concurrently_are_all_stored(path: Path) -> None:
    code = "import sys; from translume.serving.access.keys import add_key; from pathlib import Path\n"
    code += "for number in range(5): add_key(Path(sys.argv[1]), f'{sys.argv[2]} {number}', {})"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("a", "b")]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert sorted(key.name for key in Keys.read(path).all) == [
        f"{name} {number}" for name in "ab" for number in range(5)
    ]


def test_the_command_shows_a_key_only_when_it_is_added(path: Path) -> None:
    added = run("add", path, "alice", "--requests-per-minute", "15", "--characters-per-day", "2000")
    assert added.stderr == f"added alice to {path}; the key is not shown again\n"
    key = Keys.read(path).find(added.stdout.strip())
    assert key is not None
    shown = f"alice  {key.id}  {key.made}  0 requests, 0 characters; requests_per_minute 15, characters_per_day 2,000\n"
    assert run("list", path).stdout == shown
    counts = open_counts(f"{path}.usage")
    counts.incr(f"{key.id}/requests", MINUTE, 1)
    counts.incr(f"{key.id}/characters", DAY, 1234)
    assert json.loads(run("list", path, "--json").stdout) == {
        **{"name": "alice", "id": key.id, "made": key.made, "requests_per_minute": 15, "characters_per_day": 2000},
        **{"requests": 1, "characters": 1234},
    }
    assert (
        run("remove", path, "alice").output == f"removed alice from {path}; a running server rejects it after SIGHUP\n"
    )
    assert run("list", path).output == ""


def test_misuse_of_the_command_gives_a_one_line_error(path: Path) -> None:
    done = run("list", path)
    assert (done.exit_code, done.output) == (
        1,
        f"Error: {path}: no such file of keys; `translume keys add {path} NAME` creates one\n",
    )
    assert run("ad").output == "Error: translume keys ad: no such command; did you mean 'add'?\n"
