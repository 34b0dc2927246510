"""The examples in the serving docs are sent to a live server and get responses of the documented form."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
FENCE = re.compile(r"^```console live\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> Iterator[tuple[str, str]]:
    """Return the commands on the page and the output it shows for them."""
    for fence in FENCE.finditer(PAGE.read_text(encoding="utf-8")):
        for command, _, printed in (part.partition("\n") for part in fence[1].split("$ ") if part):
            yield command, printed


def same_structure(found: Any, wanted: Any) -> bool:
    """Return whether two values have the same fields and types; a list may be empty."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same_structure(found[name], wanted[name]) for name in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return not found or not wanted or all(same_structure(each, wanted[0]) for each in found)
    return type(found) is type(wanted)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("command", "printed"), list(examples()))
def test_examples_get_the_documented_responses(live: Any, command: str, printed: str) -> None:
    done = subprocess.run(
        ["bash", "-c", command.replace("localhost:8000", f"127.0.0.1:{live.port}")], capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if printed.startswith("event:"):
        # The number of prefix events depends on how fast they are read.
        kinds = [
            [kind for kind, _ in groupby(line for line in text.splitlines() if line.startswith("event:"))]
            for text in (done.stdout.decode(), printed)
        ]
        assert kinds[0] == kinds[1]
        return
    found, wanted = json.loads(done.stdout), json.loads(printed)
    assert same_structure(found, wanted)
    # Output that does not depend on the model is compared exactly.
    if "log_prob" not in printed and "ranslat" not in printed:
        assert found == wanted


def test_the_page_has_examples() -> None:
    assert len(list(examples())) >= 5
