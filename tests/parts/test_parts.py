"""Parts from a file outside the package: trained, resumed, measured, translated, inspected, served and exported."""

import json
import math
import os
import random
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from torch import nn

import translume
from translume import parts
from translume.cli.group import main
from translume.config import Config, SoftmaxSettings
from translume.config.evaluation import LEARNED
from translume.contracts import check_part
from translume.errors import SettingsError
from translume.evaluation import Score
from translume.interchange.ctranslate2 import refuse_for_ctranslate2
from translume.parts import INTERFACE, KINDS, VARIABLE, load_parts, names, part, table_of
from translume.serving.api.app import build_app
from translume.serving.models import ServedModel, ServedModels
from translume.serving.server import Server

NAMES = {kind: f"{'.' if kind == 'document' else ''}my_{kind}" for kind in KINDS}
NEED_MORE = {"classify", "sari", "terminology", *LEARNED}
"""Parts that need labels, sources, files or models that the checks do not have."""
COMMON = """train = ["train.tsv"]
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
"""
SETTINGS = (
    '[data]\ntask = "my_task"\n'
    + COMMON
    + """positions = "my_position"
normalization = "my_norm"
attention = "my_attention"
feed_forward_kind = "my_feed_forward"
dropout = 0.0
head = {kind = "my_head", scale = 5.0}
options.my_norm.power = 3.0
[training]
updates = 4
save_every = 2
validate_every = 2
max_tokens = 256
precision = "fp32"
objective = "my_objective"
optimizer = "my_optimizer"
schedule = "my_schedule"
metric = "my_metric"
[evaluation]
metrics = ["my_metric", "exact_match"]
[decoding]
strategy = "my_strategy"
rules = ["my_rule"]
max_length = 13
[plugins]
modules = MODULES
"""
)


PLAIN = (
    "[data]\n"
    + COMMON
    + """[training]
updates = 20
validate_every = 10
max_tokens = 256
precision = "fp32"
"""
)
INSIDE = {"model.head.kind": "softmax", "model.positions": "sinusoidal", "training.metric": "cer"}
SAME = """
from typing import ClassVar, Literal

from translume.config.heads import LinearHead
from translume.evaluation.string_metrics import error_rate
from translume.heads.softmax import SoftmaxHead
from translume.model.positions import Sinusoidal
from translume.parts import part


@part("head", "same_head", interface=1)
class SameHead(LinearHead):
    implementation: ClassVar[str] = f"{__name__}:Head"
    linear: ClassVar[str] = "head"
    kind: Literal["same_head"] = "same_head"


class Head(SoftmaxHead):
    pass


@part("position", "same_position", interface=1)
class SamePositions(Sinusoidal):
    pass


@part("metric", "same_metric", interface=1)
def same_metric(settings):
    return error_rate("same_metric", "char", settings)
"""
"""The parts of INSIDE in a file of a user."""
OUTSIDE = {"model.head.kind": "same_head", "model.positions": "same_position", "training.metric": "same_metric"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a part of each kind, as `translume new part` writes them, data and settings; all go at the end."""
    folder = tmp_path_factory.mktemp("outside")
    with chdir(folder):
        for kind in KINDS:
            main(["new", "part", kind, f"my_{kind}", "--quiet"], standalone_mode=False)
    random.seed(7)
    lines = ["".join(random.choice("abcde ") for _ in range(random.randint(2, 9))).strip() or "a" for _ in range(61)]
    (folder / "train.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    (folder / "all.toml").write_text(SETTINGS.replace("MODULES", str([f"my_{kind}.py" for kind in KINDS])))
    yield folder
    for kind in KINDS:
        table_of(kind).pop(NAMES[kind], None)
        table_of(kind).pop(f"same_{kind}", None)
        sys.modules.pop(f"my_{kind}", None)
    sys.modules.pop("same", None)
    parts._modules.clear()
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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("document", "source", "command", "export")])
def test_our_own_parts_have_the_properties_of_their_kind(kind: str) -> None:
    for name in names(kind):
        if name not in NEED_MORE and not name.startswith("my_"):
            check_part(kind, name)


def test_the_tests_that_come_with_a_new_part_pass(folder: Path) -> None:
    load_parts([str(folder / f"my_{kind}.py") for kind in KINDS])
    for kind in KINDS:
        test = runpy.run_path(str(folder / f"test_my_{kind}.py"))
        test[f"test_it_is_a_{kind}"]()


class Leaky(nn.Module):
    """A norm by all tokens of a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.abs().mean() + 1.0)


class First:
    """A metric of the first text."""

    def count(self, texts, references, sources=()):
        return np.array([[len(texts[0])]] * len(texts))

    def score(self, total):
        return Score(name="first", title="first", value=float(total[0]), signature="none")


@pytest.mark.parametrize(
    ("kind", "name", "damaged", "message"),
    [
        ("norm", "leaky", lambda settings: Leaky(), "differ"),
        ("schedule", "endless", lambda update, settings, width: math.inf, "rates are not finite"),
        ("metric", "first", lambda settings: First(), "in another order, differ"),
    ],
)
def test_a_part_without_a_property_is_named(kind, name, damaged, message, monkeypatch) -> None:
    monkeypatch.setitem(table_of(kind), name, damaged)
    with pytest.raises(AssertionError, match=message):
        check_part(kind, name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["haed", "a"], "new part: found 'haed'; did you mean 'head'?"),
        (["head", "A-b"], "new part: found the name 'A-b', expected lower-case letters, digits and _"),
        (["head", "my_head"], "my_head.py: exists; choose another name"),
    ],
)
def test_new_refuses_in_one_line(words: list[str], message: str, folder: Path, capsys) -> None:
    with chdir(folder), pytest.raises(SystemExit):
        main(["new", "part", *words])
    assert capsys.readouterr().err == f"Error: {message}\n"


def test_a_model_of_outside_parts_is_trained_resumed_and_measured(model: Path, folder: Path, capsys) -> None:
    config = translume.load(model).config
    chosen = config.model.head.kind, config.model.positions, config.training.optimizer
    assert chosen == ("my_head", "my_position", "my_optimizer")
    assert config.plugins.identities["my_head"].startswith("sha256:")
    rows = [json.loads(line) for line in (model / "history.jsonl").read_text().splitlines()]
    assert "my_metric" in json.dumps(rows)
    halves, words = folder / "halves", ["train", str(folder / "all.toml"), "--threads", "1", "--out"]
    ran([*words, str(halves), "--set", "training.updates=2", "--set", "training.schedule=constant"], capsys)
    whole = folder / "whole"
    ran([*words, str(halves), "--set", "training.schedule=constant"], capsys)
    ran([*words, str(whole), "--set", "training.schedule=constant"], capsys)
    one, other = (translume.load(each).checkpoint.model.state_dict() for each in (halves, whole))
    assert all(torch.equal(one[name], other[name]) for name in one)
    (folder / "source").write_text("abc\nde a\n")
    told = ran(["evaluate", str(model), str(folder / "source"), str(folder / "source")], capsys)
    assert "my_metric|unit:characters" in told


def test_parts_outside_have_the_same_figures_as_inside(folder: Path, capsys) -> None:
    (folder / "same.py").write_text(SAME)
    (folder / "plain.toml").write_text(PLAIN)
    words = ["train", str(folder / "plain.toml"), "--import", str(folder / "same.py"), "--threads", "1"]
    trained = []
    for chosen in (INSIDE, OUTSIDE):
        out = folder / chosen["model.positions"]
        ran([*words, "--out", str(out), *(f"--set={path}={value}" for path, value in chosen.items())], capsys)
        rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
        figures = [(row["nll"], *row["metrics"].values()) for row in rows if row["event"] == "validated"]
        translator = translume.load(out, plugins=[str(folder / "same.py")])
        (hypothesis,) = translator.translate("abc").hypotheses
        trained.append((figures, translator.checkpoint.model.state_dict(), hypothesis.log_prob))
    (its, inside, log_prob), (those, outside, other) = trained
    assert (its, log_prob) == (those, other)
    assert all(error > 0 for _, error in its)
    assert all(torch.equal(inside[name], outside[name]) for name in {*inside, *outside})


def test_it_translates_inspects_serves_and_exports(model: Path, folder: Path, capsys) -> None:
    translator = translume.load(model, plugins=[str(folder / "my_head.py")])
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
    (folder / "a.my_document").write_text("abc\n")
    ran(["translate", str(model), str(folder / "a.my_document"), "--out", str(folder / "b.my_document")], capsys)
    assert (folder / "b.my_document").exists()
    ran(["export", str(model), "my_export", str(folder / "exported")], capsys)
    assert (folder / "exported" / "weights.npz").exists()
    with pytest.raises(SettingsError, match=r"model\.head\.kind: found .my_head., expected a linear map"):
        translume.export(model, "ctranslate2", folder / "other")
    config = translator.config
    usual = {"head": SoftmaxSettings(), "positions": "none", "attention": "softmax", "feed_forward_kind": "dense"}
    config = config.model_copy(update={"model": config.model.model_copy(update=usual)})
    with pytest.raises(SettingsError, match=r"model\.normalization: found 'my_norm', expected 'layer' or 'rms' for CT"):
        refuse_for_ctranslate2(replace(translator.checkpoint, config=config))
    assert int(ran(["my_command", str(model)], capsys).replace(",", "")) == translator.checkpoint.parameters


def test_a_model_folder_imports_nothing_by_itself(model: Path, folder: Path, warm_python: Path) -> None:
    words = [str(warm_python), "-m", "translume", "translate", str(model)]
    bare = {name: value for name, value in os.environ.items() if name != VARIABLE}

    def run(*more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words, *more], input="abc\n", env={**bare, **variables}, capture_output=True, text=True, check=False,
            cwd=folder.parent,
        )  # fmt: skip

    without = run()
    assert (without.returncode, without.stdout) == (1, "")
    identities = Config.read(folder / "all.toml").plugins.identities
    lacking = ", ".join(f"my_{kind} ({identities[f'my_{kind}']})" for kind in KINDS)
    assert without.stderr.endswith(f"; the model was made with parts of {lacking}: give --import\n")
    assert without.stderr.count("\n") == 1
    files = [folder / f"my_{kind}.py" for kind in KINDS]
    assert run(*(word for file in files for word in ("--import", str(file)))).returncode == 0
    changed = folder / "changed" / "my_rule.py"
    changed.parent.mkdir()
    changed.write_text((folder / "my_rule.py").read_text() + "\n")
    files.remove(folder / "my_rule.py")
    other = run(*(word for file in (changed, *files) for word in ("--import", str(file))))
    assert other.returncode == 0, other.stderr
    note = other.stderr.splitlines()[0]
    assert note.startswith("my_rule: is sha256:")
    assert note.endswith(f", the model was made with {identities['my_rule']}")


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
    hint = "; `translume docs adding` shows how to write one"
    for word, message in (
        (str(tmp_path / "a.py"), f"{tmp_path / 'a.py'}: no such file of parts{hint}"),
        ("no_such_module_1", f"no_such_module_1: no such module, expected a file, a module or an entry point{hint}"),
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
