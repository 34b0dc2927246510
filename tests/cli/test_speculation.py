"""translume translate --speculation and --draft"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Type = Callable[..., Result]


@pytest.fixture
def model(run: Type, files: Path) -> Path:
    assert run("train", files / "en-de.toml", "--out", files / "model").exit_code == 0
    return files / "model"


def test_drafts_are_counted_in_json_and_in_a_note_and_only_a_greedy_search_of_one_process_takes_them(
    run: Type, model: Path
) -> None:
    targets = model.parent / "train.de"
    words = ("translate", model, "--strategy", "greedy", "--max-length", "20")
    usual = [json.loads(line) for line in run(*words, "--json", text="one\n\ntwo\n").stdout.splitlines()]
    result = run(*words, "--speculation", "ngram", "--draft", targets, "--json", text="one\n\ntwo\n")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["text"] for each in found] == [each["text"] for each in usual]
    hypotheses = [each["hypotheses"][0] for each in found if each["hypotheses"]]
    tokens, calls = (
        sum(each) for each in zip(*((len(h["tokens"]), h["model_calls"]) for h in hypotheses), strict=True)
    )
    assert f"speculation: {tokens} tokens by {calls} model calls, {tokens / calls:.2f} tokens a call" in result.stderr

    result = run(*words, "--draft", targets, text="one\n")
    assert result.exit_code == 1
    assert f"--draft {targets}: found speculation 'none', wanted 'ngram'" in result.stderr
    result = run(*words, "--speculation", "ngram", "--draft", targets, "--workers", "2", text="one\n")
    assert result.exit_code == 1
    assert "workers: found 2 with --draft, wanted 1" in result.stderr
    result = run("translate", model, "--speculation", "copy", text="one\n")
    assert result.exit_code == 1
    assert "decoding.speculation: strategy 'beam' does not read it, wanted 'greedy'" in result.stderr
