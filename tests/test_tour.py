"""docs/tour.md lists the functions that a translation calls, in the order of their calls."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from translume.checkpoint import Checkpoint, build_model, save_model
from translume.cli import main
from translume.config import Config, ModelSettings, TokenizerSettings
from translume.engine.layers import Layers
from translume.engine.sources import SourceKernels
from translume.kernels.loading import has_kernels
from translume.text import train_tokenizer
from translume.translator import Translator

TOUR = Path(__file__).resolve().parents[1] / "docs" / "tour.md"
STOP = re.compile(r"^\*\*(\d+)\. .*?(?=^\*\*\d+\. |^The loop then|^## )", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\[`([\w.]+)`\]\(\.\./src/(translume/[\w/]+)\.py\)")
SOURCE = "a man is here. he sees a dog."


@pytest.fixture(scope="module")
def translator() -> Translator:
    characters = TokenizerSettings(kind="character", size=40, unknown="token")
    tokenizer = train_tokenizer(characters, ["abcdefghijklmnopqrstuvwxyz ."])
    settings = ModelSettings(width=32, feed_forward=64, encoder_layers=1, decoder_layers=1, attention_heads=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = build_model(settings, len(tokenizer), len(tokenizer)).eval()
    config = Config(model=settings).change("decoding.beam=3", "decoding.max_length=9")
    return Translator(Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer))


def functions_of(stop: int) -> dict[str, CodeType]:
    """Return the functions and methods that a stop of the tour names, in order, without classes."""
    text = next(match[0] for match in STOP.finditer(TOUR.read_text(encoding="utf-8")) if int(match[1]) == stop)
    found = {}
    for name, path in NAME.findall(text):
        value: Any = importlib.import_module(path.replace("/", ".").removesuffix(".__init__"))
        for part in name.split("."):
            value = getattr(value, part)
        value = getattr(value, "callback", value)  # the function of a command
        if not inspect.isclass(value):
            found[name] = inspect.unwrap(value).__code__
    return found


def calls_of(run: Callable[[], object]) -> list[CodeType]:
    """Return the functions that `run` calls, in the order of their first calls."""
    called: dict[CodeType, None] = {}

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.setdefault(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return list(called)


def check(run: Callable[[], object], stops: range) -> None:
    named = {f"{stop}: {name}": code for stop in stops for name, code in functions_of(stop).items()}
    assert len(named) >= len(stops), "a stop names no function"
    called = calls_of(run)
    assert [name for name, code in named.items() if code not in called] == []
    assert sorted(named, key=lambda name: called.index(named[name])) == list(named)


@pytest.fixture
def command(translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Return what runs `translume translate` for a saved model, all of whose layers the kernels compute."""
    save_model(tmp_path / "model", translator.checkpoint)
    words = ["translate", str(tmp_path / "model"), "--device", "cpu"]
    return lambda: CliRunner().invoke(main, words, input=f"{SOURCE}\n", catch_exceptions=False)


@pytest.mark.skipif(not has_kernels(), reason="no kernels")
def test_a_translation_with_the_kernels_follows_stops_1_to_6(command: Callable[[], object]) -> None:
    check(command, range(1, 7))


@pytest.mark.skipif(not has_kernels(), reason="no kernels")
def test_eight_calls_in_five_files_lie_between_the_command_and_the_first_kernel(command: Callable[[], object]) -> None:
    kernels = SourceKernels.read.__code__, Layers.encode.__code__
    paths: list[list[CodeType]] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in kernels:
            path = [each.f_code for each, _ in walk_stack(frame) if "/src/translume/" in each.f_code.co_filename]
            path = [code for code in path if not code.co_filename.endswith("/lazy.py")]  # of a context of torch
            paths.append(path[: [code.co_name for code in path].index("command") + 1])

    sys.setprofile(profile)
    try:
        command()
    finally:
        sys.setprofile(None)
    # `translate_all` returns an iterator, so it is no longer on the stack.
    assert len(paths[0]) + 1 <= 8, [code.co_name for code in paths[0]]
    assert len({code.co_filename for code in paths[0]}) <= 5


def test_a_translation_in_pytorch_follows_stops_7_to_10(translator: Translator) -> None:
    check(lambda: translator.translate(SOURCE), range(7, 11))
