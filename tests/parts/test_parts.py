"""Parts from a file outside the package: trained, resumed, measured, translated, inspected, served and exported."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient

import translume
from translume import parts
from translume.cli.group import main
from translume.config import Config
from translume.errors import SettingsError
from translume.parts import INTERFACE, KINDS, VARIABLE, find, load_parts, names, part, table_of
from translume.serving.api.app import build_app
from translume.serving.models import ServedModel, ServedModels
from translume.serving.server import Server

FILE = Path(__file__).parent / "everything.py"
SETTINGS = """
[data]
train = ["train.tsv"]
valid = ["train.tsv"]
[tokenizer]
kind = "character"
size = 300
[model]
width = 16
feed_forward = 23
attention_heads = 2
encoder_layers = 1
decoder_layers = 1
positions = "linear"
normalization = "power"
attention = "warm"
feed_forward_kind = "square"
dropout = 0.0
head = {kind = "cosine", scale = 5.0}
options.power.power = 3.0
[training]
updates = 4
save_every = 2
validate_every = 2
max_tokens = 256
precision = "fp32"
objective = "focal"
optimizer = "momentum"
schedule = "linear"
metric = "length"
[evaluation]
metrics = ["length", "exact_match"]
[decoding]
strategy = "narrow"
rules = ["no_repeat"]
max_length = 13
[plugins]
modules = ["everything.py"]
"""
OUTSIDE = {
    "head": "cosine", "position": "linear", "norm": "power", "attention": "warm", "feed_forward": "square",
    "objective": "focal", "optimizer": "momentum", "schedule": "linear", "metric": "length", "strategy": "narrow",
    "rule": "no_repeat", "document": ".say", "export": "numpy", "command": "hello",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with settings and data, beside the file of parts; the parts go at the end."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / FILE.name).write_bytes(FILE.read_bytes())
    random.seed(7)
    lines = ["".join(random.choice("abcde ") for _ in range(random.randint(2, 9))).strip() or "a" for _ in range(61)]
    (folder / "train.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    (folder / "all.toml").write_text(SETTINGS)
    yield folder
    for kind, name in OUTSIDE.items():
        table_of(kind).pop(name, None)
    parts._modules.clear()
    sys.modules.pop("everything", None)
    sys.path.remove(str(folder))
    os.environ.pop(VARIABLE, None)


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """The model of all parts, trained by the command line."""
    out = folder / "model"
    main(["train", str(folder / "all.toml"), "--out", str(out), "--threads", "1"], standalone_mode=False)
    return out


def ran(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints."""
    capsys.readouterr()
    main(words, standalone_mode=False)
    return capsys.readouterr().out


def test_every_part_of_ours_is_found_in_its_table() -> None:
    for kind in KINDS:
        for name in names(kind):
            assert find(kind, name) is not None, (kind, name)


def test_a_model_of_outside_parts_is_trained_resumed_and_measured(model: Path, folder: Path, capsys) -> None:
    config = translume.load(model).config
    chosen = config.model.head.kind, config.model.positions, config.training.optimizer
    assert chosen == ("cosine", "linear", "momentum")
    assert config.plugins.identities["everything"].startswith("3.1 sha256:")
    rows = [json.loads(line) for line in (model / "history.jsonl").read_text().splitlines()]
    assert "length" in json.dumps(rows)
    halves, words = folder / "halves", ["train", str(folder / "all.toml"), "--threads", "1", "--out"]
    ran([*words, str(halves), "--set", "training.updates=2", "--set", "training.schedule=constant"], capsys)
    whole = folder / "whole"
    ran([*words, str(halves), "--set", "training.schedule=constant"], capsys)
    ran([*words, str(whole), "--set", "training.schedule=constant"], capsys)
    one, other = (translume.load(each).checkpoint.model.state_dict() for each in (halves, whole))
    assert all(torch.equal(one[name], other[name]) for name in one)
    (folder / "source").write_text("abc\nde a\n")
    told = ran(["evaluate", str(model), str(folder / "source"), str(folder / "source")], capsys)
    assert "length|unit:characters" in told


def test_it_translates_inspects_serves_and_exports(model: Path, folder: Path, capsys) -> None:
    translator = translume.load(model, plugins=[str(folder / FILE.name)])
    found = translator.translate("abc", nbest=2)
    assert len(found.hypotheses) == 2
    assert all(a != b for each in found.hypotheses for a, b in zip(each.tokens, each.tokens[1:], strict=False))
    engine = json.loads(ran(["show", str(model), "--engine", "--json"], capsys))
    assert "model." in json.dumps(engine)
    trace = json.loads(ran(["inspect", "text", str(model), "abc", "--json"], capsys))
    assert "attention" in json.dumps(trace)
    served = ServedModels([ServedModel.from_model("all", translator)])
    with TestClient(build_app(Server(models=served)), "http://localhost") as client:
        assert client.post("/v1/translate", json={"text": "abc"}).status_code == 200
    (folder / "a.say").write_text("abc\n")
    ran(["translate", str(model), str(folder / "a.say"), "--out", str(folder / "b.say")], capsys)
    assert (folder / "b.say").exists()
    ran(["export", str(model), "numpy", str(folder / "exported")], capsys)
    assert (folder / "exported" / "weights.npz").exists()
    with pytest.raises(SettingsError, match=r"model\.head\.kind: found .cosine., expected a linear map"):
        translume.export(model, "ctranslate2", folder / "other")
    assert ran(["hello"], capsys) == "hello\n"


def test_a_model_folder_imports_nothing_by_itself(model: Path, folder: Path, warm_python: Path) -> None:
    words = [str(warm_python), "-m", "translume", "translate", str(model)]
    bare = {name: value for name, value in os.environ.items() if name != VARIABLE}

    def run(*more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words, *more], input="abc\n", env={**bare, **variables}, capture_output=True, text=True, check=False,
            cwd=folder.parent,
        )  # fmt: skip

    without = run()
    identity = Config.read(folder / "all.toml").plugins.identities["everything"]
    assert (without.returncode, without.stdout) == (1, "")
    assert without.stderr.endswith(f"; the model was made with parts of everything ({identity}): give --import\n")
    assert without.stderr.count("\n") == 1
    assert run("--import", str(folder / FILE.name)).returncode == 0
    changed = folder / "changed"
    changed.mkdir()
    (changed / FILE.name).write_text(FILE.read_text() + "\n")
    other = run("--import", str(changed / FILE.name))
    assert other.returncode == 0
    note = other.stderr.splitlines()[0]
    assert note.startswith("everything: is 3.1 sha256:")
    assert note.endswith(f", the model was made with {identity}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1 +", "cannot be imported: SyntaxError: "),
        ("import nothing_of_this_name", "cannot be imported: No module named 'nothing_of_this_name'"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero ("),
        (
            "from translume.parts import part\n@part('schedule', 'a', interface=2)\ndef a(): ...\n",
            "broken2: schedule 'a': written for interface 2, this Translume has 1",
        ),
        (
            "from translume.parts import part\n@part('schedul', 'a', interface=1)\ndef a(): ...\n",
            "part: found 'schedul'; did you mean 'schedule'?",
        ),
        (
            "from translume.parts import part\n@part('schedule', 'noam', interface=1)\ndef a(): ...\n",
            "broken2: schedule 'noam': another part has this name",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(text: str, reason: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("broken2", None)
    (tmp_path / "broken2.py").write_text(text)
    with pytest.raises(SettingsError) as error:
        load_parts([str(tmp_path / "broken2.py")])
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_words_that_name_no_module_say_so(tmp_path: Path) -> None:
    for word, message in (
        (str(tmp_path / "a.py"), f"{tmp_path / 'a.py'}: no such file of parts"),
        ("no_such_module_1", "no_such_module_1: no such module, expected a file, a module or an entry point"),
    ):
        with pytest.raises(SettingsError) as error:
            load_parts([word])
        assert str(error.value) == message


def test_a_second_part_of_a_name_is_refused_and_the_same_one_is_not() -> None:
    table = table_of("rule")
    made = part("rule", "again", interface=INTERFACE)(lambda settings, tokenizer: None)
    part("rule", "again", interface=INTERFACE)(made)
    with pytest.raises(SettingsError, match="another part has this name"):
        part("rule", "again", interface=INTERFACE)(dict)
    del table["again"]
