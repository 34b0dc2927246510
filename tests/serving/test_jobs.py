"""Files are translated in the background, and processes share the statuses and results."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from translume.checksums import sealed, unsealed
from translume.config.data import DataSettings
from translume.serving.api.errors import RequestError
from translume.serving.files.documents import DocumentProcesses
from translume.serving.files.jobs import Jobs, Upload
from translume.serving.files.storage import FOLDER_PREFIX, PrivateFolder
from translume.serving.server import Server
from translume.serving.settings import Limits
from translume.translator import Translation


class Echo:
    """A server that returns every text unchanged, after `let` is set, and is too busy `refusals` times before."""

    models = access = None
    folder = Server.folder

    def __init__(self, limits: Limits, files: PrivateFolder) -> None:
        self.limits, self.files, self.refusals = limits, files, 0
        self.let = asyncio.Event()
        self.let.set()

    async def results(self, request: None, work: Any, items: Any, seconds: float, names: Any = ()) -> list[Any]:
        await self.let.wait()
        if self.refusals:
            self.refusals -= 1
            raise RequestError(503, "try later", code="queue_full")
        return [Translation(source=item.text, text=item.text) for item in items]


class Working:
    """The jobs of an `Echo`, whose files are in one folder."""

    def __init__(self, folder: Path, shared: Path | None = None, **limits: float) -> None:
        self.echo = Echo(Limits(**limits), PrivateFolder(folder, shared))
        server: Any = self.echo
        self.documents = DocumentProcesses(20.0)
        self.jobs, self.folder = Jobs(server, self.documents), shared or folder

    async def __aenter__(self) -> "Working":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.echo.let.set()
        await self.jobs.close()
        self.echo.files.close()
        self.documents.close()

    async def take(self, text: str = "a b.\n", client: str = "") -> Any:
        upload = Upload(name="a", suffix=".txt", content=text.encode(), client=client)
        return await self.jobs.submit(upload, SERVED)

    async def result(self, text: str = "a b.\n") -> Path:
        job, task = await self.take(text)
        await task
        return self.jobs.result(self.jobs.find(job.id))[0]

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.name == "result"]


def run(test: Callable[[Working], Awaitable[None]], folder: Path, **limits: Any) -> None:
    async def within() -> None:
        async with Working(folder, **limits) as working:
            await test(working)

    asyncio.run(within())


@pytest.fixture(autouse=True)
def settings_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs without a model have settings."""

    async def settings_with(*_: object) -> None:
        return None

    monkeypatch.setattr("translume.serving.files.jobs.settings_with", settings_with)
    monkeypatch.setattr("translume.serving.files.jobs.split_language", lambda _: "en")


CONFIG = SimpleNamespace(without_tokens=True, data=DataSettings())
SERVED: Any = SimpleNamespace(source="en", target="de", loaded=True, model=SimpleNamespace(config=CONFIG))


def test_results_are_private_and_deleted_with_the_server(tmp_path: Path) -> None:
    async def test(working: Working) -> None:
        assert list(tmp_path.iterdir()) == []
        path = await working.result()
        assert path.read_text() == "a b.\n"
        modes = [each.stat().st_mode & 0o777 for each in (path, path.parent, path.parent.parent)]
        assert modes == [0o600, 0o700, 0o700]

    run(test, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_results_expire_without_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("translume.serving.files.jobs.SWEEP_SECONDS", 0.05)

    async def test(working: Working) -> None:
        path = await working.result()
        deadline = time.monotonic() + 120
        while path.exists() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        with pytest.raises(RequestError, match=r"^no such file, or it was deleted$"):
            working.jobs.find(path.parent.name)

    run(test, tmp_path, kept_seconds=0.3)


def test_the_oldest_results_are_deleted_for_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "kept_bytes", 10)

    async def test(working: Working) -> None:
        first, second = await working.result("abcdef"), await working.result("ghijkl")
        assert working.files() == [second]
        with pytest.raises(RequestError):
            working.jobs.find(first.parent.name)
        reason = "there is no space for the translated file: it has 11 bytes, expected at most 10"
        with pytest.raises(RequestError, match=f"^{reason}$") as caught:
            await working.result("abcdefghijk")
        assert caught.value.status == 507
        assert working.files() == [second]

    run(test, tmp_path)


def test_the_number_of_waiting_files_is_limited(tmp_path: Path) -> None:
    async def test(working: Working) -> None:
        working.echo.let.clear()
        waiting = [await working.take(), await working.take()]
        with pytest.raises(RequestError) as caught:
            await working.take()
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "queue_full", 10)
        assert str(caught.value) == "2 files are waiting, expected at most 2; try later"
        working.echo.let.set()
        for _, task in waiting:
            await task
        await working.result()

    run(test, tmp_path, files=2)


def test_deleted_files_are_not_translated(tmp_path: Path) -> None:
    async def test(working: Working) -> None:
        working.echo.let.clear()
        for job, _ in (await working.take(), await working.take()):
            working.jobs.delete(job)
        working.echo.let.set()
        await working.result()
        assert len(working.files()) == 1

    run(test, tmp_path)


def test_a_file_has_a_deadline(tmp_path: Path) -> None:
    async def test(working: Working) -> None:
        working.echo.let.clear()
        job, task = await working.take()
        await asyncio.wait([task])
        with pytest.raises(RequestError, match=r"^the file was not finished after 0\.3 s, the time limit$") as caught:
            working.jobs.result(working.jobs.find(job.id))
        assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")

    run(test, tmp_path, file_seconds=0.3)


def test_a_file_waits_until_the_queue_has_room(tmp_path: Path) -> None:
    async def test(working: Working) -> None:
        working.echo.refusals = 2
        assert (await working.result("a b.\n" * 90)).read_text() == "a b.\n" * 90

    run(test, tmp_path)


def test_a_full_disk_gives_a_one_line_error_and_leaves_no_partial_file(
    tmp_path: Path, full_disk: Callable[[], AbstractContextManager[None]]
) -> None:
    async def test(working: Working) -> None:
        before = [await working.result()]
        reason = "there is no space for the translated file: try a smaller one, or later"
        working.echo.let.clear()
        job, task = await working.take()
        while working.jobs.find(job.id).status == "waiting":
            await asyncio.sleep(0.01)
        with full_disk():
            working.echo.let.set()
            with pytest.raises(RequestError, match=f"^{reason}$") as caught:
                await task
        assert (caught.value.status, caught.value.code) == (507, "no_space")
        assert working.files() == before
        await working.result()

    run(test, tmp_path)


def test_no_room_for_the_folder_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def test(working: Working) -> None:
        with pytest.raises(RequestError, match=r"^there is no space for the translated file: try later$"):
            await working.take()

    run(test, tmp_path / "file")


def test_shutdown_cancels_files_in_progress(tmp_path: Path) -> None:
    async def test(working: Working) -> None:
        working.echo.let.clear()
        _, doing = await working.take()
        await working.jobs.close()
        assert doing.cancelled()
        with pytest.raises(RequestError, match=r"^the server is shutting down; use another one$"):
            await working.take()

    run(test, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unexpected_error_is_reported_without_its_message(tmp_path: Path) -> None:
    async def test(working: Working) -> None:
        async def fail(*_: object) -> None:
            raise ZeroDivisionError("division by zero")

        working.echo.results = fail  # type: ignore[assignment,method-assign]  # a fault
        job, task = await working.take()
        await asyncio.wait([task])
        assert working.jobs.find(job.id).status == "failed"
        with pytest.raises(RequestError) as caught:
            working.jobs.result(working.jobs.find(job.id))
        assert caught.value.status == 500
        assert "division" not in str(caught.value)

    run(test, tmp_path)


def test_processes_that_share_a_folder_read_and_delete_each_others_files(tmp_path: Path) -> None:
    async def test(one: Working) -> None:
        async with Working(tmp_path, tmp_path, files=1) as other:
            path = await one.result()
            assert other.jobs.result(other.jobs.find(path.parent.name))[0] == path
            one.echo.let.clear()
            job, task = await one.take()
            assert other.jobs.find(job.id).status in ("waiting", "working")
            with pytest.raises(RequestError, match=r"^1 files are waiting, expected at most 1; try later$"):
                await other.take()
            other.jobs.delete(job)
            one.echo.let.set()
            await asyncio.wait([task])
            with pytest.raises(RequestError, match=r"^no such file, or it was deleted$"):
                one.jobs.find(job.id)
        assert path.exists()

    run(test, tmp_path, shared=tmp_path, files=1)


def test_a_file_whose_process_was_killed_has_failed(tmp_path: Path) -> None:
    async def test(working: Working) -> None:
        job, task = await working.take()
        await task
        await asyncio.sleep(0)
        status = tmp_path / job.id / "status.json"
        values, _ = unsealed(status.read_text())
        status.write_text(sealed({**values, "status": "working"}))
        with pytest.raises(RequestError, match=r"^the process that translated the file ended; send it again$"):
            working.jobs.result(working.jobs.find(job.id))

    run(test, tmp_path, shared=tmp_path)


def test_folders_of_dead_servers_are_removed_and_those_of_live_ones_kept(tmp_path: Path) -> None:
    dead = tmp_path / f"{FOLDER_PREFIX}dead"
    dead.mkdir()
    (dead / "file").write_text("a")
    (tmp_path / "other").mkdir()
    (tmp_path / f"{FOLDER_PREFIX}link").symlink_to(tmp_path / "other")
    first = PrivateFolder(tmp_path)
    second = PrivateFolder(tmp_path)
    made = {first.path.name, second.path.name}
    assert {path.name for path in tmp_path.iterdir()} == made | {"other", f"{FOLDER_PREFIX}link"}
    first.close()
    second.close()
    assert {path.name for path in tmp_path.iterdir()} == {"other", f"{FOLDER_PREFIX}link"}


def test_the_uploads_of_one_client_delete_only_its_own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "kept_bytes", 400)

    async def test(working: Working) -> None:
        async def upload(client: str) -> Any:
            job, task = await working.take("a" * 100, client)
            await task
            return job

        other = await upload("key b")
        mine = [await upload("192.0.2.1") for _ in range(6)]
        assert working.jobs.find(other.id).status == "done"
        assert {path.parent.name for path in working.files()} == {each.id for each in (other, *mine[-3:])}

    run(test, tmp_path)
