"""Models of the Hub are downloaded, checked and imported into a cache; each failure is one line."""

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from tests.interchange.hub_server import StoredRepository, start_hub
from tests.interchange.test_weights_files import Malicious

import translume
from translume.checkpoint import load_checkpoint, model_folder
from translume.cli import main
from translume.errors import ModelFolderError, SettingsError, TranslumeError

pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
constants = pytest.importorskip("huggingface_hub").constants
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

NAME = "someone/opus-en-de"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def files(opus, tmp_path_factory):
    """The files of a small MarianMTModel."""
    return StoredRepository.from_folder(
        opus.write(tmp_path_factory.mktemp("opus"), tokenizer={"normalization_rule_name": "identity"})
    ).files


@pytest.fixture
def hub(files, tmp_path, monkeypatch):
    server = start_hub(monkeypatch, tmp_path)
    server.repositories[NAME] = StoredRepository(files=dict(files))
    yield server
    server.close()


def refused(source=f"hf://{NAME}", error=ModelFolderError):
    with pytest.raises(error) as caught:
        model_folder(source)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_repository_is_imported_once_and_then_used_without_a_connection(hub, tmp_path, monkeypatch, capsys):
    repository = hub.repositories[NAME]
    repository.files |= {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"onnx"}
    model = translume.load(f"hf://{NAME}", device="cpu", engine="plain")
    assert model.folder == tmp_path / f"cache/hub/someone--opus-en-de/{repository.commit}-2/opus-en-de"
    assert model.translate("A man reads.").text
    assert json.loads(next(model.folder.glob("import-*.json")).read_text())["difference"] < 1e-4
    transferred = hub.transferred()
    assert transferred[-1] == WEIGHTS
    assert not capsys.readouterr().err
    assert not {"modeling.py", "pytorch_model.bin", "model.onnx"} & set(transferred)
    asked = len(hub.requests)
    assert model_folder(Path(f"hf://{NAME}")) == model.folder
    assert hub.requests[asked:] == [f"GET /api/models/{NAME}/revision/main"]
    assert model_folder(f"hf://{NAME}@{repository.commit}") == model.folder
    assert len(hub.requests) == asked + 1
    hub.close()
    assert model_folder(f"hf://{NAME}") == model.folder
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert model_folder(f"hf://{NAME}") == model.folder
    assert refused(f"hf://{NAME}@v2") == f"hf://{NAME}@v2: not in the cache, and HF_HUB_OFFLINE forbids to download it"


def test_processes_that_import_a_repository_at_once_download_it_once_and_share_the_import(hub):
    processes = multiprocessing.get_context("fork")  # the libraries are imported already
    together, found = processes.Barrier(2), processes.SimpleQueue()

    def load_model():
        together.wait(60)
        found.put(str(model_folder(f"hf://{NAME}")))

    children = [processes.Process(target=load_model) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0, 0]
    one, other = found.get(), found.get()
    assert one == other
    assert hub.transferred().count(WEIGHTS) == 1
    load_checkpoint(one)
    assert [each.name for each in Path(one).parent.iterdir()] == [Path(one).name]


def test_the_licence_of_a_repository_is_kept_and_shown_and_a_revision_is_an_option(hub, tmp_path):
    hub.repositories[NAME].files["README.md"] = b"---\nlanguage: en\nlicense: cc-by-4.0\n---\n# OPUS\n"
    out, words = tmp_path / "out", ("import", f"hf://{NAME}")
    done = CliRunner().invoke(main, [*words, str(out), "--revision", hub.repositories[NAME].commit])
    assert done.exit_code == 0, done.output
    assert json.loads(CliRunner().invoke(main, ["show", str(out), "--json"]).output)["licence"] == "cc-by-4.0"
    assert "licence: cc-by-4.0" in CliRunner().invoke(main, ["show", str(out)]).output
    for source in (f"hf://{NAME}@main", str(out)):
        done = CliRunner().invoke(main, ["import", source, str(tmp_path / "other"), "--revision", "main"])
        assert done.output == (f"Error: --revision main: found {source}, expected hf://owner/name without a revision\n")


def test_import_makes_a_model_folder_of_a_repository(hub, tmp_path):
    commit = hub.repositories[NAME].commit
    result = CliRunner().invoke(main, ["import", f"hf://{NAME}@main", str(tmp_path / "out")])
    assert result.exit_code == 0, result.stderr
    assert f"imported from {NAME} at {commit} of transformers" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("name", [WEIGHTS, "vocab.json"])
def test_a_wrong_digest_is_refused_and_the_file_is_downloaded_again(hub, tmp_path, monkeypatch, name):
    hub.repositories[NAME].wrong = {name}
    assert refused() == f"hf://{NAME}: {name}: damaged in transfer; run the same command again"
    hub.repositories[NAME].wrong = set()
    monkeypatch.setattr("translume.interchange.hub.import_folder", lambda *arguments: None)
    before = len(hub.transferred())
    model_folder(f"hf://{NAME}")
    assert name in hub.transferred()[before:]


def test_an_unknown_repository_or_revision_is_named_and_a_missing_file(hub):
    login = "set HF_TOKEN or run `hf auth login`"
    hub.repositories[NAME].gated = True
    assert refused() == f"hf://{NAME}: gated: accept its conditions at {hub.address}/{NAME}, and {login}"
    hub.repositories[NAME].gated = False
    for name in (
        "Helsinki-NLP/opus-mt-fi-de",
        "Helsinki-NLP/opus-mt-en-da",
        "Helsinki-NLP/opus-mt",
        "other/opus-mt-en-dd",
    ):
        hub.repositories[name] = hub.repositories[NAME]
    for source, message in (
        ("hf://unknown/missing", f"no such repository at {hub.address}; if it is private, {login}"),
        ("hf://Helsinki-NLP/opus-mt-en-dd", f"no such repository at {hub.address}; nearest: en-da, fi-de"),
        (f"hf://{NAME}@v2", "no revision 'v2', expected a branch, a tag or a commit"),
        ("hf://t5-base", "expected hf://owner/name or hf://owner/name@revision"),
    ):
        assert refused(source) == f"{source}: {message}"
    hub.repositories[NAME].unlisted = {"source.spm"}
    assert refused().startswith(f"hf://{NAME}: a file of the repository is missing: ")


def test_a_pair_of_languages_names_a_repository_of_opus_mt(hub):
    hub.repositories["Helsinki-NLP/opus-mt-en-de"] = hub.repositories[NAME]
    folder = model_folder("opus:en-de")
    assert folder.name == "opus-mt-en-de"
    assert model_folder(Path("hf://Helsinki-NLP/opus-mt-en-de")) == folder
    assert model_folder(f"opus:en-de@{hub.repositories[NAME].commit}") == folder
    address = f"no such repository at {hub.address}; nearest: en-de"
    assert refused("opus:en-d") == f"hf://Helsinki-NLP/opus-mt-en-d: {address}"
    result = CliRunner().invoke(main, ["translate", "opus:en-de", "--max-length", "5"], input="A man.\n")
    assert (result.exit_code, result.exception) == (0, None), result.stderr
    assert refused("opus:") == "hf://Helsinki-NLP/opus-mt-: expected hf://owner/name or hf://owner/name@revision"


PORTAL = b"<html><body>Please log in to the network</body></html>"


@pytest.mark.parametrize(
    ("status", "reason"),
    [(429, "answers 429"), (500, "answers 500"), (503, "answers 503"), (200, "does not answer as a Hub does")],
)
def test_a_hub_that_does_not_serve_is_named_and_what_is_in_the_cache_is_used(hub, status, reason, caplog):
    hub.always = (status, PORTAL)
    assert refused() == f"hf://{NAME}: not in the cache, and {hub.address} {reason}"
    hub.always = None
    folder = model_folder(f"hf://{NAME}")
    assert not caplog.messages
    hub.always = (status, PORTAL)
    assert model_folder(f"hf://{NAME}") == folder
    assert caplog.messages == [f"hf://{NAME}: {hub.address} {reason}: using the copy in the cache"]


def test_a_missing_connection_is_named(hub):
    hub.close()
    assert refused() == f"hf://{NAME}: not in the cache, and {hub.address} cannot be reached"


def test_a_full_disk_is_named(hub, monkeypatch):
    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device", "/full/blob")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    assert refused() == f"hf://{NAME}: cannot be stored: /full/blob: No space left on device"


def test_a_repository_without_weights_or_settings_is_refused(hub):
    files = hub.repositories[NAME].files
    files["tf_model.h5"] = files.pop(WEIGHTS)
    assert refused() == f"hf://{NAME}: has no weights, expected model.safetensors or pytorch_model.bin"
    assert "tf_model.h5" not in hub.transferred()
    del files["config.json"]
    hub.repositories[NAME].commit = "facade" + "0" * 34
    assert refused() == f"hf://{NAME}: has no config.json, expected a model of transformers"


def test_a_repository_with_a_malicious_pickle_is_refused(hub, tmp_path):
    files = hub.repositories[NAME].files
    trace = tmp_path / "executed"
    torch.save({"payload": Malicious(trace)}, tmp_path / "evil.bin")
    del files[WEIGHTS]
    files["pytorch_model.bin"] = (tmp_path / "evil.bin").read_bytes()
    assert "refused by torch's weights-only reader, which executes nothing" in refused()
    assert not trace.exists()
    assert not list((tmp_path / "cache").rglob("manifest.json"))


def test_an_unknown_architecture_is_refused_before_its_weights_are_downloaded(hub):
    files = hub.repositories[NAME].files
    files["config.json"] = b'{"architectures": ["LlamaForCausalLM"]}'
    assert "architectures: found 'LlamaForCausalLM'" in refused(error=SettingsError)
    assert WEIGHTS not in hub.transferred()


def test_a_model_folder_of_translume_is_copied(hub, tmp_path):
    made = tmp_path / "model"
    translume.import_model(hub_files(hub, tmp_path / "opus"), made)
    hub.repositories["us/ours"] = StoredRepository.from_folder(made)
    folder = model_folder("hf://us/ours")
    assert refused_import("hf://us/ours", tmp_path / "out") == (
        "hf://us/ours: is a model folder of Translume already; use it under this name, or copy it with "
        "`hf download us/ours`"
    )
    assert folder.name == "ours"
    shutil.rmtree(tmp_path / "downloads")
    assert load_checkpoint(folder).config == load_checkpoint(made).config


def test_commands_take_a_repository_where_they_take_a_model(hub, tmp_path, monkeypatch):
    from translume.cli.options import MODEL
    from translume.cli.serve import _settings_reader

    made = tmp_path / "made"
    monkeypatch.setattr(
        "translume.interchange.hub.cached_model", lambda source, progress: made / source.rpartition("/")[2]
    )
    for command, arguments in {
        "show": [], "translate": [], "classify": [], "generate": [], "score": ["a", "b"], "inspect": ["a"],
        "evaluate": ["a", "b"], "export": ["huggingface", "out"],
    }.items():  # fmt: skip
        result = CliRunner().invoke(main, [command, "hf://a/model", *arguments])
        assert f"Error: {made / 'model'}: not a model folder: there is no such folder\n" == result.stderr, command
    settings = tmp_path / "serve.toml"
    settings.write_text('[models]\nfirst = "hf://a/one"\nsecond = "local"\n')
    read = _settings_reader(settings, {}, (), ())
    assert read().models == {"first": str(made / "one"), "second": str(tmp_path / "local")}
    given = tuple(MODEL.convert(each, None, None) for each in ("hf://a/one", "second=hf://b/two@v1"))
    assert _settings_reader(None, {}, given, ())().models == {"one": str(made / "one"), "second": str(made / "two@v1")}


def refused_import(source, folder):
    with pytest.raises(TranslumeError) as caught:
        translume.import_model(source, folder)
    assert not folder.exists()
    return str(caught.value)


def hub_files(hub, folder):
    folder.mkdir()
    for name, content in hub.repositories[NAME].files.items():
        (folder / name).write_bytes(content)
    return folder
