"""Strategies on the command line: their options, and errors for options that they do not read."""

from pathlib import Path

import pytest

from translume.config.decoding import STRATEGIES


@pytest.fixture
def model(run, files: Path) -> Path:
    assert run("train", files / "en-de.toml", "--out", files / "model").exit_code == 0
    return files / "model"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "3"], "decoding.seed: strategy 'beam' does not read it, expected 'sampling' or 'stochastic'"),
        (["--set", "decoding.top_k=3"], "decoding.top_k: strategy 'beam' does not read it, expected 'sampling'"),
        (["--strategy", "stochastic", "--samples", "2", "--top-p", "0.5"],
         "decoding.top_p: strategy 'stochastic' does not read it, expected 'sampling'"),
        (["--strategy", "sampling", "--nbest", "3"], "decoding.nbest: found 3, expected at most samples = 1"),
        (["--strategy", "sampling", "--top-p", "0"], "decoding.top_p: found 0.0, expected greater than 0"),
        (["--strategy", "sampling", "--utility", "bluer"], "decoding.utility: found 'bluer'; did you mean 'bleu'?"),
        (["--strategy", "samplin"], "decoding.strategy: found 'samplin'; did you mean 'sampling'?"),
    ],
)  # fmt: skip
def test_impossible_options_are_one_line_errors(run, model: Path, words: list[str], message: str) -> None:
    found = run("translate", model, *words, text="one two\n")
    assert (found.exit_code, found.stderr, found.stdout) == (1, f"Error: {message}\n", "")


def test_beam_option_is_refused_for_greedy_search(run, model: Path) -> None:
    found = run("translate", model, "--strategy", "greedy", "--beam", "7", text="one two\n")
    assert found.exit_code == 1
    assert found.stderr.startswith("Error: decoding.beam: strategy 'greedy' does not read it, expected 'beam'")


def test_stored_settings_of_other_strategies_are_not_refused(run, files: Path) -> None:
    stored = ["--set", "decoding.seed=5", "--set", "decoding.top_p=0.5", "--set", "decoding.samples=4"]
    assert run("train", files / "en-de.toml", "--out", files / "model", *stored).exit_code == 0
    found = run("translate", files / "model", "--strategy", "greedy", "--max-length", "5", text="one two\n")
    assert found.exit_code == 0


def test_sampling_depends_on_the_seed_only(run, model: Path) -> None:
    words = ["translate", model, "--strategy", "sampling", "--samples", "3", "--nbest", "3", "--max-length", "9"]
    text = "one two\nthree\nseven nine\n"
    once = run(*words, "--seed", "4", text=text)
    assert once.exit_code == 0, once.stderr
    assert once.stdout.count("\n") == 9
    assert run(*words, "--seed", "4", text=text).stdout == once.stdout
    assert run(*words, "--seed", "5", text=text).stdout != once.stdout
    last = [line.split("\t")[2] for line in once.stdout.split("\n")[6:9]]
    alone = run(*words, "--seed", "4", text="seven nine\n").stdout.split("\n")[:3]
    assert [line.split("\t")[2] for line in alone] == last


def test_minimum_bayes_risk_on_the_command_line(run, model: Path) -> None:
    words = ["--strategy", "sampling", "--samples", "6", "--utility", "chrf", "--temperature", "0.5", "--top-k", "9"]
    found = run("translate", model, *words, "--min-p", "0.01", "--epsilon", "0.001", text="one two\n")
    assert found.exit_code == 0


def test_help_names_every_strategy(run) -> None:
    shown = " ".join(run("translate", "--help").stdout.split())
    assert all(name in shown for name in STRATEGIES)
    assert all(flag in shown for flag in ("--seed", "--samples", "--temperature", "--top-k", "--top-p", "--utility"))
