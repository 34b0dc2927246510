"""`translume inspect`: its commands, their output and files, and one-line errors."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import translume
from translume.inspection.corpus import CorpusLens, TokenStatistics

SPLIT_NOTE = "inspected as one text, but translate splits it into 2 sentences: inspect each by itself\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, train_for_a_moment: Callable[..., Path]) -> Path:
    """Return a folder with two briefly trained translators and their training pairs."""
    folder = train_for_a_moment(tmp_path_factory.mktemp("inspected"), model=1, other=2)
    (folder / "short.de").write_text("A\n", encoding="utf-8")
    (folder / "empty").write_text("", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return folder / "model"


def corpus(folder: Path, *options: str | Path) -> tuple[str | Path, ...]:
    return ("inspect", "corpus", folder / "model", folder / "a.en", folder / "a.de", *options)


def test_the_command_for_a_text_may_be_omitted(run, model: Path) -> None:
    words = (model, "ab", "--top", "2", "--max-length", "3")
    shown = run("inspect", *words)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == run("inspect", "text", *words).stdout == run("inspect", *words[2:], *words[:2]).stdout


@pytest.mark.parametrize("command", [("text",), ("why-not",)])
def test_a_text_that_translate_would_split_is_inspected_as_one_and_that_is_said(run, model: Path, command) -> None:
    more = ("ab",) if command == ("why-not",) else ()
    result = run("inspect", *command, model, "abcd. Klmn.", *more, "--max-length", "3", "--split", "always")
    assert (result.exit_code, result.stderr) == (0, SPLIT_NOTE)


def test_what_if_questions_are_answered_as_by_the_functions_of_python(run, model: Path) -> None:
    translator = translume.load(model, device="cpu", engine="plain")
    settings = translator.config.change("decoding.beam=3", "decoding.max_length=5").decoding
    text = "ab kl"
    for command, kind, questions, answers, titles in (
        ("why-not", translume.WhyNot, ["AX", "B"],
         [translume.why_not(translator, text, each, settings=settings) for each in ("AX", "B")],
         ["why not  AX", "why not  B"]),
        ("force", translume.Forced, ["1=K", "0=BX"],
         [translume.force_token(translator, text, *each, settings=settings) for each in ((1, "K"), (0, "BX"))],
         ["forced   K, at step 1", "forced   BX, at step 0"]),
        ("edit", translume.Edited, ["cde b"],
         [translume.edit_source(translator, text, "cde b", settings=settings)], ["edited   cde b"]),
    ):  # fmt: skip
        words = ("inspect", command, model, text, *questions, "--beam", "3", "--max-length", "5")
        result = run(*words, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        assert [kind.from_dict(json.loads(line)) for line in result.stdout.splitlines()] == answers
        lines = run(*words).stdout.splitlines()
        assert [line for line in lines if line in titles] == titles
        assert lines.count(f"source   {text}") == len(questions)


def test_the_terminal_shows_all_parts_of_a_corpus(run, folder: Path) -> None:
    result = run(*corpus(folder))
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
    lens = CorpusLens.from_dict(json.loads(run(*corpus(folder, "--json", "--top", "3")).stdout))
    assert (lens.pairs, lens.frequency, len(lens.suspects), len(lens.hardest)) == (12, "training", 3, 3)
    piped = run(
        "inspect", "corpus", folder / "model", "-", folder / "a.de", "--json", text=(folder / "a.en").read_text()
    )
    assert len(CorpusLens.from_dict(json.loads(piped.stdout)).suspects) == 10
    assert piped.stdout == run(*corpus(folder, "--json")).stdout


def test_without_a_token_cache_frequency_bands_come_from_the_corpus(run, folder: Path) -> None:
    (folder / "model" / "cache").rename(folder / "aside")
    try:
        result = run(*corpus(folder, "--json"))
    finally:
        (folder / "aside").rename(folder / "model" / "cache")
    assert CorpusLens.from_dict(json.loads(result.stdout)).frequency == "corpus"


def test_two_models_are_compared_with_the_settings_given(run, folder: Path) -> None:
    words = corpus(folder, "--compare", folder / "other", "--beam", "1", "--max-length", "4")
    comparison = CorpusLens.from_dict(json.loads(run(*words, "--json").stdout)).comparison
    assert comparison is not None
    assert (comparison.unit, comparison.pairs) == ("token", 12)
    assert all(len(parting.text) <= 4 for parting in comparison.partings)
    assert "compared with the other model\n  12 pairs by tokens\n" in run(*words).stdout


def test_a_page_is_written_and_nothing_printed(run, folder: Path) -> None:
    result = run(*corpus(folder, "--html", folder / "out.html"))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{folder / 'out.html'}: written\n")
    text = (folder / "out.html").read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    content = json.loads(data)
    assert content["title"] == "model on a.en and a.de"
    assert len(CorpusLens.from_dict(content["lens"]).suspects) == 12


def test_ctrl_c_stops_with_one_line_and_writes_nothing(run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TokenStatistics, "add", interrupted)
    result = run(*corpus(folder, "--html", folder / "never.html"))
    message = "\nInterrupted; the same command starts again.\n"
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", message)
    assert not list(folder.glob("*never.html*"))


STEPS = "expected STEP=TEXT such as 3=house; steps count from 0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("text model ab --attribution oclusion", "attribution: found 'oclusion'; did you mean 'occlusion'?"),
        (
            "text model ab --attribution magic",
            "attribution: found 'magic'; known: "
            "occlusion, occlusion-mask, occlusion-unknown, input-gradient, integrated-gradients",
        ),
        (
            "text model ab --attribution occlusion-unknown --max-length 3",
            "attribution: found 'occlusion-unknown', expected 'occlusion' or 'occlusion-mask' "
            "with a tokenizer that has no unknown token",
        ),
        *((f"force model ab {text}", f"inspect force: found '{text}', {STEPS}")
          for text in ("house", "=house", "1=", "one=house", "²=house")),
        ("force model ab 7=A --max-length 2", "step: found 7, expected 0 to 1, a token of the target"),
        ("edit model ab  --max-length 2", "source: found a blank text, expected a sentence"),
        ("corpus model a.en a.de --beam 2", "inspect corpus: decoding options: expected --compare as well"),
        ("corpus model a.en a.de --html .", ".: is a folder, expected a file to write"),
        ("corpus model a.en a.de --compare none", "none: not a model folder: there is no such folder"),
        ("corpus model a.en short.de", "a.en has 12 lines but short.de has 1; expected as many in both"),
        ("corpus model empty empty", "empty: empty file, expected one sentence a line"),
        ("corpus model none a.de", "none: no such file"),
        ("pairs model", "inspect pairs: expected --input and --output"),
    ],
)  # fmt: skip
def test_wrong_usage_is_a_one_line_error(run, folder: Path, monkeypatch, words: str, message: str) -> None:
    monkeypatch.chdir(folder)
    result = run("inspect", *words.split(" "))
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message}\n")


def test_a_misspelt_command_of_inspect_suggests_the_nearest(run) -> None:
    message = "Error: translume inspect corpsu: no such command; did you mean 'corpus'?\n"
    result = run("inspect", "corpsu", "model", "a", "b")
    assert (result.exit_code, result.stderr) == (2, message)
