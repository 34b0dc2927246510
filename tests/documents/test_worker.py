"""The process that reads documents limits its memory where the system can."""

import subprocess
import sys

import pytest

from translume.documents import worker


def test_the_process_says_so_where_memory_cannot_be_limited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    worker._limit_memory()
    assert capsys.readouterr().err == "warning: the memory of the process that reads documents is not limited\n"


def test_more_memory_than_the_limit_cannot_be_had() -> None:
    code = "from translume.documents import worker; worker._limit_memory(); bytearray(worker.MEMORY_BYTES)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == "MemoryError"
