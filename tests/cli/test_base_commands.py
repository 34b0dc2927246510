"""The base commands give the same without torch as with it, and say in one line what they cannot do."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.sources.conftest import untrained as untrained_reader
from tests.translator.conftest import untrained

from translume.checkpoint import (
    ClassifierCheckpoint,
    Manifest,
    Temperature,
    build_network,
    commit,
    load_any,
    load_checkpoint,
    save_model,
    store_temperature,
    tensor_file,
    unique_tensors,
)
from translume.config import ClassifySettings, Config, ModelSettings, TokenizerSettings
from translume.kernels.loading import has_kernels
from translume.text import Labels, train_tokenizer

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")

LINES = ["abc de", "", "f g hij", "a.b!"]
RUN = """
import json, os, sys
if sys.argv[1] == "without":
    sys.modules["torch"] = None
from click.testing import CliRunner
from translume.cli import main
for line in sys.stdin:
    if os.fork():
        os.wait()
        continue
    results = []
    for words, text in json.loads(line):
        done = CliRunner().invoke(main, words, input=text, prog_name="translume")
        results.append([done.exit_code, done.stdout, done.stderr])
    print(json.dumps([sys.modules.get("torch") is not None, results]), flush=True)
    os._exit(0)
"""
"""Runs each line of commands in a fork of a process that has imported the command line and not torch."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the kernels' widths, and "classes" beside it, a classifier."""
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), ["abcdefghij .!"])
    path = tmp_path_factory.mktemp("base") / "model"
    save_model(path, untrained(tokenizer, tokenizer, "decoding.beam=3", max_positions=40).checkpoint)
    model = ModelSettings(**{"width": 32, "feed_forward": 48, "attention_heads": 2, "encoder_layers": 1},
                          head=ClassifySettings(pooling="attention"))  # fmt: skip
    labels = Labels(("a", "b", "c"))
    config = Config(model=model).change("data.task=classification", "training.label_smoothing=0.0")
    torch.manual_seed(3)
    network = build_network(config, len(tokenizer), len(labels.names))
    save_model(
        path.parent / "classes",
        ClassifierCheckpoint(config=config, model=network, source_tokenizer=tokenizer, labels=labels),
    )
    return path


Outcomes = Callable[[str, list[tuple[list[str], str]]], tuple[bool, list[tuple[int, str, str]]]]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Outcomes]:
    """Return a function of "with" or "without" torch and commands.

    It returns whether torch was imported, and the exit code, output and messages of each command.
    """
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running = {
            how: stack.enter_context(subprocess.Popen([sys.executable, "-c", RUN, how], **pipes))
            for how in ("with", "without")
        }

        def run(how: str, commands: list[tuple[list[str], str]]) -> tuple[bool, list[tuple[int, str, str]]]:
            program = running[how]
            assert program.stdin is not None
            assert program.stdout is not None
            print(json.dumps(commands), file=program.stdin, flush=True)
            imported, results = json.loads(program.stdout.readline())
            return imported, [tuple(each) for each in results]

        yield run
        for program in running.values():
            assert program.stdin is not None
            program.stdin.close()


def texts_and_scores(output: str) -> list[tuple[str, object]]:
    """Return the texts of the hypotheses of each line with their scores, which a comparison may round."""
    hypotheses = [each for line in output.splitlines() for each in json.loads(line).get("hypotheses", ())]
    return [(each["text"], pytest.approx(each["score"], abs=1e-4)) for each in hypotheses]


def test_base_commands_give_the_same_without_torch(outcomes: Outcomes, folder: Path, tmp_path: Path) -> None:
    text, model = "".join(f"{line}\n" for line in LINES), str(folder)
    (tmp_path / "a.en").write_text("abc\nde\n")
    (tmp_path / "a.de").write_text("ba\nd ef\n")
    commands = [
        (["translate", model, "--json"], text),
        (["translate", model, "--json", "--dtype", "int8", "--beam", "1"], text),
        (["translate", model, "--json", "--set", "decoding.strategy=sampling", "--set", "decoding.seed=5"], text),
        (["translate", model, "--json", "--set", "decoding.ban=['ab', 'c']", "--set", "decoding.prefix=de"], text),
        (["translate", model, "--json", "--set", "decoding.coverage_penalty=0.2", "--set", "decoding.nbest=2"], text),
        (["translate", model, "--json", "--set", "decoding.no_repeat_ngram=2"], text),
        (["translate", model, "--json", "--alignment", "--set", "decoding.nbest=2"], text),
        (["score", model, str(tmp_path / "a.en"), str(tmp_path / "a.de"), "--json"], ""),
        (["show", model, "--json"], ""),
        (["classify", str(folder.parent / "classes"), "--json"], text),
    ]
    commands = [([*words, *(["--device", "cpu"] if words[0] != "show" else [])], text) for words, text in commands]
    imported, bare = outcomes("without", commands)
    assert not imported
    imported, full = outcomes("with", commands)
    assert not imported  # nothing of this needs it
    for (code, out, messages), other, (words, _) in zip(bare, full, commands, strict=True):
        assert (code, messages) == (0, other[2]), words
        assert out.count("\n") >= 1, words
        assert out == other[1], words
    plain = outcomes("with", [([*words, "--engine", "plain"], text) for words, text in commands[:1]])
    assert plain[0]
    assert [json.loads(line)["text"] for line in plain[1][0][1].splitlines()] == [
        json.loads(line)["text"] for line in bare[0][1].splitlines()
    ]


def test_searches_of_the_decoding_loop_give_the_same_without_torch(
    outcomes: Outcomes, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "terms.tsv").write_text("de\thij\n")
    calibrated = tmp_path / "calibrated"
    shutil.copytree(folder, calibrated)
    temperature = Temperature(value=1.7, tokens=9, nll_before=2.0, nll=1.0)
    store_temperature(calibrated, temperature, load_checkpoint(calibrated).digest)
    model, other = str(folder), ["--set", "decoding.nbest=2", "--ensemble", str(calibrated)]
    options = [
        [model, "--set", "decoding.strategy=diverse", "--set", "decoding.nbest=3"],
        [model, "--set", "decoding.strategy=stochastic", "--set", "decoding.samples=4", "--set", "decoding.nbest=4"],
        [model, "--set", f"decoding.terminology={tmp_path / 'terms.tsv'}"],
        [model, *other],
        [
            model,
            *other,
            "--set",
            "decoding.strategy=sampling",
            "--set",
            "decoding.samples=3",
            "--set",
            "decoding.top_p=0.9",
        ],
        [str(calibrated), "--set", "decoding.calibrated=true", "--set", "decoding.prefix=de"],
        [model, "--set", "decoding.unsmooth=0.1", "--set", "decoding.ban=['ab', 'c']"],
    ]
    text = "".join(f"{line}\n" for line in LINES)
    commands = [(["translate", *words, "--json", "--device", "cpu"], text) for words in options]
    bare, full = outcomes("without", commands)[1], outcomes("with", commands)[1]
    for found, wanted, (words, _) in zip(bare, full, commands, strict=True):
        assert (found[0], found[2]) == (0, wanted[2]), words
        assert texts_and_scores(found[1]) == texts_and_scores(wanted[1]), words


def test_recordings_and_images_are_read_without_torch(outcomes: Outcomes, tmp_path: Path) -> None:
    soundfile, image = pytest.importorskip("soundfile"), pytest.importorskip("PIL.Image")
    draw, commands, guided = np.random.default_rng(3), [], []
    for number, kind in enumerate(("audio", "image")):
        files = [str(tmp_path / f"{kind}{size}") for size in (3, 7)]
        for size, file in zip((3, 7), files, strict=True):
            if kind == "audio":  # at 22,050 Hz
                soundfile.write(file, draw.normal(size=1000 * size) * 0.1, 22_050, format="WAV")
            else:
                image.fromarray(draw.integers(0, 256, (13, 9 * size)).astype(np.uint8)).save(file, "PNG")
        manifest = tmp_path / f"{kind}.tsv"
        manifest.write_text("".join(f"{file}\tone two\n" for file in files))
        model, text = str(tmp_path / kind), "".join(f"{file}\n" for file in files)
        save_model(tmp_path / kind, untrained_reader(kind, width=32, feed_forward=48).checkpoint)
        commands += [(["translate", model, "--json", "--dtype", dtype], text) for dtype in ("fp32", "int8")]
        commands += [(["translate", model, files[number], "--beam", "1"], ""), (["evaluate", model, str(manifest)], "")]
        guided.append((["translate", model, "--json", "--ctc-weight", "0.5", "--nbest", "2"], text))
    for each in (commands, guided):
        each[:] = [([*words, "--device", "cpu"], text) for words, text in each]
    imported, bare = outcomes("without", commands)
    assert not imported
    imported, full = outcomes("with", commands)
    assert not imported  # nothing of this needs it
    for found, wanted, (words, _) in zip(bare, full, commands, strict=True):
        assert found[0] == 0, (words, found)
        assert found[1] == wanted[1], words
        assert found[1], words
    for found, wanted in zip(outcomes("without", guided)[1], outcomes("with", guided)[1], strict=True):
        assert (found[0], found[2]) == (0, wanted[2])
        assert texts_and_scores(found[1]) == texts_and_scores(wanted[1])
        assert len(texts_and_scores(found[1])) == 4


def test_a_model_is_exported_to_ctranslate2_without_torch(outcomes: Outcomes, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    found = {}
    for how in ("without", "with"):
        commands = [(["export", str(folder), "ctranslate2", str(tmp_path / how), "--json"], "")]
        imported, [(code, out, messages)] = outcomes(how, commands)
        assert (imported, code, messages) == (how == "with", 0, "")  # CTranslate2 imports it if it is installed
        certificate = json.loads(out)
        assert certificate["sentences"] == 50
        assert certificate["difference"] < 1e-4
        found[how] = {each.name: each.read_bytes() for each in (tmp_path / how).iterdir() if each.name != "config.json"}
    assert found["without"] == found["with"]


def test_the_engine_of_a_classifier_is_shown(outcomes: Outcomes, folder: Path) -> None:
    classes = str(folder.parent / "classes")
    commands = [(["show", classes, "--engine"], ""), (["show", classes, "--engine", "--json"], "")]
    (_, shown), (_, bare) = outcomes("with", commands), outcomes("without", commands)
    report = json.loads(shown[1][1])
    assert set(report) == {"model", "kernels", "plain_parts", "dtypes"}
    findings = report["dtypes"].pop("fp32")
    assert (report["plain_parts"], report["dtypes"]) == ([], {})
    assert findings == {"difference": findings["difference"], "agrees": True, "alone_equals_batched": False}
    assert findings["difference"] < 1e-5
    agrees = f"fp32: agrees with the plain model, by at most {findings['difference']:.1e} nats"
    assert shown[0][1].splitlines() == [
        classes,
        f"kernels: {report['kernels']}",
        f"{agrees}; alone and batched not identical bit for bit; packed at each start",
    ]
    assert json.loads(bare[1][1])["dtypes"] == {"fp32": {}}
    assert bare[0][1].splitlines()[2] == (
        "fp32: not compared with the plain model, for which torch is not installed; packed at each start"
    )


def test_a_weight_that_the_settings_do_not_have_is_refused_by_name(
    outcomes: Outcomes, folder: Path, tmp_path: Path
) -> None:
    commands, messages = [], []
    for command, source in (("translate", folder), ("classify", folder.parent / "classes")):
        model = tmp_path / command
        shutil.copytree(source, model)
        weights = {**unique_tensors(load_any(model).model), "head.more": torch.zeros(3)}
        commit(model, {"weights.safetensors": tensor_file(weights)})
        place = model / Manifest.read(model).files["weights.safetensors"].file
        commands.append(([command, str(model), "--device", "cpu"], "abc\n"))
        messages.append(f"Error: {place}: holds head.more, which a model of these settings does not have\n")
    imported, found = outcomes("with", commands)
    assert not imported
    assert found == [(1, "", message) for message in messages]


def test_what_needs_torch_says_so_in_one_line(outcomes: Outcomes, folder: Path) -> None:
    model, text = str(folder), "abc\n"
    needs = "torch, which is not installed; pip install 'translume[train]'"
    commands = [
        (["translate", model, "--engine", "plain"], text),
        (["inspect", model, "abc"], ""),
        (["train", "settings.toml"], ""),
    ]
    for (code, out, messages), (words, _) in zip(outcomes("without", commands)[1], commands, strict=True):
        assert (code, out, messages.count("\n")) == (1, "", 1), (words, messages)
        assert messages.startswith("Error: "), messages
        assert words[0] == "train" or messages.rstrip().endswith(needs), messages


NOT_TO_TRANSLATE = {
    *("asyncio", "concurrent.futures", "difflib", "http", "logging", "multiprocessing", "numpy.random", "rich", "ssl"),
    *("checkpoint.model_card", "data.batch", "data.pairs", "data.scripts", "decoding.constrained_beam"),
    *("decoding.device_search", "text.sentences", "text.learning", "translator.classifier", "translator.generator"),
    *("translator.scoring", "translator.speech", "translator.workers"),
}
"""Modules, without "translume.", that translating a line whose languages are the same must not wait for."""


def test_translating_a_line_imports_little_and_collects_little_garbage(folder: Path) -> None:
    code = "import atexit, gc, sys; from translume.cli import main\n" + (
        "atexit.register(lambda: print(sum(each['collections'] for each in gc.get_stats()), *sys.modules))\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "translate", str(folder)],
        input="abc\n",
        capture_output=True,
        text=True,
        check=True,
    )
    collections, *imported = done.stdout.splitlines()[-1].split()
    own = {name.removeprefix("translume.") for name in imported if name.startswith("translume.")}
    assert sorted(NOT_TO_TRANSLATE & (own | set(imported))) == []
    assert (
        len(own) <= 101
    )  # raise it with a reason (locks of Windows: 101): each costs the start of a command half a millisecond and more
    assert int(collections) <= 80
