"""The benchmark of GPUs where there is none: what it counts, and a row at a toy size."""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(python: Path, *words: str) -> str:
    found = subprocess.run(
        [python, "benchmarks/gpu.py", *words], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return found.stdout


def test_an_update_and_a_step_have_few_operations_and_no_reads(warm_python: Path) -> None:
    found = json.loads(run(warm_python, "--count"))
    assert found["updates"] == 4
    assert found["steps"] == 16
    assert found["update_reads"] == found["step_reads"] == found["shapes_outside_buckets"] == 0
    assert found["shapes"] <= 16
    assert 700 < found["update_operations"] <= 1200
    assert 700 < found["update_operations_bf16"] <= 1700
    assert 100 < found["step_operations_greedy"] <= found["step_operations"] <= 250


def test_a_row_runs_on_a_cpu_and_is_kept(tmp_path: Path, warm_python: Path) -> None:
    out = tmp_path / "gpu.jsonl"
    printed = run(warm_python, "--device", "cpu", "--short", "--only", "tiny", "--out", str(out))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["row"] for each in rows] == ["tiny"]
    assert "tiny: " in printed
    assert rows[0]["rates"]["ours"] > 0
    assert rows[0]["losses"]["fp32"] < 1e-3
    assert 0 <= rows[0]["padding"] < 1
    assert rows[0]["met"] is None
