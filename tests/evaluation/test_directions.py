"""Evaluation and inspection of the directions of one model."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from translume.cli import main
from translume.config import Config, DataSettings, Direction, Directions, ModelSettings
from translume.errors import SettingsError
from translume.training import train

SETTINGS = """
[[data.corpus]]
source_language = "en"
target_language = "de"
train = "pairs.tsv"
valid = "pairs.tsv"
[[data.corpus]]
source_language = "de"
target_language = "zh-Hans"
train = "pairs.tsv"
valid = "pairs.tsv"
[tokenizer]
kind = "character"
[model]
width = 22
feed_forward = 29
encoder_layers = 1
decoder_layers = 1
attention_heads = 11
language_tags = "source"
[training]
updates = 1
metric = "exact_match"
[decoding]
beam = 1
max_length = 3
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a briefly trained model."""
    folder = tmp_path_factory.mktemp("directions")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("pairs.tsv").write_text("".join(f"a{n}\tb{n}\n" for n in range(9)))
        Path("source").write_text("a1\na2\n")
        list(train(Config.parse(SETTINGS), "many"))
    return folder


def test_each_direction_and_the_mean_are_printed(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    directions = [word for name in ("en-de", "en-zh-Hans") for word in ("--direction", name, "source", "source")]
    found = CliRunner().invoke(main, ["evaluate", "many", *directions, "--json", "--metrics", "chrf"])
    assert found.exit_code == 0, found.output
    assert "en→zh-Hans: no training data had this direction (zero-shot)" in found.stderr
    one, other, mean = map(json.loads, found.stdout.splitlines())
    assert [(each["from"], each["to"]) for each in (one, other)] == [("en", "de"), ("en", "zh-Hans")]
    values = [each["scores"][0]["value"] for each in (one, other)]
    assert mean == {"mean": {"chrf": pytest.approx(sum(values) / 2)}}
    found = CliRunner().invoke(main, ["evaluate", "many", *directions])
    assert "en→de: exact match|" in found.stdout  # the metric of the training
    assert "en→de: BLEU|" not in found.stdout


def test_a_corpus_is_inspected_in_the_direction_that_options_name(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)

    def run(*words: str) -> list[dict[str, Any]]:
        found = CliRunner().invoke(main, [*words, "--from", "en", "--to", "zh-Hans"])
        assert found.exit_code == 0, found.output
        return [json.loads(line) for line in found.stdout.splitlines()]

    scores = run("score", "many", "source", "source", "--json")
    (lens,) = run("inspect", "corpus", "many", "source", "source", "--compare", "many", "--json")
    tokens = sum(len(each["tokens"]) for each in scores)
    assert lens["nll"] == pytest.approx(-sum(each["log_prob"] for each in scores) / tokens, abs=1e-4)
    assert lens["comparison"]["same"] == 2
    run("inspect", "pairs", "many", "--input", "source", "--targets", "source", "--output", "judged")
    judged = [json.loads(line) for line in Path("judged/source.jsonl").read_text().splitlines()]
    assert [each["log_p"] for each in judged] == pytest.approx([each["log_prob"] for each in scores], abs=1e-4)


def test_a_direction_is_parsed_by_the_languages_of_the_model() -> None:
    data = DataSettings.model_validate({"corpus": [{"source_language": "de", "target_language": "zh-Hans"}]})
    directions = Directions.from_settings(data, ModelSettings(language_tags="target"), ("de", "zh-Hans"))
    assert directions.parse("de-zh-Hans") == Direction(source="de", target="zh-Hans")
    with pytest.raises(SettingsError, match=r"^direction: found 'de-zh'; did you mean 'de-zh-Hans'\?$"):
        directions.parse("de-zh")
