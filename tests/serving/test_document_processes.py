"""Documents are read and written in processes of their own, with a deadline and a memory limit."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from translume.documents import FORMATS
from translume.errors import DocumentError
from translume.serving.api.errors import RequestError
from translume.serving.files import parsing
from translume.serving.files.documents import DOCUMENTS, DocumentProcesses

PAGE = b"<p>a <b>man</b> runs</p><p>two</p>"
SLOW = b"<b>a" * 450_000


def run(test: Callable[[DocumentProcesses], Awaitable[None]], seconds: float = 20.0) -> None:
    async def within() -> None:
        processes = DocumentProcesses(seconds)
        try:
            await test(processes)
        finally:
            processes.close()

    asyncio.run(within())


def test_a_process_reads_and_writes_what_the_document_would() -> None:
    async def test(processes: DocumentProcesses) -> None:
        page = FORMATS[".html"].read(PAGE)
        segments, _ = await processes.read(".html", PAGE, 100)
        assert [(each.runs, each.marks) for each in segments] == [(each.runs, each.marks) for each in page.segments]
        runs = [tuple(run.upper() for run in each.runs) for each in segments]
        expected = PAGE.replace(b"a <b>man", b"A <b>MAN").replace(b"runs", b"RUNS").replace(b"two", b"TWO")
        assert await processes.write(".html", PAGE, runs) == page.with_runs(runs) == expected

    run(test)


def test_an_invalid_document_and_too_much_text_are_rejected() -> None:
    async def test(processes: DocumentProcesses) -> None:
        with pytest.raises(DocumentError, match=r"^it is not a Word document \(docx\), or it is damaged$"):
            await processes.read(".docx", b"a", 100)
        with pytest.raises(RequestError, match=r"^file: found 101 characters, expected at most 100$") as raised:
            await processes.read(".txt", b"a" * 101, 100)
        assert (raised.value.status, raised.value.code) == (413, "text_too_long")
        assert len((await processes.read(".txt", b"a", 100))[0]) == 1

    run(test)


def test_a_document_that_takes_too_long_is_given_up_and_its_process_killed() -> None:
    async def test(processes: DocumentProcesses) -> None:
        started = time.monotonic()
        with pytest.raises(RequestError, match=r"^file: not processed after 0\.3 s$") as raised:
            await processes.read(".html", SLOW, 10**6)
        assert (raised.value.status, raised.value.code) == (422, "file_too_complex")
        assert time.monotonic() - started < 30

    run(test, 0.3)


def test_a_process_that_is_killed_fails_only_its_document() -> None:
    async def test(processes: DocumentProcesses) -> None:
        await processes.read(".txt", b"a", 100)
        process = processes._idle[DOCUMENTS]
        asyncio.get_running_loop().call_later(0.05, os.kill, process._id, signal.SIGKILL)
        with pytest.raises(RequestError, match=r"^file: the process that read it ended$") as raised:
            await processes.read(".html", SLOW, 10**6)
        assert raised.value.status == 422
        assert len((await processes.read(".txt", b"a", 100))[0]) == 1

    run(test)


def test_reading_ends_with_its_request() -> None:
    async def test(processes: DocumentProcesses) -> None:
        await processes.read(".txt", b"a", 100)
        reading = asyncio.ensure_future(processes.read(".html", SLOW, 10**6))
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.wait([reading])
        assert (reading.cancelled(), DOCUMENTS in processes._idle) == (True, False)

    run(test)


def test_a_document_that_takes_too_much_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(content: bytes) -> None:
        raise MemoryError

    monkeypatch.setitem(FORMATS, ".txt", type("Greedy", (), {"read": staticmethod(read), "encoded": False}))
    items = ((parsing.read_document, (".txt", b"", "", 1)), (parsing.write_document, (".txt", b"", "", "", [])))
    for function, item in items:
        with pytest.raises(DocumentError, match=r"^reading it takes more than 1,073,741,824 bytes of memory$"):
            function(0, item)  # type: ignore[operator]


def test_a_process_says_so_where_memory_cannot_be_limited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    monkeypatch.setattr("os.nice", lambda _: 0)
    parsing.start("json")
    assert capsys.readouterr().err == "warning: the memory of the process that reads files is not limited\n"


def test_a_process_cannot_have_more_memory_than_the_limit() -> None:
    code = "from translume.serving.files import parsing; parsing.start('json'); bytearray(parsing.MEMORY_BYTES + 2**26)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == "MemoryError"
