"""What a newcomer types first: a text as an argument, arguments in another order, files instead of settings."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text

from translume.cli.terminal import print_lines

SWAPPED = (
    "warning: sources and references look swapped: the model finds the sources likelier as translations of the "
    "references than the other way round"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, train_for_a_moment: Callable[..., Path]) -> Path:
    return train_for_a_moment(tmp_path_factory.mktemp("tries"), model=1)


@pytest.mark.parametrize("text", ["A man is riding a horse.", "Hello", "it's 1/2", "n\u00e4chste Stra\u00dfe"])
def test_a_text_as_an_argument_says_how_texts_come_in(run, folder: Path, text: str) -> None:
    model = str(folder / "model")
    done = run("translate", model, text)
    assert done.exit_code == 1
    command = f"echo {shlex.quote(text)} | translume translate {model}"
    assert done.stderr == f"Error: {text}: no such file; texts are read from standard input: {command}\n"


@pytest.mark.parametrize("name", ["none.txt", "data/none", "report.docx"])
def test_a_file_that_is_missing_is_only_that(run, folder: Path, name: str) -> None:
    assert run("translate", folder / "model", name).stderr == f"Error: {name}: no such file\n"


@pytest.mark.parametrize(
    "words",
    [
        "translate {f}/a.en {f}/model",
        "evaluate {f}/a.en {f}/a.de {f}/model",
        "score {f}/a.en {f}/model {f}/a.de",
        "inspect {f}/a.en {f}/model",
        "classify {f}/a.en {f}/model",
    ],
)
def test_the_model_in_another_place_is_named(run, folder: Path, words: str) -> None:
    done = run(*words.format(f=folder).split())
    assert done.exit_code == 1
    assert done.stderr == (
        f"Error: {folder}/a.en: not a model folder: it is a file; did you mean {folder}/model first?\n"
    )
    alone = run("translate", folder / "a.en")
    assert alone.stderr == f"Error: {folder}/a.en: not a model folder: it is a file\n"
    long = run("score", folder / "a.en", folder / "a.de", "x" * 300)  # longer than names of files may be
    assert long.stderr == alone.stderr


def test_training_files_instead_of_settings_name_init(run, folder: Path) -> None:
    two = run("train", folder / "a.en", folder / "a.de")
    assert two.exit_code == 2
    assert two.stderr.splitlines()[-1] == (
        f"Error: Got unexpected extra argument ({folder}/a.de); expected one file of settings: `translume init` "
        "proposes it for training files"
    )
    for command in (["train"], ["data", "stats"], ["heads"], ["sweep"]):
        one = run(*command, folder / "a.en")
        assert one.exit_code == 1
        assert one.stderr.startswith(f"Error: {folder}/a.en: not TOML: ")
        assert one.stderr.endswith(f"; `translume init {folder}/a.en` proposes settings for a file of training data\n")


def test_languages_in_another_order_are_a_warning(run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from translume.translator import Translator

    scored = Translator.score_all
    targets = set((folder / "a.de").read_text(encoding="utf-8").splitlines())

    def score_all(self, pairs, **more):  # as a model that was trained for longer
        pairs = list(pairs)
        for pair, score in zip(pairs, scored(self, pairs, **more), strict=True):
            yield score if pair[1] in targets else _with_log_prob(score, score.log_prob - 9 * len(score.tokens))

    monkeypatch.setattr(Translator, "score_all", score_all)
    for files, warned in (("a.en", "a.de"), False), (("a.de", "a.en"), True):
        done = run("evaluate", folder / "model", *(folder / file for file in files))
        assert done.exit_code == 0
        assert (SWAPPED in done.stderr.splitlines()) == warned


def _with_log_prob(score, log_prob):
    from dataclasses import replace

    return replace(score, log_prob=log_prob)


def test_a_comparison_of_few_sentences_says_so(run, folder: Path) -> None:
    words = ("evaluate", folder / "model", folder / "a.en", folder / "a.de", "--compare", folder / "model")
    done = run(*words)
    assert "12 sentences: too few for p to mean much; expected at least 100" in done.stderr.splitlines()
    assert all("|sentences:12: " in line for line in done.stdout.splitlines())


def test_the_tokenizer_of_bleu_is_named_if_the_references_choose_it(run, tmp_path: Path) -> None:
    (tmp_path / "zh").write_text("\u4ed6\u5728\u5de5\u4f5c\u3002\n\u6211\u5f88\u597d\u3002\n", encoding="utf-8")
    done = run("evaluate", "--hypotheses", tmp_path / "zh", tmp_path / "zh", "--metrics", "bleu")
    assert "|tok:zh|" in done.stdout
    assert done.stderr == ("evaluation.tokenize = 'zh', chosen by the letters of the references; --tokenize sets it\n")
    told = run("evaluate", "--hypotheses", tmp_path / "zh", tmp_path / "zh", "--tokenize", "char")
    assert told.stderr == ""


@pytest.mark.parametrize(("tokenize", "warned"), [("13a", True), ("none", False)])
def test_tokenized_translations_are_a_warning_in_our_own_words(
    run, tmp_path: Path, tokenize: str, warned: bool
) -> None:
    (tmp_path / "a").write_text("a b c .\n" * 120)
    done = run("evaluate", "--hypotheses", tmp_path / "a", tmp_path / "a", "--tokenize", tokenize)
    assert done.stderr == warned * (
        "warning: 120 of 120 translations end in ' .', as tokenized text does, whose BLEU is higher; detokenize both "
        "files, or score words as they are with --tokenize none\n"
    )


def test_lines_are_wrapped_on_a_narrow_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    line = Text("word " * 40 + "x" * 50)
    print_lines([line])
    assert capsys.readouterr().out == f"{line.plain}\n"
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "40", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    print_lines([line])
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 40
    assert "".join("".join(shown).split()) == "".join(line.plain.split())
