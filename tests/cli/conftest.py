"""Fixtures: a runner for the command line, and small parallel files."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translume.cli import main

Type = Callable[..., Result]
PROGRAM = """
from translume.cli import main
main(prog_name="translume")
"""


@pytest.fixture(scope="session")
def command(warm_python: Path) -> list[str]:
    """Return the command line of `translume` in a process of its own."""
    return [str(warm_python), "-c", PROGRAM]


@pytest.fixture(scope="session")
def run() -> Type:
    """Return a function that runs `translume WORDS` with text on standard input."""

    def typed(*words: str | Path, text: str | None = None) -> Result:
        return CliRunner().invoke(main, [str(word) for word in words], input=text, prog_name="translume")

    return typed


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with train.en, train.de and en-de.toml; targets are the words spelled backwards."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
    sources = [f"{first} {second}" for first in words for second in words]
    (tmp_path / "train.en").write_text("".join(f"{text}\n" for text in sources), encoding="utf-8")
    (tmp_path / "train.de").write_text("".join(f"{text[::-1]}\n" for text in sources), encoding="utf-8")
    (tmp_path / "en-de.toml").write_text(
        """
[data]
source_language = "en"
target_language = "de"
train_source = "train.en"
train_target = "train.de"
[tokenizer]
kind = "character"
size = 300
[model]
width = 12
feed_forward = 17
encoder_layers = 1
decoder_layers = 1
attention_heads = 2
[training]
updates = 7
max_tokens = 256
warmup_updates = 2
validate_every = 5
save_every = 5
precision = "fp32"
""",
        encoding="utf-8",
    )
    return tmp_path


@pytest.fixture(scope="session")
def train_for_a_moment() -> Callable[..., Path]:
    """Return a function that trains models (seeds by name) in a folder with twelve pairs, a.en and a.de."""

    def trained(folder: Path, **seeds: int) -> Path:
        sources = [f"{first} {second}" for first in ("ab", "cde", "fgh") for second in ("kl", "mno", "a", "b")]
        for name, texts in (("a.en", sources), ("a.de", [text.upper() for text in sources])):
            (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        settings = """
data = {train_source = "a.en", train_target = "a.de", valid_source = "a.en", valid_target = "a.de"}
tokenizer = {kind = "character", size = 300}
model = {width = 12, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 2}
training = {updates = 5, max_tokens = 512, warmup_updates = 2, validate_every = 5, save_every = 5, precision = "fp32"}
"""
        (folder / "a.toml").write_text(settings, encoding="utf-8")
        for name, seed in seeds.items():
            words = ["train", str(folder / "a.toml"), "--out", str(folder / name), "--threads", "1"]
            words += ["--set", f"training.seed={seed}"]
            result = CliRunner().invoke(main, words, prog_name="translume", catch_exceptions=False)
            assert result.exit_code == 0, result.stderr
        return folder

    return trained
