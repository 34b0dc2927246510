"""Settings: each one is applied or refused with a one-line error."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from translume.config import Config, DecodingSettings, ModelSettings, SoftmaxSettings
from translume.config.base import OfKind, Settings
from translume.errors import SettingsError

REFUSED = {
    '[data]\ntask = "classification"': (
        "data.task = 'classification' with model.head.kind = 'softmax', expected model.head.kind = 'classify'"
    ),
    '[tokenizer]\nkind = "unigram"\ndropout = 0.1': (
        "tokenizer: dropout 0.1 with kind 'unigram', expected 0; only kind 'bpe' has merges"
    ),
    '[tokenizer]\ntarget_path = "de.json"': (
        "tokenizer: target_path has no effect while shared is true; expected shared = false, or path alone"
    ),
    '[tokenizer]\ntarget_kind = "word"': (
        "tokenizer: target_kind has no effect while shared is true; expected shared = false"
    ),
    '[tokenizer]\nshared = false\ntarget_kind = "word"\ndropout = 0.1': (
        "tokenizer: dropout 0.1 with kind 'word', expected 0; only kind 'bpe' has merges"
    ),
    "[decoding]\nmax_length_ratio = inf": "decoding.max_length_ratio: found inf, expected a finite number",
    "[decoding]\nlength_penalty = nan": "decoding.length_penalty: found nan, expected a finite number",
    "[training]\nlearning_rate = inf": "training.learning_rate: found inf, expected a finite number",
    "[decoding]\nbeam = 1_000_000_000": "decoding.beam: found 1000000000, expected less than or equal to 65536",
    "[decoding]\nmax_length = 9007199254740992": (
        "decoding: max_length is 9007199254740992, expected less than 9007199254740992"
    ),
    "[tokenizer]\nsize = 1_000_000_000_000": (
        "tokenizer.size: found 1000000000000, expected less than or equal to 10000000"
    ),
    "[model]\nwidth = 1_000_000": "model.width: found 1000000, expected less than or equal to 65536",
    "[data]\ntrain_source = 3": "data.train_source: found 3, expected a list",
    '[data]\ntrain_source = "${NO_SUCH_PLACE}/a"': (
        "${NO_SUCH_PLACE}: no such environment variable; give a default as ${NO_SUCH_PLACE:-value}"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_unsupported_settings_are_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Config.parse(text, place="a.toml")
    assert str(caught.value) == f"a.toml: {REFUSED[text]}"


@pytest.mark.parametrize("assignment", [".=1", "model..width=3", "=3", "training"])
def test_an_assignment_without_a_path_or_a_value_is_refused(assignment: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Config.build({}, [assignment])
    assert str(caught.value) == f"--set {assignment}: expected PATH=VALUE, such as training.updates=8000"


def test_a_byte_order_mark_and_windows_line_endings_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf[model]\r\nwidth = 32\r\n")
    assert Config.read(tmp_path / "a.toml").model.width == 32


def test_dropout_is_accepted_with_a_tokenizer_file_for_any_kind_setting() -> None:
    text = '[tokenizer]\nkind = "unigram"\npath = "bpe.json"\ndropout = 0.1'
    assert Config.parse(text).tokenizer.dropout == 0.1


def test_settings_survive_a_round_trip_through_toml() -> None:
    config = Config.parse("[training]\nlearning_rate = 1e-3").change("data.weights=[1, 2.5]", "tokenizer.shared=false")
    assert Config.parse(config.to_toml()) == config
    assert Config.parse(config.to_toml(comments=True)) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.head.kind=softmaxx", "settings: model.head.kind: found 'softmaxx'; did you mean 'softmax'?"),
        ("model.head.bias=7", "settings: model.head.bias: found 7, expected a valid boolean"),
        ("model.head.bia=true", "settings: model.head.bia: no such setting; did you mean 'model.head.bias'?"),
    ],
)
def test_a_head_is_named_by_its_kind_and_defaults_to_softmax(override: str, message: str) -> None:
    assert Config.build({"model": {"head": {"tie": "none"}}}).model.head.kind == "softmax"
    with pytest.raises(SettingsError) as error:
        Config.build({}, [override])
    assert str(error.value) == message


def test_settings_of_another_kind_are_read_and_written() -> None:
    config = Config.parse('[model.head]\nkind = "projected"\nsize = 7\n')
    assert (config.model.head.kind, Config.parse(config.to_toml())) == ("projected", config)
    with pytest.raises(SettingsError) as error:
        Config.parse('[model.head]\nkind = "projected"\nsiz = 7\n')
    assert str(error.value) == "settings: model.head.siz: no such setting; did you mean 'model.head.size'?"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DecodingSettings(beam=0), "decoding.beam: found 0, expected greater than or equal to 1"),
        (lambda: DecodingSettings(baem=3), "decoding.baem: no such setting; did you mean 'decoding.beam'?"),
        (lambda: DecodingSettings(strategy="bean"), "decoding.strategy: found 'bean'; did you mean 'beam'?"),
        (
            lambda: DecodingSettings(calibrated=True, unsmooth=0.1),
            "decoding: calibrated and unsmooth both make up for label smoothing, expected at most one of them; "
            "set calibrated = false or unsmooth = 0",
        ),
        (lambda: DecodingSettings.model_validate([]), "decoding: found [], expected a table"),
        (lambda: ModelSettings(width=13), "model: width 13 is not divisible by attention_heads 4"),
        (lambda: ModelSettings(head={"kind": "sofmax"}), "model.head.kind: found 'sofmax'; did you mean 'softmax'?"),
        (
            lambda: SoftmaxSettings(bia=True),
            "model.head.bia: no such setting; did you mean 'model.head.bias'?",
        ),
        (lambda: Config(decoding={"beam": 0}), "decoding.beam: found 0, expected greater than or equal to 1"),
        (lambda: Config(fomat=1), "fomat: no such setting; did you mean 'format'?"),
        (lambda: Config(format=3), "format: found 3, newer than 2, the newest this Translume reads; upgrade Translume"),
        (lambda: Config(format=0), "format: found 0, expected a number from 1 to 2"),
    ],
)
def test_settings_built_in_python_are_refused_like_those_of_a_file(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        make()
    assert str(error.value) == message


def test_every_settings_class_knows_its_table() -> None:
    def groups(kind: type[Settings], table: str) -> Iterator[tuple[type[Settings], str]]:
        yield kind, table
        for name, field in kind.model_fields.items():
            for inner in classes_in(field.annotation):
                yield from groups(inner, f"{table}.{name}".removeprefix("."))

    def classes_in(annotation: object) -> list[type[Settings]]:
        if isinstance(annotation, type) and issubclass(annotation, OfKind):
            return [*annotation.kinds().values()]
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            return [annotation]
        return [found for each in get_args(annotation) for found in classes_in(each)]

    found = list(groups(Config, ""))
    assert len(found) > 15
    assert [kind.table for kind, _ in found] == [table for _, table in found]
