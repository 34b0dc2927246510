"""A model is uploaded to the Hub with its card and without local data, and can be loaded from there."""

import json
import shutil

import pytest
import torch
from click.testing import CliRunner
from tests.interchange.hub_server import start_hub

import translume
from translume.checkpoint import Card, Checkpoint, Manifest, build_model, commit, save_model
from translume.cli import main
from translume.config import Config, DataSettings, DecodingSettings, ModelSettings, TokenizerSettings
from translume.errors import SettingsError, TranslumeError
from translume.text import train_tokenizer

constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is not installed (extra: export)")
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub's uploads

TOKEN = "hf_secret"
NAME = "us/en-de"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder with the state of a run, a log, a cache and a file of [decoding]."""
    folder = tmp_path_factory.mktemp("models") / "local-name"
    words = folder.parent / "terms.tsv"
    words.write_text("house\tHaus\n")
    lines = ["a house by the sea, and the sea"] * 9
    tokenizer = train_tokenizer(TokenizerSettings(kind="unigram", size=61, unknown="token"), lines)
    settings = ModelSettings(width=22, feed_forward=29, encoder_layers=1, decoder_layers=1, attention_heads=11)
    torch.manual_seed(3)
    checkpoint = Checkpoint(
        config=Config(
            data=DataSettings(
                train_source=(str(folder.parent / "secret-customer/train.en"),),
                train_target=(str(folder.parent / "secret-customer/train.de"),),
            ),
            model=settings,
            decoding=DecodingSettings(terminology=str(words)),
        ),
        model=build_model(settings, len(tokenizer), len(tokenizer)).eval(),
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
    )
    save_model(folder, checkpoint, card=Card(parameters=7, licence="mit"), files={"resume/raw.safetensors": b"raw"})
    (folder / "history.jsonl").write_text(json.dumps({"event": "started", "files": ["/secret-customer/train.en"]}))
    (folder / "cache").mkdir()
    (folder / "cache/tokens").write_bytes(b"tokens")
    return folder


@pytest.fixture
def hub(tmp_path, monkeypatch):
    server = start_hub(monkeypatch, tmp_path)
    server.writers[TOKEN] = "us"
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.close()


def refused(model, name=NAME, **options):
    with pytest.raises(TranslumeError) as caught:
        translume.push(model, name, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert TOKEN not in message
    return message


def test_a_pushed_model_is_loaded_from_the_hub_and_has_no_local_data(hub, model, tmp_path):
    result = CliRunner().invoke(main, ["push", str(model), NAME, "--private"])
    assert result.exit_code == 0, result.stderr
    repository = hub.repositories[NAME]
    sizes = sum(len(content) for name, content in repository.files.items() if name != ".gitattributes")
    assert result.stdout == f"{hub.address}/{NAME}: 7 files, {sizes:,} bytes, {repository.commit}\n"
    assert result.stderr == "Note: decoding/terminology.tsv: a file of [decoding], also uploaded\n"
    assert repository.private
    manifest = json.loads(repository.files["manifest.json"])["files"]
    assert set(repository.files) == {".gitattributes", "manifest.json", "README.md"} | {
        entry["file"] for entry in manifest.values()
    }
    assert not [name for name in manifest if name.startswith("resume/")]
    for content in repository.files.values():
        assert str(model.parent).encode() not in content
        assert b"secret" not in content
    card = repository.files["README.md"].decode()
    assert card.startswith("---\nlicense: mit\n")
    assert f"```\ntranslume translate hf://{NAME} < source > target\n```" in card

    loaded = translume.load(f"hf://{NAME}", device="cpu", engine="plain")
    original = translume.load(model, device="cpu", engine="plain")
    assert loaded.score("the sea", "a house") == original.score("the sea", "a house")
    settings = (loaded.folder / Manifest.read(loaded.folder).files["config.toml"].file).read_text()
    assert 'train_source = ["train.en"]' in settings
    assert 'terminology = "decoding/terminology.tsv"' in settings


def test_a_second_push_replaces_the_files_of_the_first(hub, model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    translume.push(copy, f"hf://{NAME}")
    hub.repositories[NAME].files["picture.png"] = b"someone's"
    first = set(hub.repositories[NAME].files)
    commit(copy, {"lengths.json": b"{}"}, remove=["decoding/terminology.tsv"])
    found = translume.push(copy, NAME)
    assert found.commit == hub.repositories[NAME].commit
    gone = first - set(hub.repositories[NAME].files)
    assert [name.rpartition("-")[0] for name in gone] == ["decoding/terminology"]


def test_a_dry_run_prints_files_and_card_without_a_connection(hub, model):
    hub.close()
    result = CliRunner().invoke(main, ["push", str(model), NAME, "--dry-run"])
    assert result.exit_code == 0, result.stderr
    found = translume.push(model, NAME, dry_run=True)
    assert not hub.requests
    listed, _, card = result.stdout.partition("\n\n")
    *lines, total = listed.splitlines()
    assert [(line.split()[1], int(line.split()[0].replace(",", ""))) for line in lines] == list(found.files.items())
    assert total.split() == [f"{sum(found.files.values()):,}", "bytes", "to", f"{hub.address}/{NAME}"]
    assert card == found.card
    assert json.loads(json.dumps(found.to_dict()))["commit"] is None


def test_a_card_without_a_licence_is_noted(hub, model, tmp_path):
    shutil.copytree(model, tmp_path / "copy")
    (tmp_path / "copy/README.md").unlink()
    found = translume.push(tmp_path / "copy", NAME, dry_run=True)
    place = tmp_path / "copy/README.md"
    assert found.notes[1] == f"{place}: states no licence; write it after `license:` and push again"
    assert "# en-de\n" in found.card


def test_a_malformed_name_is_refused(hub, model):
    for name in ("en-de", "us/", "us/en de", "us/en-de/x", "us/-en", "us/en--de"):
        assert refused(model, name) == (
            f"{name}: expected owner/name: letters, digits, '_', and inside a name single '-' and '.'"
        )


def test_what_is_no_model_is_refused_before_anything_is_sent(hub, model, tmp_path):
    assert refused(tmp_path / "nothing") == f"{tmp_path / 'nothing'}: not a model folder: there is no such folder"
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (weights,) = copy.glob("weights-*")
    weights.write_bytes(weights.read_bytes()[::-1])
    assert refused(copy) == f"{weights}: damaged or changed: its SHA-256 is not the one in manifest.json"
    commit(copy, {}, remove=["weights.safetensors"])
    assert refused(copy) == f"{copy}: holds no weights yet: its training has not saved any"
    with pytest.raises(SettingsError, match="format: found 'hugingface'; did you mean 'huggingface'"):
        translume.push(model, NAME, format="hugingface")
    assert not hub.requests


def test_a_token_that_is_missing_or_may_not_write_is_named(hub, model, monkeypatch):
    assert refused(model, "them/en-de") == (
        "hf://them/en-de: the token may not write there: expected one with write access for them from "
        f"{hub.address}/settings/tokens"
    )
    login = "set HF_TOKEN or run `hf auth login`"
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert refused(model) == f"hf://{NAME}: {hub.address} does not accept the token: {login}"
    monkeypatch.delenv("HF_TOKEN")
    assert refused(model) == f"hf://{NAME}: no token for {hub.address}: {login}"


def test_a_hub_that_is_away_is_named(hub, model, monkeypatch):
    hub.close()
    assert refused(model) == f"hf://{NAME}: transfer from {hub.address} failed: [Errno 111] Connection refused"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refused(model) == f"hf://{NAME}: not uploaded: HF_HUB_OFFLINE forbids it"


def test_a_failed_upload_of_the_weights_is_named_and_changes_nothing(hub, model):
    hub.broken = 1
    message = refused(model)
    assert message.startswith(f"hf://{NAME}: {hub.address} refused: Server error '507 Insufficient Storage' for url ")
    assert set(hub.repositories[NAME].files) == {".gitattributes"}


def test_an_export_is_pushed_with_a_card_of_its_library(hub, model):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (extra: export)")
    found = translume.push(model, NAME, format="ctranslate2")
    assert set(found.files) == set(hub.repositories[NAME].files) - {".gitattributes"}
    assert {"config.json", "model.bin", "README.md"} <= set(found.files)
    assert "library_name: ctranslate2\n" in found.card
    assert "\nExported for ctranslate2. " in found.card
    assert "translume translate" not in found.card
