"""The example head of docs/adding.md, in a file of its own: the contract tests and the table of heads have it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from translume.parts import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's head in the file scaled.py."""
    folder = tmp_path_factory.mktemp("outside")
    page = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
    start = page.index("from typing import ClassVar, Literal")
    (folder / "scaled.py").write_text(page[start : page.index("head = ScaledHead(")], encoding="utf-8")
    return folder


def ran(*words, cwd, **variables):
    """Return what a program prints."""
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_example_head_passes_the_contract_tests(folder):
    words = ("-m", "pytest", "tests/heads/test_contract.py", "-q", "-k", "scaled", "-p", "no:cacheprovider")
    told = ran(sys.executable, *words, cwd=ROOT, **{VARIABLE: str(folder / "scaled.py")})
    passed = re.search(r"(\d+) passed", told)
    assert passed is not None
    assert int(passed.group(1)) >= 15
    assert "failed" not in told


def test_the_example_head_appears_in_the_heads_table(folder, warm_python):
    words = [("a house", "ein Haus"), ("a boat", "ein Boot"), ("two cats", "zwei Katzen"), ("bread", "Brot")] * 30
    for place, language in enumerate(("en", "de")):
        (folder / f"train.{language}").write_text("".join(f"{pair[place]}\n" for pair in words))
    (folder / "small.toml").write_text(
        'data.train_source = "train.en"\ndata.train_target = "train.de"\n'
        'data.valid_source = "train.en"\ndata.valid_target = "train.de"\n'
        'tokenizer = {kind = "character", size = 300}\n'
        "model = {width = 14, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 7}\n"
        "training = {updates = 4, max_tokens = 512, warmup_updates = 2}\n"
        'decoding = {strategy = "greedy", max_length = 13}\n'
    )
    words = ("small.toml", "--import", "scaled.py", "--kinds", "scaled", "--threads", "1", "--sentences", "5")
    table = ran(warm_python, "-m", "translume", "heads", *words, cwd=folder)
    assert re.search(r"^\W*scaled\W", table, re.MULTILINE), table
