"""The model that comes with Translume: small, without local paths, and as exact as its card says."""

import subprocess
import sys
from pathlib import Path

import pytest

import translume
from translume.checkpoint import read_config, verify
from translume.checkpoint.folder import DEMO, model_folder
from translume.experiments.demo import make_corpus

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from translume.cli import main; main(['translate', 'demo'])"


def test_the_demo_is_found_by_its_name_unless_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_folder("demo") == DEMO
    assert model_folder("models/demo") == Path("models/demo")
    (tmp_path / "demo").mkdir()
    assert model_folder("demo") == Path("demo")


def test_the_demo_is_small_intact_and_names_no_local_path() -> None:
    verify(DEMO)
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= 1_500_000
    data = read_config(DEMO).data
    assert (*data.train_source, *data.train_target) == ("train.en", "train.zh")


def test_the_demo_translates_from_the_command_line_without_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], input="The village has 4,909 inhabitants.\n",
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "这个村庄有4,909个居民。\n"), done.stderr


def test_the_demo_is_as_exact_as_its_card_says() -> None:
    pairs = make_corpus("en", "zh").test[:300]
    found = translume.load("demo", device="cpu").translate_all([source for source, _ in pairs])
    right = sum(translation.text == target for translation, (_, target) in zip(found, pairs, strict=True))
    assert right >= 0.96 * len(pairs)
