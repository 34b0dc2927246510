"""One process trains in a folder at a time."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from translume.checkpoint import FolderLock
from translume.errors import TrainingError

HOLDER = """
import os
import sys
from pathlib import Path
from translume.checkpoint.folder import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_lock_error_names_the_process_that_holds_the_folder(tmp_path: Path, warm_python: Path) -> None:
    folder = tmp_path / "models" / "m"
    with subprocess.Popen(
        [warm_python, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        with pytest.raises(TrainingError) as caught:
            FolderLock(folder)
        assert str(caught.value) == (
            f"{folder}: process {pid} trains in it; wait until it has ended or choose another folder"
        )
        os.kill(pid, signal.SIGKILL)
        holder.wait()
    with FolderLock(folder):
        assert (folder / ".lock").read_text() == f"{os.getpid()}\n"


def test_process_cannot_lock_a_folder_twice(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        with pytest.raises(TrainingError) as caught:
            FolderLock(tmp_path / "." / ".." / tmp_path.name)
        assert str(caught.value) == f"{tmp_path}/../{tmp_path.name}: this process already trains in it"
    FolderLock(tmp_path).close()
