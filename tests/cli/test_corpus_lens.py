"""`translume inspect MODEL --corpus SOURCE TARGET`: its output, files and errors."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from translume.inspection.corpus import CorpusLens, TokenStatistics

FOR_A_TEXT = "inspect: --target, --reference, --alternatives and --attribution are for a TEXT, found --corpus"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, train_for_a_moment: Callable[..., Path]) -> Path:
    """Return a folder with two briefly trained models and their training pairs."""
    folder = train_for_a_moment(tmp_path_factory.mktemp("pairs"), model=1, other=2)
    (folder / "short.de").write_text("A\n", encoding="utf-8")
    (folder / "empty").write_text("", encoding="utf-8")
    return folder


def words(folder: Path, *options: str | Path) -> tuple[str | Path, ...]:
    return ("inspect", folder / "model", "--corpus", folder / "a.en", folder / "a.de", *options)


def test_the_terminal_shows_all_parts(run, folder: Path) -> None:
    result = run(*words(folder))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("12 pairs, ")
    for title in (
        "calibration: confidence and accuracy",
        "by frequency of the token in the training targets",
        "rank of the reference's token",
        "pairs with the lowest gain (misaligned?)",
        "hardest pairs",
    ):
        assert f"\n{title}" in result.stdout
    assert "compared with the other model" not in result.stdout


def test_json_has_the_corpus_lens_and_top_limits_its_entries(run, folder: Path) -> None:
    result = run(*words(folder, "--json", "--top", "3"))
    lens = CorpusLens.from_dict(json.loads(result.stdout))
    assert (lens.pairs, lens.frequency, len(lens.suspects), len(lens.hardest)) == (12, "training", 3, 3)
    assert len(CorpusLens.from_dict(json.loads(run(*words(folder, "--json")).stdout)).suspects) == 10


def test_without_a_token_cache_frequency_bands_come_from_the_corpus(run, folder: Path) -> None:
    (folder / "model" / "cache").rename(folder / "aside")
    try:
        result = run(*words(folder, "--json"))
    finally:
        (folder / "aside").rename(folder / "model" / "cache")
    assert CorpusLens.from_dict(json.loads(result.stdout)).frequency == "corpus"


def test_two_models_are_compared_with_the_settings_given(run, folder: Path) -> None:
    result = run(*words(folder, "--compare", folder / "other", "--json", "--beam", "1", "--max-length", "4"))
    found = CorpusLens.from_dict(json.loads(result.stdout)).comparison
    assert found is not None
    assert (found.unit, found.pairs) == ("token", 12)
    assert all(len(parting.text) <= 4 for parting in found.partings)
    shown = run(*words(folder, "--compare", folder / "other", "--beam", "1", "--max-length", "4")).stdout
    assert "compared with the other model\n  12 pairs by tokens\n" in shown


def test_a_page_is_written_and_nothing_printed(run, folder: Path) -> None:
    result = run(*words(folder, "--html", folder / "out.html"))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"{folder / 'out.html'}: written\n"
    text = (folder / "out.html").read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    content = json.loads(data)
    assert content["title"] == "model on a.en and a.de"
    assert len(CorpusLens.from_dict(content["lens"]).suspects) == 12


def test_standard_input_can_be_one_side(run, folder: Path) -> None:
    command = ("inspect", folder / "model", "--corpus", "-", folder / "a.de", "--json")
    result = run(*command, text=(folder / "a.en").read_text(encoding="utf-8"))
    assert result.stdout == run(*words(folder, "--json")).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "x"), FOR_A_TEXT),
        (("--alternatives", "2"), FOR_A_TEXT),
        (("--beam", "2"), "inspect: decoding options are for a TEXT or --compare, found --corpus alone"),
        (("--html", "{folder}"), "{folder}: is a folder, expected a file to write"),
        (("--compare", "{folder}/none"), "{folder}/none: not a model folder: there is no such folder"),
    ],
)
def test_options_without_effect_are_refused(run, folder: Path, options, message) -> None:
    result = run(*words(folder, *(option.format(folder=folder) for option in options)))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {message.format(folder=folder)}\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("a.en", "short.de"), "{folder}/a.en has 12 lines but {folder}/short.de has 1; expected as many in both"),
        (("empty", "empty"), "{folder}/empty: empty file, expected one sentence a line"),
        (("none", "a.de"), "{folder}/none: no such file"),
    ],
)
def test_unusable_corpus_files_are_a_one_line_error(run, folder: Path, files, message) -> None:
    result = run("inspect", folder / "model", "--corpus", *(folder / name for name in files))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {message.format(folder=folder)}\n"


def test_a_comparison_of_a_text_is_refused(run, folder: Path) -> None:
    result = run("inspect", folder / "model", "ab", "--compare", folder / "other")
    assert (result.exit_code, result.stderr) == (1, "Error: inspect: --compare is for --corpus, found a TEXT\n")


def test_ctrl_c_stops_with_one_line_and_writes_nothing(run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TokenStatistics, "add", interrupted)
    result = run(*words(folder, "--html", folder / "never.html"))
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "\nInterrupted; the same command starts again.\n"
    assert not list(folder.glob("*never.html*"))
