"""serve.toml: strict parsing, helpful errors, overrides from the command line."""

from pathlib import Path

import pytest
from tests.serving.conftest import message_of

from translume.checkpoint.folder import DEMO
from translume.cli.serve import EXAMPLES, _named
from translume.config.base import to_toml
from translume.serving.settings import ServeSettings, place_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "serve.toml"


WHOLE = """
host = "0.0.0.0"
port = 8080
public_address = "https://translate.example/"
metrics = "9100"
cors_origins = "https://app.example"
log_text = true
keys.file = "keys.json"
keys.requests_per_minute = 7

[models]
en-de = "models/en-de"
"opus.en-fr" = "/srv/en-fr"

[limits]
characters = 5000
timeout_seconds = 5
"""


def test_a_model_is_named_after_its_folder_and_the_demo_is_named_demo(tmp_path: Path) -> None:
    assert _named(DEMO) == ("demo", DEMO)
    assert _named(tmp_path / "en-de") == ("en-de", tmp_path / "en-de")
    assert _named(Path(f"mine={tmp_path}/en-de")) == ("mine", tmp_path / "en-de")


def test_a_file_sets_every_setting(path: Path) -> None:
    path.write_text(WHOLE)
    found = ServeSettings.read(path)
    assert (found.host, found.port, found.public_address) == ("0.0.0.0", 8080, "https://translate.example")
    assert (found.metrics, found.cors_origins, found.log_text) == ("9100", ("https://app.example",), True)
    assert found.models == {"en-de": str(path.parent / "models/en-de"), "opus.en-fr": "/srv/en-fr"}
    assert found.keys.file == str(path.parent / "keys.json")
    assert (found.keys.counted_in, found.keys.requests_per_minute) == (str(path.parent / "keys.json.usage"), 7)
    assert (found.limits.characters, found.limits.timeout_seconds, found.limits.texts) == (5000, 5.0, 256)


def test_settings_round_trip_through_toml(path: Path, tmp_path: Path) -> None:
    path.write_text(WHOLE)
    found = ServeSettings.read(path)
    again = tmp_path / "again.toml"
    again.write_text(to_toml(found, comments=True))
    assert ServeSettings.read(again) == found


def test_defaults_and_overrides_apply_without_a_file() -> None:
    found = ServeSettings.read(None, ["port=9000", 'keys.file="k"', "limits.texts=3", 'models.en-de="m"'])
    assert (found.host, found.port, found.keys.file, found.limits.texts) == ("127.0.0.1", 9000, "k", 3)
    assert found.models == {"en-de": "m"}


def test_command_line_values_take_precedence_and_are_relative_to_the_current_folder(path: Path) -> None:
    path.write_text(WHOLE)
    found = ServeSettings.read(path, ['keys.file="other.json"', "port=1"])
    assert (found.keys.file, found.port) == ("other.json", 1)


def test_environment_variables_are_substituted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSLUME_TEST_HOST", "127.0.0.7")
    path.write_text('host = "${TRANSLUME_TEST_HOST}"\nmetrics = "${TRANSLUME_TEST_NONE:-9100}"\n')
    found = ServeSettings.read(path)
    assert (found.host, found.metrics) == ("127.0.0.7", "9100")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("prot = 1", "prot: no such setting; did you mean 'port'?"),
        ("[limits]\nlime = 1", "limits.lime: no such setting; did you mean 'limits.lines'?"),
        ("[keys]\nfil = 'a'", "keys.fil: no such setting; did you mean 'keys.file'?"),
        ("port = 70000", "port: found 70000, expected less than or equal to 65535"),
        ("port = '80'", "port: found '80', expected a valid integer"),
        ("[limits]\ntexts = 0", "limits.texts: found 0, expected greater than 0"),
        ("workers = 1000", "workers: found 1000, expected less than or equal to 256"),
        (
            "[limits]\ntexts = 5000",
            "limits: found lines = 1024, expected at least texts, 5000, and at most queue, 2048",
        ),
        ("models = 5", "models: found 5, expected a valid dictionary"),
        ("[models]\na = 5", "models.a: found 5, expected a valid string"),
        ("[models]\na = ''", "models.a: found '', expected a folder"),
        ("keys = 'k'", "keys: found 'k', expected a table"),
        (
            "cors_origins = 'app.example'",
            "cors_origins.0: found 'app.example', expected an origin such as 'https://app.example', or '*'",
        ),
        (
            "cors_origins = ['https://a.example/']",
            "cors_origins.0: found 'https://a.example/', expected an origin such as 'https://app.example', or '*'",
        ),
        ("metrics = 'x:y'", "metrics: found 'x:y', expected a port or ADDRESS:PORT, such as '127.0.0.1:9100'"),
        (
            "public_address = 'translate.example'",
            "public_address: found 'translate.example', expected an address such as 'https://translate.example'",
        ),
        ("port", "not TOML: Expected '=' after a key in a key/value pair (at end of document)"),
    ],
)
def test_invalid_files_give_a_one_line_error(path: Path, text: str, reason: str) -> None:
    path.write_text(text)
    assert message_of(lambda: ServeSettings.read(path)) == f"{path}: {reason}"


def test_a_missing_file_and_missing_models_give_a_one_line_error(path: Path) -> None:
    assert message_of(lambda: ServeSettings.read(path)) == f"{path}: cannot be read: No such file or directory"
    assert message_of(lambda: ServeSettings.read(None).must_have_models()) == (
        "serve: found no model, expected MODEL, or a table [models] in --config"
    )


def test_the_example_in_the_help_text_is_valid(path: Path) -> None:
    shown = EXAMPLES.partition("serve.toml may be:\n")[2]
    path.write_text("\n".join(line.strip() for line in shown.splitlines()))
    found = ServeSettings.read(path)
    assert (found.metrics, found.limits.characters) == ("9100", 5000)
    assert found.models == {"en-de": str(path.parent / "models/en-de")}


def test_metrics_addresses() -> None:
    assert place_of("9100") == ("127.0.0.1", 9100)
    assert place_of(":9100") == ("127.0.0.1", 9100)
    assert place_of("0.0.0.0:0") == ("0.0.0.0", 0)
    assert place_of("[::1]:9100") == ("::1", 9100)


def test_names_of_hosts_and_proxies_are_validated() -> None:
    for wrong in ("http://a.example", "a.example:80", "a/b", ""):
        assert message_of(lambda wrong=wrong: ServeSettings.read(None, [f'host_names = ["{wrong}"]'])) == (
            f"serve: host_names.0: found '{wrong}', expected a name such as 'translate.example', or '*'"
        )
    assert ServeSettings.read(None, ['proxies = "10.0.0.0/8"']).proxies == ("10.0.0.0/8",)
    assert message_of(lambda: ServeSettings.read(None, ['proxies = ["nginx"]'])) == (
        "serve: proxies.0: found 'nginx', expected an address or network such as '10.0.0.0/8'"
    )


def test_counts_may_be_at_an_address(path: Path) -> None:
    path.write_text('keys.file = "keys.json"\nkeys.usage = "redis://localhost"\n')
    assert ServeSettings.read(path).keys.counted_in == "redis://localhost"
