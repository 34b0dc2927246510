"""translume docs: the pages of the documentation, which the wheel contains."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from translume.cli import docs as docs_command
from translume.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_a_page_is_its_markdown_in_a_pipe_whatever_its_name_ends_with() -> None:
    text = (ROOT / "docs" / "cleaning.md").read_text(encoding="utf-8")
    for name in ("cleaning", "cleaning.md", "docs/cleaning.md"):
        assert CliRunner().invoke(main, ["docs", name]).stdout == text


def test_without_a_page_all_pages_are_listed_with_their_titles() -> None:
    lines = CliRunner().invoke(main, ["docs"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted(path.stem for path in ROOT.glob("docs/*.md"))
    assert "cleaning          Cleaning parallel data" in lines


def test_an_unknown_page_names_the_nearest_one() -> None:
    result = CliRunner().invoke(main, ["docs", "clening"])
    assert (result.exit_code, result.stderr) == (1, "Error: docs: no page 'clening'; did you mean 'cleaning'?\n")


def test_an_installation_without_pages_says_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(docs_command, "IN_PACKAGE", tmp_path / "none")
    monkeypatch.setattr(docs_command, "IN_CHECKOUT", tmp_path / "none")
    result = CliRunner().invoke(main, ["docs", "init"])
    message = "Error: docs: this installation has no pages; they are in the folder docs of the sources\n"
    assert (result.exit_code, result.stderr) == (1, message)


def test_messages_and_help_name_pages_that_exist() -> None:
    named = {
        page
        for path in (ROOT / "src").rglob("*.py")
        for page in re.findall(r"`translume docs\s+(\w+)`", path.read_text(encoding="utf-8"))
    }
    assert named >= {"from_marian", "init", "fine_tuning", "cleaning", "serving", "settings", "adding"}
    assert [page for page in sorted(named) if not (ROOT / "docs" / f"{page}.md").is_file()] == []
