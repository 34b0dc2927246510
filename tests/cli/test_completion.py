"""`translume completion`: the scripts, and the completions that they request."""

import shutil
import subprocess

import pytest
from click.testing import CliRunner

from translume.cli import main


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
    asked = {
        "_TRANSLUME_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    found = CliRunner(env=asked).invoke(main, [], prog_name="translume")
    assert found.stdout.split() == expected
