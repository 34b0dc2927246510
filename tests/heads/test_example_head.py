"""The example head of docs/adding.md: one module, its settings, and its name in the union."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
PROGRAM = """
import os, runpy, sys
sys.path.insert(0, os.path.abspath("src"))
for name in [name for name in sys.modules if name.partition(".")[0] == "translume"]:
    del sys.modules[name]
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs `python -m` with the translume in src/: the one that this Python has imported is another."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources with the page's head added."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "heads", folder / "tests" / "heads")
    page = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
    snippet = page[page.index("class ScaledSettings(HeadKind)") : page.index("head = ScaledHead(")]
    settings, head = snippet.split("class ScaledHead(Head)")
    heads = folder / "src" / "translume" / "config" / "heads.py"
    text = heads.read_text(encoding="utf-8")
    text = text.replace("def _softmax_unless_named", f"{settings.strip()}\n\n\ndef _softmax_unless_named", 1)
    text, listed = re.subn(r"(HeadSettings = Annotated\[\n +)", r"\1ScaledSettings | ", text)
    assert listed == 1
    heads.write_text(text, encoding="utf-8")
    imports = page[page.index("import torch\nfrom torch import Tensor, nn") : page.index("class ScaledSettings")]
    (heads.parents[1] / "heads" / "scaled.py").write_text(
        f"{imports.replace('import HeadKind', 'import HeadKind as ScaledSettings')}\n\nclass ScaledHead(Head){head}",
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="module")
def run(checkout, warm_python):
    """Return a function that runs a module with the package of the checkout."""

    def ran(*words):
        done = subprocess.run(
            [warm_python, "-c", PROGRAM, *words], cwd=checkout, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return ran


def test_the_example_head_passes_the_contract_tests(run):
    words = ("pytest", "tests/heads/test_contract.py", "-q", "--import-mode=importlib", "-k", "scaled")
    told = run(*words, "-p", "no:cacheprovider")
    passed = re.search(r"(\d+) passed", told)
    assert passed is not None
    assert int(passed.group(1)) >= 15
    assert "failed" not in told


def test_the_example_head_appears_in_the_heads_table(checkout, run):
    words = [("a house", "ein Haus"), ("a boat", "ein Boot"), ("two cats", "zwei Katzen"), ("bread", "Brot")] * 30
    for place, language in enumerate(("en", "de")):
        (checkout / f"train.{language}").write_text("".join(f"{pair[place]}\n" for pair in words))
    (checkout / "small.toml").write_text(
        'data.train_source = "train.en"\ndata.train_target = "train.de"\n'
        'data.valid_source = "train.en"\ndata.valid_target = "train.de"\n'
        'tokenizer = {kind = "character", size = 300}\n'
        "model = {width = 14, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 7}\n"
        "training = {updates = 4, max_tokens = 512, warmup_updates = 2}\n"
        'decoding = {strategy = "greedy", max_length = 13}\n'
    )
    words = ("translume", "heads", "small.toml", "--kinds", "scaled", "--threads", "1", "--sentences", "5")
    table = run(*words)
    assert re.search(r"^\W*scaled\W", table, re.MULTILINE), table
