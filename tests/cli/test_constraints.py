"""Constraints on the command line."""

from pathlib import Path

import pytest

from translume.config import Config
from translume.translator.constraints import places


def occurrences(phrase: str, text: str) -> int:
    return len(places(phrase, text))


@pytest.fixture
def model(run, files: Path) -> Path:
    assert run("train", files / "en-de.toml", "--out", files / "model").exit_code == 0
    return files / "model"


def test_constraints_per_line_appear_in_the_translations(run, model: Path, files: Path) -> None:
    (files / "phrases.tsv").write_text("\n\t\neins\tten six\n", encoding="utf-8")
    found = run("translate", model, "--constraints-per-line", files / "phrases.tsv", text="one\n\none two\n")
    assert (found.exit_code, found.stdout.count("\n")) == (0, 3)
    assert all(occurrences(phrase, found.stdout.split("\n")[2]) for phrase in ("eins", "ten six"))


def test_too_few_lines_of_constraints_are_a_one_line_error(run, model: Path, files: Path) -> None:
    (files / "phrases.tsv").write_text("eins\n", encoding="utf-8")
    found = run("translate", model, "--constraints-per-line", files / "phrases.tsv", text="one\ntwo\n")
    assert found.exit_code == 1
    assert found.stderr == (
        "Error: line 2: found no constraints for the text, expected as many lists of constraints as texts\n"
    )


def test_terminology_is_applied_to_sources_that_contain_the_term(run, model: Path, files: Path) -> None:
    (files / "terms.tsv").write_text("one\tten six\n", encoding="utf-8")
    found = run("translate", model, "--constraints", files / "terms.tsv", text="one two\nthree\n")
    assert found.exit_code == 0, found.stderr
    lines = found.stdout.split("\n")
    assert occurrences("ten six", lines[0])
    assert lines[1:] == run("translate", model, text="three\n").stdout.split("\n")


def test_bad_terminology_file_and_strategy_without_constraints_are_one_line_errors(
    run, model: Path, files: Path
) -> None:
    (files / "terms.tsv").write_text("one\n", encoding="utf-8")
    words = ["translate", model, "--constraints", files / "terms.tsv"]
    found = run(*words, text="one\n")
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr == (
        f"Error: {files}/terms.tsv:1: found 1 field, expected 2 separated by a tab: a source term and a target term\n"
    )
    found = run(*words, "--strategy", "sampling", text="one\n")
    assert (found.exit_code, found.stdout) == (1, "")
    expected = "Error: decoding.strategy: found 'sampling' with constraints, expected 'beam' or 'greedy'\n"
    assert found.stderr == expected


def test_files_that_decoding_reads_are_found_beside_their_toml(tmp_path: Path) -> None:
    text = '[decoding]\nterminology = "terms.tsv"\nvocabulary = "said"\nban = ["@never", "@@me", "word"]\n'
    (tmp_path / "a.toml").write_text(text, encoding="utf-8")
    decoding = Config.read(tmp_path / "a.toml").decoding
    assert decoding.terminology == str(tmp_path / "terms.tsv")
    assert decoding.vocabulary == str(tmp_path / "said")
    assert decoding.ban == (f"@{tmp_path / 'never'}", "@@me", "word")


def test_files_that_decoding_reads_are_found_from_another_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.toml").write_text('[decoding]\nterminology = "terms.tsv"\nban = "@never"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    decoding = Config.read("a.toml").decoding
    assert (decoding.terminology, decoding.ban) == (str(tmp_path / "terms.tsv"), (f"@{tmp_path / 'never'}",))


def test_moved_model_uses_its_own_copies_of_decoding_files(run, files: Path) -> None:
    (files / "terms.tsv").write_text("one\tten six\n", encoding="utf-8")
    (files / "never").write_text("eins\n", encoding="utf-8")
    text = (files / "en-de.toml").read_text(encoding="utf-8")
    named = '[decoding]\nterminology = "terms.tsv"\nban = "@never"\n'
    (files / "named.toml").write_text(text + named, encoding="utf-8")
    done = run("train", files / "named.toml", "--out", files / "made", "--threads", "1")
    assert done.exit_code == 0, done.stderr
    for name in ("terms.tsv", "never"):
        (files / name).unlink()
    (files / "made").rename(files / "moved")
    found = run("translate", files / "moved", text="one two\n")
    assert found.exit_code == 0, found.stderr
    assert occurrences("ten six", found.stdout.strip())
