"""Workers give the same translations as a single process."""

from pathlib import Path

import pytest

import translume.translator
from translume.translator import Workers

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.mark.parametrize(
    ("words", "engine", "plain"),
    [
        (["--engine", "plain"], None, "fp32"),
        (["--dtype", "bf16"], "bf16", "fp32"),
        (["--engine", "plain", "--dtype", "bf16"], None, "bf16"),
        (["--engine", "fast", "--dtype", "bf16"], "bf16", "fp32"),
    ],
)
def test_workers_use_the_requested_engine_and_dtype(
    run, files: Path, monkeypatch, words: list[str], engine: str | None, plain: str
) -> None:
    assert run("train", files / "en-de.toml", "--out", files / "model").exit_code == 0
    asked = []

    class Told(Workers):
        def __init__(self, folder, count, dtype=None, plain="fp32"):
            asked.append((count, dtype, plain))
            super().__init__(folder, 1, dtype, plain)  # another process would take two more seconds

    monkeypatch.setattr(translume.translator, "Workers", Told)
    found = run("translate", files / "model", *words, "--workers", "2", text="")
    assert (found.exit_code, found.stdout) == (0, "")
    assert asked == [(2, engine, plain)]
