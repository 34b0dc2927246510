"""Evaluation of several directions of one model, and their means."""

import json
from pathlib import Path

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


def test_each_direction_and_the_mean_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("".join(f"a{n}\tb{n}\n" for n in range(9)))
    Path("source").write_text("a1\na2\n")
    list(train(Config.parse(SETTINGS), "many"))
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


def test_a_direction_is_parsed_by_the_languages_of_the_model() -> None:
    data = DataSettings.model_validate({"corpus": [{"source_language": "de", "target_language": "zh-Hans"}]})
    directions = Directions.from_settings(data, ModelSettings(language_tags="target"), ("de", "zh-Hans"))
    assert directions.parse("de-zh-Hans") == Direction(source="de", target="zh-Hans")
    with pytest.raises(SettingsError, match=r"^direction: found 'de-zh'; did you mean 'de-zh-Hans'\?$"):
        directions.parse("de-zh")
