"""Files are translated in the background: status, result, expiry and cleanup."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from starlette.requests import Request

from translume.serving.access.limits import Limits
from translume.serving.api.body import form_parts
from translume.serving.api.errors import RequestError
from translume.serving.files.jobs import FOLDER_PREFIX, FileTask, Jobs, PrivateFolder
from translume.serving.files.uploads import Uploads
from translume.serving.workers.models import Served
from translume.serving.workers.scheduler import Scheduler
from translume.translator import Translation, Translator

HTML = "<p>a <b>man</b> runs</p><script>b</script>\n<p>two</p>"


def form(file: bytes, name: str = "a.txt", **fields: str) -> dict[str, Any]:
    """Return a multipart form with a file, for `live.ask`."""
    parts = [(f'name="{field}"', value.encode()) for field, value in fields.items()]
    parts.append((f'name="file"; filename="{name}"', file))
    body = b"".join(b"--xx\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (h.encode(), v) for h, v in parts)
    return {"body": body + b"--xx--\r\n", "content_type": "multipart/form-data; boundary=xx"}


def finished_status(live: Any, answer: Any) -> dict[str, Any]:
    """Wait until a file is finished and return its status."""
    assert answer.status == 202, answer.body
    place = answer.headers["Location"]
    for _ in range(6000):
        found = live.get(place).json()
        if found["status"] in ("done", "failed"):
            return found
        time.sleep(0.02)
    raise AssertionError(found)


@pytest.fixture(scope="module")
def live(start: Callable[..., Any], translator: Translator) -> Any:
    served = Served.of("en-de", translator)
    return start(served, file_bytes=20_000, file_characters=3000, kept_bytes=30_000, body_bytes=2000)


def test_a_file_is_uploaded_polled_fetched_and_deleted(live: Any, translator: Translator) -> None:
    answer = live.ask("POST", "/v1/files", **form(b" a man\n\ntwo .\n", "My notes.TXT", source="en", target="de"))
    found = finished_status(live, answer)
    place = answer.headers["Location"]
    assert found["kept_seconds"] in range(1790, 1801)
    assert {name: found[name] for name in ("name", "status", "sentences", "done", "result")} == {
        "name": "My notes_de.txt",
        "status": "done",
        "sentences": 2,
        "done": 2,
        "result": f"{place}/result",
    }
    fetched = live.get(f"{place}/result")
    assert fetched.body.decode() == f" {translator.translate('a man')}\n\n{translator.translate('two .')}\n"
    assert fetched.headers["Content-Disposition"] == (
        "attachment; filename=\"My notes_de.txt\"; filename*=UTF-8''My%20notes_de.txt"
    )
    assert fetched.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert live.ask("DELETE", place).json() == {"id": found["id"], "status": "deleted"}
    for path in (place, f"{place}/result"):
        assert (live.get(path).status, live.get(path).json()["code"]) == (404, "unknown_file")


def test_libretranslate_clients_can_translate_files(live: Any, translator: Translator) -> None:
    answer = live.ask("POST", "/translate_file", **form(HTML.encode(), "a.html", source="en", target="de"))
    assert (answer.status, list(answer.json())) == (200, ["translatedFileUrl"])
    address = urlsplit(answer.json()["translatedFileUrl"])
    assert f"http://{address.netloc}" == live.url
    assert address.path.startswith("/download_file/")
    fetched = live.get(address.path)
    assert fetched.headers["Content-Disposition"].startswith("attachment; ")
    text = fetched.body.decode()
    assert text.endswith(f"<script>b</script>\n<p>{translator.translate('two')}</p>")
    inside = text[3 : text.index("</p>")]
    assert "".join(inside.replace("<b>", "").replace("</b>", "").split()) == "".join(
        translator.translate("a man runs").text.split()
    )
    assert [inside.count(tag) for tag in ("<b>", "</b>")] == [1, 1]


REFUSED: dict[str, tuple[dict[str, Any], int, int, str]] = {
    "no form": ({"body": b"{}", "content_type": "application/json"}, 400, 415, "unsupported_media_type"),
    "no file": ({"body": b"--xx--", "content_type": "multipart/form-data; boundary=xx"}, 400, 400, "missing_field"),
    "no name": (form(b"a", "", source="en", target="de"), 400, 400, "missing_field"),
    "another kind": (form(b"a", "a.exe", source="en", target="de"), 400, 415, "unsupported_format"),
    "no suffix": (form(b"a", "txt", source="en", target="de"), 400, 415, "unsupported_format"),
    "no text": (form(b"\xff", source="en", target="de"), 422, 422, "invalid_file"),
    "no document": (form(b"a", "a.docx", source="en", target="de"), 422, 422, "invalid_file"),
    "a large file": (form(b"a" * 20_001, source="en", target="de"), 413, 413, "file_too_large"),
    "a large body": (form(b"a" * 60_000, source="en", target="de"), 413, 413, "request_too_large"),
    "much text": (form(b"a" * 3001, source="en", target="de"), 413, 413, "text_too_long"),
    "an unknown language": (form(b"a", source="en", target="xx"), 400, 404, "unknown_"),
    "no detector": (form(b"a", source="auto", target="de"), 501, 501, "no_detection"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_translated_is_refused_immediately(live: Any, name: str) -> None:
    asked, first, second, code = REFUSED[name]
    for path, status in (("/translate_file", first), ("/v1/files", second)):
        answer = live.ask("POST", path, **asked)
        assert answer.status == status, answer.body
        assert answer.json()["code"].startswith(code)


def test_the_form_of_libretranslate_requires_both_languages(live: Any) -> None:
    answer = live.ask("POST", "/translate_file", **form(b"a", target="de"))
    assert (answer.status, answer.json()["error"]) == (400, "Invalid request: missing source parameter")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../etc/passwd.txt", "passwd_de.txt"),
        ("C:\\x\\b.txt", "b_de.txt"),
        ("\u00e9 \u6f22.txt", "\u00e9 \u6f22_de.txt"),
        (".txt", None),
        ("a\x00\x1b.txt", "a_de.txt"),
        (f"{'a' * 250}.txt", f"{'a' * 100}_de.txt"),
        ("a;b.txt", "ab_de.txt"),
        (f"{'漢' * 120}.txt", f"{'漢' * 66}_de.txt"),
        (f"{'漢' * 255}.txt", f"{'漢' * 66}_de.txt"),
    ],
)
def test_a_file_name_is_shown_without_directories(live: Any, given: str, shown: str | None) -> None:
    answer = live.ask("POST", "/v1/files", **form(b"a", given))
    if shown is None:
        assert (answer.status, answer.json()["code"]) == (415, "unsupported_format")
        return
    assert finished_status(live, answer)["name"] == shown
    assert live.get(f"{answer.headers['Location']}/result").status == 200


def test_names_in_a_form_may_have_no_quotation_marks() -> None:
    head = b"--x\r\nContent-Disposition: form-data; name=file; filename=a.txt\r\n\r\nab\r\n--x--"
    request = Request({"type": "http", "headers": [(b"content-type", b"multipart/form-data; boundary=x")]})
    (part,) = form_parts(request, head)
    assert (part.name, part.file_name, part.value) == ("file", "a.txt", b"ab")


def test_one_client_does_not_take_all_places_of_uploads() -> None:
    async def four(clients: Sequence[str]) -> None:
        uploads = object.__new__(Uploads)
        reading: list[str] = []
        async with AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(uploads._turn(reading, client))

    asyncio.run(four(["a", "a", "a", "b"]))
    with pytest.raises(RequestError) as caught:
        asyncio.run(four(["a"] * 4))
    assert str(caught.value) == "3 of your uploads are waiting, expected at most 3; try later"


def test_a_long_file_name_may_be_percent_encoded(live: Any) -> None:
    name = quote("\u6f22" * 255 + ".txt")
    asked = form(b"a", "a.txt")
    body = asked["body"].replace(b'filename="a.txt"', f"filename*=UTF-8''{name}".encode())
    answer = live.ask("POST", "/v1/files", **{**asked, "body": body})
    assert finished_status(live, answer)["name"] == f"{'漢' * 66}_de.txt"


def test_a_file_name_beyond_all_file_systems_is_refused_by_its_missing_suffix(live: Any) -> None:
    answer = live.ask("POST", "/v1/files", **form(b"a", f"{'a' * 9000}.txt"))
    assert (answer.status, answer.json()["code"]) == (415, "unsupported_format")


def test_a_file_in_the_target_language_is_returned_unchanged(live: Any) -> None:
    answer = live.ask("POST", "/translate_file", **form(b"ein \xc3\xa9\n", source="de", target="de-AT"))
    address = urlsplit(answer.json()["translatedFileUrl"]).path
    assert live.get(address).body == b"ein \xc3\xa9\n"


@pytest.mark.parametrize("name", ["nope", "..%2f..%2fetc%2fpasswd", "%00", ".", "a.txt", "\u00e9".encode().hex()])
def test_an_unknown_id_is_404(live: Any, name: str) -> None:
    for path in (f"/download_file/{name}", f"/v1/files/{name}", f"/v1/files/{name}/result"):
        assert live.get(path).status == 404


def test_a_sentence_that_is_too_long_is_named_and_not_truncated(live: Any) -> None:
    found = finished_status(live, live.ask("POST", "/v1/files", **form(b"one .\ntwo\n" + b"a" * 60)))
    assert found["status"] == "failed"
    assert found["error"] == {
        "error": "file: sentence 3: a sentence has 60 tokens, expected at most 40",
        "code": "text_too_long",
        "field": "file",
    }
    answer = live.ask("POST", "/translate_file", **form(b"a" * 60, source="en", target="de"))
    assert (answer.status, answer.json()["code"]) == (422, "text_too_long")


class Echo:
    """Returns every text unchanged, after `let` is set."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.let.set()

    def size(self, item: Any) -> int:
        return 1

    def run(self, items: Any) -> list[Any]:
        self.let.wait(120)
        return [Translation(source=item.text, text=item.text) for item in items]


@contextmanager
def working(tmp_path: Path, queue: int = 2048, **limits: float) -> Iterator[tuple[Jobs, Callable[..., Any], Echo]]:
    """Yield a function that starts a file service, its scheduler and the echo worker."""
    scheduler = Scheduler(queue=queue, batch_tokens=100)
    jobs, echo = Jobs(scheduler, Limits(**limits), parent=tmp_path), Echo()

    def take(text: str = "a b.\n") -> Any:
        return jobs.submit(FileTask(name="a", suffix=".txt", data=text.encode(), language="en", work=lambda _: echo))

    try:
        yield jobs, take, echo
    finally:
        echo.let.set()
        jobs.close()
        scheduler.close(5)


def files(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.rglob("*") if path.is_file()]


def test_results_are_private_and_deleted_with_the_server(tmp_path: Path) -> None:
    with working(tmp_path) as (jobs, take, _):
        assert list(tmp_path.iterdir()) == []
        job = take()
        job.finished.result(120)
        path = jobs.result(job)
        assert path.read_text() == "a b.\n"
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert files(tmp_path) == [path]
    assert list(tmp_path.iterdir()) == []


def test_results_expire_without_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("translume.serving.files.jobs.SWEEP_SECONDS", 0.05)
    with working(tmp_path, kept_seconds=0.3) as (jobs, take, _):
        job = take()
        job.finished.result(120)
        assert jobs.find(job.id) is job
        deadline = time.monotonic() + 120
        while files(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert files(tmp_path) == []
        with pytest.raises(RequestError, match=r"^no such file, or it was deleted$"):
            jobs.find(job.id)


def test_the_oldest_results_are_deleted_for_new_ones(tmp_path: Path) -> None:
    with working(tmp_path, kept_bytes=10) as (jobs, take, _):
        first, second = take("abcdef"), take("ghijkl")
        second.finished.result(120)
        assert [path.name for path in files(tmp_path)] == [second.id]
        with pytest.raises(RequestError):
            jobs.find(first.id)
        large = take("abcdefghijk")
        with pytest.raises(
            RequestError, match=r"^there is no space for the translated file: it has 11 bytes, expected at most 10$"
        ) as caught:
            large.finished.result(120)
        assert caught.value.status == 507
        assert [path.name for path in files(tmp_path)] == [second.id]


def test_the_number_of_waiting_files_is_limited(tmp_path: Path) -> None:
    with working(tmp_path, files=2) as (_, take, echo):
        echo.let.clear()
        waiting = [take(), take()]
        with pytest.raises(RequestError) as caught:
            take()
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "queue_full", 10)
        assert str(caught.value) == "2 files are waiting, expected at most 2; try later"
        echo.let.set()
        for job in waiting:
            job.finished.result(120)
        take().finished.result(120)


def test_deleted_files_are_not_translated(tmp_path: Path) -> None:
    with working(tmp_path) as (jobs, take, echo):
        echo.let.clear()
        first, second = take(), take()
        jobs.delete(first)
        jobs.delete(second)
        echo.let.set()
        take().finished.result(120)
        assert len(files(tmp_path)) == 1


def test_a_client_that_disconnects_cancels_its_file(tmp_path: Path) -> None:
    async def go(job: Any) -> None:
        waiting = asyncio.wrap_future(job.finished)
        await asyncio.sleep(0.05)
        waiting.cancel()

    with working(tmp_path) as (jobs, take, echo):
        echo.let.clear()
        job = take()
        asyncio.run(go(job))
        echo.let.set()
        take().finished.result(120)
        with pytest.raises(RequestError, match=r"^no such file, or it was deleted$"):
            jobs.find(job.id)
        assert len(files(tmp_path)) == 1


def test_a_file_has_a_deadline(tmp_path: Path) -> None:
    with working(tmp_path, file_seconds=0.3) as (_, take, echo):
        echo.let.clear()
        job = take()
        with pytest.raises(RequestError) as caught:
            job.finished.result(120)
        assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")


def test_a_file_waits_until_the_queue_has_room(tmp_path: Path) -> None:
    with working(tmp_path, queue=100, lines=100, texts=50) as (jobs, take, echo):
        echo.let.clear()
        crowd = jobs._scheduler.submit(echo, [type("Item", (), {"text": "x"})] * 60, 30)
        job = take("a b.\n" * 90)
        deadline = time.monotonic() + 120
        while job.status == "waiting":  # its process is starting
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)
        assert job.status == "working"
        echo.let.set()
        job.finished.result(120)
        assert jobs.result(job).read_text() == "a b.\n" * 90
        assert all(each.result(120) for each in crowd)


def test_a_full_disk_gives_a_one_line_error_and_leaves_no_partial_file(
    tmp_path: Path, full_disk: Callable[[], AbstractContextManager[None]]
) -> None:
    with working(tmp_path) as (_, take, _echo):
        take().finished.result(120)
        before = files(tmp_path)

        with full_disk():
            job = take()
            with pytest.raises(
                RequestError, match=r"^there is no space for the translated file: try a smaller one, or later$"
            ) as caught:
                job.finished.result(120)
        assert (caught.value.status, caught.value.code) == (507, "no_space")
        assert files(tmp_path) == before
        take().finished.result(120)


def test_no_room_for_the_folder_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    scheduler = Scheduler(queue=10, batch_tokens=10)
    jobs = Jobs(scheduler, Limits(), parent=tmp_path / "file")
    with pytest.raises(RequestError, match=r"^there is no space for the translated file: try later$"):
        jobs.submit(FileTask(name="a", suffix=".txt", data=b"", language="en", work=lambda _: Echo()))
    jobs.close()
    scheduler.close(5)


def test_shutdown_cancels_files_in_progress(tmp_path: Path) -> None:
    with working(tmp_path) as (jobs, take, echo):
        echo.let.clear()
        doing, waiting = take(), take()
        jobs.close()
        for job in (doing, waiting):
            with pytest.raises(RequestError, match=r"^the server is shutting down; use another one$"):
                job.finished.result(120)
        with pytest.raises(RequestError, match=r"^the server is shutting down; use another one$"):
            take()
    assert list(tmp_path.iterdir()) == []


def test_an_unexpected_error_is_reported_without_its_message(tmp_path: Path) -> None:
    with working(tmp_path) as (jobs, take, echo):
        echo.run = lambda items: 1 / 0  # type: ignore[assignment]  # a fault
        job = take()
        with pytest.raises(RequestError) as caught:
            job.finished.result(120)
        assert caught.value.status == 500
        assert "division" not in str(caught.value)
        assert jobs.find(job.id).status == "failed"


def test_folders_of_dead_servers_are_removed_and_those_of_live_ones_kept(tmp_path: Path) -> None:
    dead = tmp_path / f"{FOLDER_PREFIX}dead"
    dead.mkdir()
    (dead / "file").write_text("a")
    (tmp_path / "other").mkdir()
    (tmp_path / f"{FOLDER_PREFIX}link").symlink_to(tmp_path / "other")
    first = PrivateFolder(tmp_path)
    second = PrivateFolder(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {first.path.name, second.path.name, "other", f"{FOLDER_PREFIX}link"}
    first.close()
    second.close()
    assert {path.name for path in tmp_path.iterdir()} == {"other", f"{FOLDER_PREFIX}link"}


def test_uploads_are_documented_as_multipart_form_data(live: Any) -> None:
    described = json.loads(live.get("/openapi.json").body)["paths"]
    for path, method in (("/v1/files", "post"), ("/translate_file", "post")):
        assert list(described[path][method]["requestBody"]["content"]) == ["multipart/form-data"]
