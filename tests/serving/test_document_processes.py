"""Documents are read and written in processes of their own, with a deadline and a memory limit."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.documents.files import FORMATS
from translume.documents.segments import Mark, Segment
from translume.documents.worker import decode_segment, encode_segment
from translume.errors import DocumentError
from translume.serving.api.errors import RequestError
from translume.serving.files.documents import DocumentProcesses

PAGE = b"<p>a <b>man</b> runs</p><p>two</p>"


@pytest.fixture
def processes() -> Iterator[DocumentProcesses]:
    found = DocumentProcesses(20.0)
    yield found
    found.close()


def test_a_process_reads_and_writes_what_the_document_would(processes: DocumentProcesses) -> None:
    page = FORMATS[".html"].read(PAGE)
    segments = processes.read(".html", PAGE, 100)
    assert [(each.runs, each.marks) for each in segments] == [(each.runs, each.marks) for each in page.segments]
    runs = [tuple(run.upper() for run in each.runs) for each in segments]
    assert (
        processes.write(".html", PAGE, runs)
        == page.with_runs(runs)
        == PAGE.replace(b"a <b>man", b"A <b>MAN").replace(b"runs", b"RUNS").replace(b"two", b"TWO")
    )


@given(st.lists(st.tuples(st.text(), st.sampled_from(Mark)), min_size=1))
@settings(max_examples=50, deadline=None)
def test_segments_survive_their_json_values(parts: list[tuple[str, Mark]]) -> None:
    segment = Segment(runs=tuple(run for run, _ in parts), marks=tuple(mark for _, mark in parts[1:]))
    assert decode_segment(encode_segment(segment)) == segment


def test_an_invalid_document_and_too_much_text_are_refused(processes: DocumentProcesses) -> None:
    with pytest.raises(DocumentError, match=r"^it is not a Word document \(docx\), or it is damaged$"):
        processes.read(".docx", b"a", 100)
    with pytest.raises(RequestError, match=r"^file: found 101 characters, expected at most 100$") as raised:
        processes.read(".txt", b"a" * 101, 100)
    assert (raised.value.status, raised.value.code) == (413, "text_too_long")
    assert len(processes.read(".txt", b"a", 100)) == 1


def test_a_document_that_takes_too_long_is_given_up_and_its_process_killed() -> None:
    processes = DocumentProcesses(0.3)
    started = time.monotonic()
    with pytest.raises(RequestError, match=r"^file: not processed after 0\.3 s$") as raised:
        processes.read(".html", b"<b>a" * 450_000, 10**6)
    assert (raised.value.status, raised.value.code) == (422, "file_too_complex")
    assert time.monotonic() - started < 30
    processes.close()


def test_a_process_that_is_killed_fails_only_its_document(processes: DocumentProcesses) -> None:
    processes.read(".txt", b"a", 100)
    (child,) = processes._idle
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert len(processes.read(".txt", b"a", 100)) == 1
    (child,) = processes._idle
    threading.Timer(0.05, os.kill, (child.pid, signal.SIGKILL)).start()
    with pytest.raises(RequestError, match=r"^file: the process that read it ended$") as raised:
        processes.read(".html", b"<b>a" * 450_000, 10**6)
    assert raised.value.status == 422


def test_reading_stops_when_its_request_is_cancelled(processes: DocumentProcesses) -> None:
    def cancelled() -> None:
        raise RequestError(499, "the file was cancelled")

    with pytest.raises(RequestError, match=r"^the file was cancelled$"):
        processes.read(".txt", b"a", 100, cancelled)
