"""The list of public models has complete rows, and its filters keep what was asked for."""

import json
import re

import pytest
from click.testing import CliRunner
from tests.errors import raises

from translume.cli import main
from translume.errors import SettingsError
from translume.interchange.public_models import public_models


def test_each_row_names_its_page_and_says_nothing_twice():
    models = public_models()
    assert 10 <= len(models) <= 60
    assert len({model.name for model in models}) == len(models)
    for model in models:
        assert re.fullmatch(r"hf://[\w.-]+/[\w.-]+|argos:[a-z]{2}-[a-z]{2}", model.name)
        assert model.page.startswith(("https://huggingface.co/", "https://github.com/argosopentech/"))
        assert re.fullmatch(r"([\d.]+ [MG]B)?", model.size)
        assert bool(model.languages) != bool(model.source and model.target)


@pytest.mark.parametrize(
    ("filters", "first", "others"),
    [
        ({}, "hf://Helsinki-NLP/opus-mt-en-de", 31),
        ({"source": "zh", "target": "en", "task": "translation"}, "hf://Helsinki-NLP/opus-mt-zh-en", 6),
        ({"source": "mt"}, "hf://Helsinki-NLP/opus-mt-mt-fi", 7),
        ({"task": "summarization"}, "hf://facebook/bart-large-cnn", 1),
    ],
)
def test_filters_keep_models_of_a_task_and_of_languages(filters, first, others):
    found = public_models(**filters)
    assert (found[0].name, len(found) - 1) == (first, others)


def test_an_unknown_task_is_refused():
    with raises(SettingsError, "--task: found 'summarisation'; did you mean 'summarization'?"):
        public_models("summarisation")


def test_the_command_prints_a_table_or_a_row_a_line():
    runner, filters = CliRunner(), ["models", "--from", "de", "--to", "en", "--task", "translation"]
    table, rows = runner.invoke(main, filters), runner.invoke(main, [*filters, "--json"])
    lines = table.stdout.splitlines()
    assert lines[0].split() == ["hf://Helsinki-NLP/opus-mt-de-en", "translation", "de→en", "298", "MB", "apache-2.0"]
    values = [json.loads(line) for line in rows.stdout.splitlines()]
    assert [row["name"] for row in values] == [line.split()[0] for line in lines]
    assert values[0]["read"] == "2026-11-28"
    nothing = runner.invoke(main, ["models", "--task", "summarization", "--from", "de"])
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr == "no model of the list; others are at https://huggingface.co/models\n"
