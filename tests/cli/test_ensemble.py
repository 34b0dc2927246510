"""Ensembles, diverse beams and coverage on the command line."""

from pathlib import Path

import pytest

TEXT = "one two\nthree\nseven nine\n"


@pytest.fixture
def model(run, files: Path) -> Path:
    assert run("train", files / "en-de.toml", "--out", files / "model").exit_code == 0
    return files / "model"


def test_ensemble_of_a_model_with_itself_equals_the_model(run, model: Path) -> None:
    words = ["translate", model, "--max-length", "9"]
    alone = run(*words, text=TEXT)
    for average in ([], ["--average", "log_probability"]):
        together = run(*words, "--ensemble", model, "--ensemble", model, *average, text=TEXT)
        assert (together.exit_code, together.stderr) == (0, alone.stderr)
        assert together.stdout == alone.stdout


def test_ensemble_with_another_vocabulary_is_a_one_line_error(run, model: Path, files: Path) -> None:
    other = files / "other"
    assert run("train", files / "en-de.toml", "--out", other, "--set", "tokenizer.kind=byte").exit_code == 0
    found = run("translate", model, "--ensemble", other, text=TEXT)
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith("Error: ensemble: model 2 has a source vocabulary of ")
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--average", "probability"], "--average probability: expected --ensemble as well, a model to average with"),
        (["--patience", "2"],
         "decoding.patience: found 2.0 with stop = 'optimal', expected stop = 'first'"),
        (["--strategy", "diverse", "--beam", "6", "--groups", "4"],
         "decoding.groups: found 4, expected a divisor of beam = 6"),
        (["--groups", "2"], "decoding.groups: strategy 'beam' does not read it, expected 'diverse'"),
    ],
)  # fmt: skip
def test_impossible_options_are_one_line_errors(run, model: Path, words: list[str], message: str) -> None:
    found = run("translate", model, *words, text=TEXT)
    assert (found.exit_code, found.stderr, found.stdout) == (1, f"Error: {message}\n", "")


def test_ensemble_with_workers_is_refused(run, model: Path) -> None:
    found = run("translate", model, "--ensemble", model, "--workers", "2", text=TEXT)
    assert (found.exit_code, found.stderr) == (1, "Error: --workers 2 cannot be combined with --ensemble\n")


def test_a_diverse_beam_writes_different_targets(run, model: Path) -> None:
    words = ["--strategy", "diverse", "--beam", "4", "--groups", "2", "--diversity", "0.8", "--nbest", "4"]
    found = run("translate", model, *words, "--max-length", "9", text=TEXT)
    assert found.exit_code == 0, found.stderr
    for line in "123":
        targets = [each for each in found.stdout.splitlines() if each.startswith(f"{line}\t")]
        assert 1 < len(targets) <= 4
        scores = [float(each.split("\t")[1]) for each in targets]
        assert scores == sorted(scores, reverse=True)


def test_coverage_and_patience_are_flags(run, model: Path) -> None:
    words = ["--coverage-penalty", "0.5", "--stop", "first", "--patience", "2", "--max-length", "9", "--nbest", "2"]
    found = run("translate", model, *words, text=TEXT)
    assert found.exit_code == 0
    plain = run("translate", model, "--max-length", "9", "--nbest", "2", text=TEXT)
    assert [line.split("\t")[1] for line in found.stdout.splitlines()] != [
        line.split("\t")[1] for line in plain.stdout.splitlines()
    ]
