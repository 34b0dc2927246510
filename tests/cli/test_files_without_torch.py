"""Files, several processes and prompts on the command line, where no process can import torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.generators import untrained_generator
from tests.translator.conftest import untrained

from translume.checkpoint import save_model
from translume.config import TokenizerSettings
from translume.kernels.loading import has_kernels
from translume.text import train_tokenizer
from translume.translator import load

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")

TOKENS = ["abcdefghij .!"]
TEXT = "abc de\nf g hij\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a translator and the file a.md, and a `sitecustomize` without torch."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), TOKENS)
    save_model(folder / "model", untrained(tokenizer, tokenizer, "decoding.beam=3", max_positions=40).checkpoint)
    (folder / "a.md").write_text(TEXT.replace("\n", "\n\n"), encoding="utf-8")
    (folder / "a.txt").write_text(TEXT, encoding="utf-8")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n", encoding="utf-8")
    return folder


def translume(folder: Path, *words: str, text: str = "") -> str:
    """Run a command in the folder, and return its output."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "translume", *words, "--device", "cpu"],
        **{"input": text, "capture_output": True, "text": True, "cwd": folder, "check": False},
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """The translations of both lines by torch."""
    plain = load(folder / "model", device="cpu", engine="plain")
    return [plain.translate(line).text for line in TEXT.splitlines()]


def test_a_document_is_translated(folder: Path, expected: list[str]) -> None:
    assert translume(folder, "translate", "model", "a.md").split("\n\n") == [*expected, ""]


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_files_are_translated_in_bulk(folder: Path, expected: list[str], options: tuple[str, ...]) -> None:
    out = f"out{len(options)}"
    translume(folder, "translate", "model", "--input", "a.txt", "--output", out, *options)
    assert (folder / out / "a.txt").read_text(encoding="utf-8").splitlines() == expected


def test_prompts_are_continued(folder: Path) -> None:
    generator = untrained_generator(TOKENS, width=32, feed_forward=48, attention_heads=2)
    save_model(folder / "generator", generator.checkpoint)
    assert translume(folder, "generate", "generator", "abc") == f"abc{generator.generate('abc').text}\n"
