"""After any failure a folder has the old or the new committed state; one process trains in it at a time."""

import errno
import hashlib
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume import atomic
from translume.checkpoint import Content, FolderLock, Manifest, commit, committed, read_committed, verify
from translume.errors import DataError, ModelFolderError, TrainingError

NAMES = ("config.toml", "weights.safetensors", "resume/state.json", "resume/old.safetensors", "plain")
OPERATIONS = {
    "make_folder": atomic, "write": atomic, "sync": atomic, "digest": atomic, "replace_file": atomic, "replace": os,
    "unlink": os,
}  # fmt: skip
"""The file operations of a commit, and where they are."""


def state(folder: Path) -> dict[str, bytes]:
    manifest = Manifest.read(folder)
    return {name: read_committed(folder, manifest, name) for name in manifest.files}


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def named(folder: Path) -> set[str]:
    return {"manifest.json", *(entry.file for entry in Manifest.read(folder).files.values())}


contents = st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=13))


@given(steps=st.lists(st.tuples(contents, st.sets(st.sampled_from(NAMES))), min_size=1, max_size=5))
def test_a_folder_holds_what_was_committed_and_nothing_else(steps: list[tuple[dict[str, bytes], set[str]]]) -> None:
    expected: dict[str, bytes] = {}
    with TemporaryDirectory() as place:
        folder = Path(place) / "models" / "m"
        for files, removed in steps:
            commit(folder, files, remove=removed)
            expected = {name: content for name, content in expected.items() if name not in removed} | files
            assert state(folder) == expected
            assert names(folder) == named(folder)
            verify(folder)


class Died(BaseException):
    """Simulates the death of the process."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[None]:
    """Raise Died just before file operation number `at`; a write is half done."""
    left = at

    def mortal(name: str, operation: Callable[..., object]) -> Callable[..., object]:
        def run(path: Path, *arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                if name in ("write", "replace_file"):
                    (path if name == "write" else atomic.beside(path)).write_bytes(b"half")
                raise Died
            return operation(path, *arguments, **named)

        return run

    with monkeypatch.context() as patch:
        for name, module in OPERATIONS.items():
            patch.setattr(module, name, mortal(name, getattr(module, name)))
        yield


BEFORE: Mapping[str, bytes] = {"config.toml": b"one", "weights.safetensors": b"11", "resume/old.safetensors": b"o"}
AFTER: Mapping[str, bytes] = {"config.toml": b"one", "weights.safetensors": b"222", "resume/state.json": b"{}"}


def write_weights(path: Path) -> None:
    atomic.write(path, [AFTER["weights.safetensors"]])


def change(folder: Path) -> None:
    files: dict[str, Content] = {
        "config.toml": AFTER["config.toml"],
        "weights.safetensors": write_weights,
        "resume/state.json": b"{}",
    }
    commit(folder, files, remove=["resume/old.safetensors"])


def test_a_process_may_die_at_any_file_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for at in range(1000):
        folder = tmp_path / str(at)
        commit(folder, BEFORE)
        try:
            with dying(monkeypatch, at):
                change(folder)
        except Died:
            ends.append(state(folder))
            assert ends[-1] in (BEFORE, AFTER)
            change(folder)
            assert state(folder) == AFTER
            assert names(folder) == named(folder), "leftovers of the dead process stayed"
            continue
        break
    assert len(ends) > 14
    assert ends == sorted(ends, key=lambda end: end == AFTER), "the change happens once"
    assert ends[0] == BEFORE
    assert ends[-1] == AFTER


def test_a_process_may_die_at_any_file_operation_of_its_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(1000):
        folder = tmp_path / str(at)
        try:
            with dying(monkeypatch, at):
                commit(folder, BEFORE)
            break
        except Died:
            assert not (folder / "manifest.json").exists() or state(folder) == BEFORE
            commit(folder, BEFORE)
            assert state(folder) == BEFORE
            assert names(folder) == named(folder)
    assert at > 10


@pytest.mark.parametrize("operation", ["make_folder", "write", "sync", "replace", "replace_file"])
def test_a_full_disk_leaves_the_old_state_and_no_rubbish(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    commit(folder, BEFORE)
    before = names(folder)
    module = OPERATIONS[operation]
    real = getattr(module, operation)
    messages = []
    for at in range(100):
        left = at

        def full(path: Path, *arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                if operation == "write":
                    path.write_bytes(b"half")
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(path, *arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(module, operation, full)
            try:
                change(folder)
            except ModelFolderError as error:
                messages.append(str(error))
                assert state(folder) == BEFORE
                assert names(folder) == before
                continue
        break
    assert messages
    full_disk = f"{folder}: the disk is full: no room for "
    assert {
        message.removeprefix(full_disk).removesuffix("; the last saved state is intact") for message in messages
    } <= {
        "the folder",
        "manifest.json",
        *AFTER,
    }
    assert state(folder) == AFTER


def test_a_file_size_limit_is_named_with_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    commit(folder, BEFORE)
    before = names(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ModelFolderError) as caught:
            commit(folder, {"config.toml": b"two", "weights.safetensors": bytes(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(caught.value) == (
        f"{folder}: weights.safetensors cannot be written: the file size limit is reached (ulimit -f); "
        "the last saved state is intact"
    )
    assert state(folder) == BEFORE
    assert names(folder) == before


def test_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "m"
    with pytest.raises(DataError) as caught:
        commit(folder, BEFORE)
    assert str(caught.value) == f"{folder.parent}: is a file, expected a folder"


def test_unchanged_files_are_not_rewritten(tmp_path: Path) -> None:
    files: dict[str, bytes | Callable[[Path], None]] = {
        "a.bin": b"same",
        "b.bin": lambda path: atomic.write(path, [b"s"]),
    }
    commit(tmp_path, files)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("?-*")}
    commit(tmp_path, files)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("?-*")} == before
    assert len(before) == 2


def test_damaged_file_is_rewritten(tmp_path: Path) -> None:
    commit(tmp_path, {"a.bin": b"whole"})
    path = committed(tmp_path, Manifest.read(tmp_path), "a.bin")
    path.write_bytes(b"wh")
    commit(tmp_path, {"a.bin": b"whole"})
    assert state(tmp_path) == {"a.bin": b"whole"}


def test_unknown_files_are_kept(tmp_path: Path) -> None:
    mine = {"history.jsonl", "README.md", "notes.txt", "weights.safetensors", ".hidden"}
    for name in mine:
        (tmp_path / name).write_text("mine")
    commit(tmp_path, BEFORE)
    commit(tmp_path, AFTER, remove=["resume/old.safetensors"])
    assert names(tmp_path) - named(tmp_path) == mine


def test_the_name_of_a_file_holds_its_digest(tmp_path: Path) -> None:
    commit(tmp_path, {"resume/state.json": b"{}"})
    digest = hashlib.sha256(b"{}").hexdigest()
    values = json.loads((tmp_path / "manifest.json").read_text())
    assert values.pop("sha256")
    assert values == {
        "format": 2,
        "files": {
            "resume/state.json": {"file": f"resume/state-{digest[:16]}.json", "size": 2, "sha256": digest},
        },
    }


def test_every_flipped_bit_of_a_manifest_is_found(tmp_path: Path) -> None:
    commit(tmp_path, {"lengths.json": b"{}"})
    path = tmp_path / "manifest.json"
    whole, before = path.read_bytes(), Manifest.read(tmp_path)
    for place in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with suppress(ModelFolderError):
            assert Manifest.read(tmp_path) == before  # only white space changed
    for end in range(len(whole) - 2):
        path.write_bytes(whole[:end])
        assert refusal(tmp_path).startswith(f"{path}: damaged: ")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("lengths.json", "lengtis.json"), "names an unknown file 'lengtis.json'; did you mean 'lengths.json'?"),
        (('"size"', '"size0"'), "not a manifest of Translume"),
        (('"format"', '"forma4"'), "not a manifest of Translume"),
    ],
)
def test_manifest_of_an_earlier_version_has_no_digest_and_known_names_only(
    tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    commit(tmp_path, {"lengths.json": b"{}", "resume/raw.safetensors": b"", "decoding/ban-1.txt": b""})
    path, manifest = tmp_path / "manifest.json", Manifest.read(tmp_path)
    values = json.loads(path.read_text())
    del values["sha256"]
    path.write_text(json.dumps(values))
    assert Manifest.read(tmp_path) == manifest
    path.write_text(json.dumps(values).replace(*change))
    assert refusal(tmp_path) == f"{path}: damaged: {reason}"


def test_a_resume_folder_may_be_deleted(tmp_path: Path) -> None:
    commit(tmp_path, BEFORE)
    manifest = Manifest.read(tmp_path)
    path = tmp_path / manifest.files["resume/old.safetensors"].file
    path.unlink()
    path.parent.rmdir()
    assert read_committed(tmp_path, manifest, "config.toml") == b"one"
    with pytest.raises(ModelFolderError) as caught:
        read_committed(tmp_path, manifest, "resume/old.safetensors")
    assert str(caught.value) == f"{path}: missing, but manifest.json names it as resume/old.safetensors"


def test_damaged_files_are_named(tmp_path: Path) -> None:
    commit(tmp_path, {"a.bin": b"12345"})
    manifest = Manifest.read(tmp_path)
    path = committed(tmp_path, manifest, "a.bin")
    path.write_bytes(b"123")
    for read in (lambda: committed(tmp_path, manifest, "a.bin"), lambda: verify(tmp_path)):
        with pytest.raises(ModelFolderError) as caught:
            read()
        assert str(caught.value) == f"{path}: damaged: 3 bytes, expected 5"
    path.write_bytes(b"12346")
    for read in (lambda: read_committed(tmp_path, manifest, "a.bin"), lambda: verify(tmp_path)):
        with pytest.raises(ModelFolderError) as caught:
            read()
        assert str(caught.value) == f"{path}: damaged or changed: its SHA-256 is not the one in manifest.json"
    with pytest.raises(ModelFolderError) as caught:
        committed(tmp_path, manifest, "b.bin")
    assert str(caught.value) == f"{tmp_path}: damaged: manifest.json names no b.bin"


def refusal(folder: Path) -> str:
    with pytest.raises(ModelFolderError) as caught:
        Manifest.read(folder)
    return str(caught.value)


def test_folder_that_is_not_a_model_folder_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert refusal(missing) == f"{missing}: not a model folder: there is no such folder"
    assert refusal(tmp_path) == f"{tmp_path}: not a model folder: it has no manifest.json"
    file = tmp_path / "file"
    file.write_text("")
    assert refusal(file) == f"{file}: not a model folder: it is a file"


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 3, "layers": []}')
    assert refusal(tmp_path) == (
        f"{tmp_path}: format 3 is newer than format 2, the newest this Translume reads; upgrade Translume"
    )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "files": {"a": {"file": "a"}}}', b"\xff\xfe"]
)
def test_a_damaged_manifest_is_refused(text: str | bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    reason = "not UTF-8 text" if isinstance(text, bytes) else "not a manifest of Translume"
    assert refusal(tmp_path) == f"{tmp_path}/manifest.json: damaged: {reason}"


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "resume/../../secret"])
def test_a_file_outside_the_folder_is_refused(file: str, tmp_path: Path) -> None:
    entry = f'{{"file": "{file}", "size": 1, "sha256": "0"}}'
    (tmp_path / "manifest.json").write_text(f'{{"format": 1, "files": {{"config.toml": {entry}}}}}')
    assert refusal(tmp_path) == f"{tmp_path}/manifest.json: '{file}' lies outside the folder; refused"


def test_lock_error_names_the_process_that_holds_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m"
    read, write = os.pipe()
    if not (pid := os.fork()):
        FolderLock(folder)
        os.write(write, b"locked")
        signal.pause()
    try:
        assert os.read(read, 9) == b"locked"
        with pytest.raises(TrainingError) as caught:
            FolderLock(folder)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert str(caught.value) == (
        f"{folder}: process {pid} trains in it; wait until it has ended or choose another folder"
    )
    with FolderLock(folder):
        assert (folder / ".lock").read_text() == f"{os.getpid()}\n"


def test_process_cannot_lock_a_folder_twice(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        with pytest.raises(TrainingError) as caught:
            FolderLock(tmp_path / "." / ".." / tmp_path.name)
        assert str(caught.value) == f"{tmp_path}/../{tmp_path.name}: this process already trains in it"
    FolderLock(tmp_path).close()
