"""A sample of the cases of benchmarks/fuzz_cli.py: no traceback, no hang, no incomplete file, a known exit code."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_broken_streams_damaged_files_and_absurd_numbers_are_answered_in_one_line(warm_python: Path) -> None:
    words = [str(warm_python), str(ROOT / "benchmarks" / "fuzz_cli.py"), "--cases", "12", "--seed", "3", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["cases"], found["faults"]) == (12, 0)
