"""The page that compares Translume with its peers says what was measured, and with which settings."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from tests.programs import program

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def comparison() -> ModuleType:
    return program("benchmarks/comparison.py")


def test_the_tables_of_the_page_are_those_of_the_results(comparison: ModuleType) -> None:
    tables = comparison.tables(comparison.HERE / "results.jsonl").split("\n\n")
    assert len(tables) == 3
    assert [table for table in tables if table.strip() not in PAGE] == []


def test_every_system_of_the_results_has_its_settings_beside_the_script(comparison: ModuleType) -> None:
    lines = (comparison.HERE / "results.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {json.loads(line)["peer"] for line in lines}
    assert len(measured) >= 8
    assert measured <= set(comparison.PEERS)
    for peer, facts in comparison.PEERS.items():
        assert (comparison.HERE / peer / "translate.sh").exists()
        assert (comparison.HERE / peer / ("convert.sh" if "converts" in facts else "train.sh")).exists()


def test_a_later_row_replaces_an_earlier_one_and_what_was_not_measured_is_a_dash(
    comparison: ModuleType, tmp_path: Path
) -> None:
    row = {"peer": "ctranslate2", "version": "1.0", "python": "3.11", "torch": "", "environment": 7_000_000_000}
    rows = [{**row, "bleu": 3.0}, {**row, "bleu": 5.0, "decode_seconds": 4.0, "decode_peak": 2**30}]
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    facts, figures = comparison.tables(tmp_path / "results.jsonl").split("\n\n")
    assert "| CTranslate2 | 1.0 | 3.11 | – | 7.0 GB |" in facts
    decodes_only = "decodes only | decodes only | decodes only"
    assert figures.splitlines()[2] == f"| CTranslate2 | 5.0 | {decodes_only} | 250 | – | 1.00 GiB | – |"
