"""A bit that is flipped in a file that is read back, or a file that is cut off, never gives other numbers silently."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import damage

KINDS = (
    "model", "labels", "history", "tokenizer, bpe", "keys", "usage of keys", "glossaries", "files of a server",
    "measured runs", "ids of trackers",
)  # fmt: skip
"""Those whose files are made and read in less than a second."""


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_named_or_rebuilt(kind: str) -> None:
    # A sample of benchmarks/damage.py.
    found = damage.examined(kind, most=3, seed=7)
    assert found is not None
    assert found.faults == []
    assert found.flips + found.cuts == sum(found.outcomes.values()) >= 8
    assert found.outcomes["named"] + found.outcomes["rebuilt"] > 0
