"""What --help offers: examples that run as they are written, --quiet, --dtype and completion."""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from translume.cli import main

NOT_RUN = {
    "demo": "takes minutes; `make demo` runs it",
    "serve": "runs until it is interrupted; tests/serving runs it",
    "import": "needs a model of another toolkit; tests/interchange runs it",
    "heads": "trains several models; tests/cli/test_sweep.py runs it",
    "tune": "trains for minutes; tests/cli/test_tune.py runs it",
    "sweep": "trains several models; tests/cli/test_sweep.py runs it",
    "export": "compares with another toolkit; tests/interchange runs it",
    "pack": "needs widths that the kernels have; tests/engine runs it",
}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its words after `translume`; groups are not commands."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


EXAMPLES = {
    path: (command.epilog or "").partition(": ")[2].partition("   then   ")[0]
    for path, command in commands(main)
    if path[0] not in NOT_RUN
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files and models that the examples name."""
    folder = tmp_path_factory.mktemp("reader")
    words = ["one", "two", "three", "four", "five", "six"]
    sources = [f"{first} {second}" for first in words for second in words]
    for name, lines in {
        "train.en": sources,
        "train.de": [text[::-1] for text in sources],
        "test.en": sources[:3],
        "test.de": [text[::-1] for text in sources[:3]],
        "text": sources[:3],
        "news.1.de": sources[:3],
        "questions": sources[:3],
        "ids": ["5 6", "7"],
        "pairs.1.tsv": [f"{text}\t{text[::-1]}" for text in sources[:3]],
        "labels.tsv": [f"{text}\t{len(text) % 2}" for text in sources],
    }.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    rest = """
tokenizer = {kind = "character", size = 300}
model = {width = 12, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 2%s}
training = {updates = 3, max_tokens = 512, warmup_updates = 2, validate_every = 3, save_every = 3}
"""
    pairs = 'data = {train_source = "train.en", train_target = "train.de"}\n'
    pairs += 'decoding = {strategy = "greedy", max_length = 5}'
    labels = 'data = {task = "classification", train = "labels.tsv"}'
    (folder / "en-de.toml").write_text(pairs + rest % "", encoding="utf-8")
    (folder / "trec6.toml").write_text(labels + rest % ', head = {kind = "classify"}', encoding="utf-8")
    plays = 'data = {task = "language_model", train = "train.en"}'
    alone = rest.replace("encoder_layers = 1", "encoder_layers = 0")
    (folder / "plays.toml").write_text(plays + alone % "", encoding="utf-8")
    models = (("en-de", "en-de"), ("en-de", "other"), ("trec6", "trec6"), ("plays", "plays"))
    for settings, model in models:
        words = ["train", str(folder / f"{settings}.toml"), "--out", str(folder / "models" / model), "--threads", "1"]
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
    shutil.copytree(folder / "models" / "en-de", folder / "models" / "de-en")
    return folder


def typed(folder: Path, line: str) -> Result:
    """Run a line of a shell in a folder: `translume …`, with "<" and ">" before the names of files."""
    first, *words = shlex.split(line)
    assert first == "translume"
    text, out = None, None
    if ">" in words:
        out, words = words[words.index(">") + 1], words[: words.index(">")]
    if "<" in words:
        text, words = (folder / words[words.index("<") + 1]).read_text(encoding="utf-8"), words[: words.index("<")]
    result = CliRunner().invoke(main, words, input=text, prog_name="translume")
    if out is not None:
        (folder / out).write_text(result.stdout, encoding="utf-8")
    return result


@pytest.mark.parametrize("path", EXAMPLES, ids=" ".join)
def test_the_example_of_a_command_runs(path: tuple[str, ...], reader: Path, tmp_path: Path, monkeypatch) -> None:
    assert EXAMPLES[path].startswith(f"translume {' '.join(path)} ")
    shutil.copytree(reader, tmp_path / "reader")
    monkeypatch.chdir(tmp_path / "reader")
    monkeypatch.setenv("TRANSLUME_SHORT", "1")
    if path in (("keys", "list"), ("keys", "remove")):
        typed(tmp_path / "reader", EXAMPLES["keys", "add"])
    result = typed(tmp_path / "reader", EXAMPLES[path])
    assert result.exit_code == 0, result.stderr


def test_examples_that_are_not_run_belong_to_commands() -> None:
    assert set(NOT_RUN) <= {path[0] for path, _ in commands(main)}


def test_every_command_takes_quiet_once_and_dtype_where_it_has_an_effect() -> None:
    offered = {}
    for path, command in commands(main):
        assert sum("--quiet" in parameter.opts for parameter in command.params) == 1, path
        for parameter in command.params:
            if "--dtype" in parameter.opts:
                assert isinstance(parameter.type, click.Choice)
                offered[path[0]] = list(parameter.type.choices)
    assert offered.pop("pack") == ["fp32", "bf16", "int8"]
    with_engine = {verb for verb, dtypes in offered.items() if dtypes == ["auto", "fp32", "bf16", "int8"]}
    assert with_engine == {"translate", "backtranslate", "generate", "evaluate", "score", "serve"}
    assert all(dtypes == ["auto", "fp32", "bf16"] for verb, dtypes in offered.items() if verb not in with_engine)
    assert {"train", "score", "inspect", "classify", "heads"} <= set(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_requests_completions_of_translume(run, shell: str) -> None:
    found = run("completion", shell)
    assert (found.exit_code, found.stderr) == (0, "")
    assert f"_TRANSLUME_COMPLETE={shell}_complete" in found.stdout
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n"], input=found.stdout, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("translume tra", ["plain,train", "plain,translate"]),
        ("translume translate models/en-de --bea", ["plain,--beam"]),
        ("translume data ch", ["plain,check"]),
        ("translume export models/", ["file,models/"]),
        ("translume completion z", ["plain,zsh"]),
    ],
)
def test_commands_options_and_paths_are_completed(line: str, expected: list[str]) -> None:
    asked = {"_TRANSLUME_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    found = CliRunner(env=asked).invoke(main, [], prog_name="translume")
    assert found.stdout.split() == expected
