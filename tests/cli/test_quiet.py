"""--quiet, which every command takes, and `train --dry-run`."""

import json
import re
from pathlib import Path

import click
import pytest

from translume.cli import main
from translume.config import Config
from translume.training import DryRun, Started, dry_run


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def leaves(command: click.Command) -> list[click.Command]:
    """Return a command that is no group, or those of a group."""
    if not isinstance(command, click.Group):
        return [command]
    context = click.Context(command)
    found = (command.get_command(context, name) for name in command.list_commands(context))
    return [leaf for each in found if each is not None for leaf in leaves(each)]


@pytest.mark.parametrize("command", leaves(main), ids=lambda command: command.name)
def test_every_command_takes_quiet_once(command: click.Command) -> None:
    assert sum("--quiet" in parameter.opts for parameter in command.params) == 1


def test_quiet_prints_no_notes_but_warnings(run, files: Path) -> None:
    result = run("train", files / "en-de.toml", "--out", files / "model", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    result = run("translate", files / "model", "--max-length", "1", "--quiet", text="one two\n")
    assert result.exit_code == 0
    assert result.stderr.startswith("1 of 1 translation reached the length limit of 1 tokens")
    result = run("show", files / "model", "--plot", files / "curves.png", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_dry_run_prints_memory_and_times_and_leaves_nothing_behind(run, files: Path) -> None:
    before = names(files)
    result = run("train", files / "en-de.toml", "--out", files / "models" / "en-de", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert names(files) == before
    memory, start, update, training = result.stdout.splitlines()
    assert re.fullmatch(r"memory: \d+\.\d\d GB", memory)
    assert re.fullmatch(r"start: \d+ s of preparation, \d+ s more for the first updates than for later ones", start)
    assert re.fullmatch(r"update: [\d.e-]+ s, the mean of 5; [\d,]+ target tokens/s", update)
    assert re.fullmatch(r"training: \d+ s for 7 updates, without validation and saving", training)
    assert f"; {files}/models/en-de" in result.stderr


def test_a_dry_run_beside_a_model_does_not_read_or_change_it(run, files: Path) -> None:
    (files / "model").mkdir()
    (files / "model" / "README.md").write_text("mine")
    result = run("train", files / "en-de.toml", "--out", files / "model", "--dry-run", "--quiet", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert (found["updates"], found["measured"], found["device"], found["device_bytes"]) == (7, 5, "cpu", None)
    once = found["preparation_seconds"] + found["warm_up_seconds"]
    assert found["training_seconds"] == pytest.approx(once + 7 * found["update_seconds"])
    assert (found["validation_seconds"], found["saving_seconds"]) == (None, None)
    assert found["peak_bytes"] > 50e6
    assert names(files / "model") == ["README.md"]


def test_a_dry_run_of_a_single_update_measures_it(files: Path) -> None:
    config = Config.read(files / "en-de.toml", ["training.updates=1"])
    *events, cost = dry_run(config, files / "model", device="cpu")
    assert isinstance(events[-1], Started)
    assert events[-1].folder == files / "model"
    assert isinstance(cost, DryRun)
    assert (cost.updates, cost.measured) == (1, 1)
