"""Packages of Argos Translate as a server: loaded when they are needed, and one after the other through English."""

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from translume.checkpoint import model_folder
from translume.checkpoint.folder import is_cached_import
from translume.cli import main
from translume.serving.reloading import Loader, load_served
from translume.translator import load
from translume.translator.loading import ComputeOptions

pytest.importorskip("libretranslatepy", reason="libretranslatepy is not installed (extra: dev)")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (extra: export)")

from tests.interchange.conftest import SOURCES
from tests.interchange.test_argos import package
from tests.interchange.test_ctranslate2_import import opennmt_folder

PAIRS = (("de", "en"), ("en", "fr"), ("en", "de"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Three packages and the folders of their imports."""
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("translume.text.imported.LINES", 100)
        patch.setenv("TRANSLUME_CACHE", str(folder / "cache"))
        files = []
        for seed, (source, target) in enumerate(PAIRS):
            model = opennmt_folder(folder / f"model{seed}", seed=seed)
            path = folder / f"{source}_{target}.argosmodel"
            files.append(package(path, model, from_code=source, to_code=target))
        yield [(path, model_folder(path)) for path in files]


@pytest.fixture
def live(start, packages):
    loader = Loader(partial(load_served, ComputeOptions(device="cpu"), on_demand=True), "en")
    models = loader.load_all({folder.name: folder for _, folder in packages})
    running = start(*models.all)
    running.server.models = models
    return running


def loaded(live) -> dict[str, bool]:
    return {each.name: each.loaded for each in live.server.models.all}


def test_a_package_is_loaded_by_the_first_request_that_needs_it(live, packages) -> None:
    assert loaded(live) == {"de_en": False, "en_fr": False, "en_de": False}
    assert live.get("/health/ready").status == 200
    assert {each["engine"]["kind"] for each in live.get("/v1/models").json()["models"]} == {"unloaded"}
    answer = live.post("/translate", q=SOURCES[0], source="en", target="de")
    assert answer.json() == {"translatedText": load(packages[2][1]).translate(SOURCES[0], split="never").text}
    assert loaded(live) == {"de_en": False, "en_fr": False, "en_de": True}
    assert live.post("/v1/translate", text=SOURCES[0], source="en", target="fr").status == 200
    assert loaded(live) == {"de_en": False, "en_fr": True, "en_de": True}
    assert live.get("/health/ready").status == 200


def test_two_packages_translate_through_english(live, packages) -> None:
    languages = {each["code"]: each["targets"] for each in live.get("/languages").json()}
    assert languages == {"de": ["en", "fr"], "en": ["fr", "de"], "fr": []}
    first, second = load(packages[0][1]), load(packages[1][1])
    wanted = [second.translate(first.translate(text, split="never").text, split="never").text for text in SOURCES]
    answer = live.post("/translate", q=[*SOURCES], source="de", target="fr").json()
    assert answer == {"translatedText": wanted, "models": [["de_en", "en_fr"]] * len(SOURCES)}
    one = live.post("/translate", q=SOURCES[0], source="de", target="fr").json()
    assert one == {"translatedText": wanted[0], "models": ["de_en", "en_fr"]}
    from libretranslatepy import LibreTranslateAPI

    client = LibreTranslateAPI(live.url)
    assert [client.translate(text, "de", "fr") for text in SOURCES] == wanted


def test_other_routes_name_the_pairs_that_they_have(live) -> None:
    answer = live.post("/v1/translate", text="a", source="de", target="fr")
    assert (answer.status, answer.json()["code"]) == (404, "unknown_pair")
    assert live.post("/translate", q="a", source="fr", target="de").status == 400


def test_the_intermediate_text_is_charged_too(live, monkeypatch) -> None:
    charged = []

    async def accept(self, request, texts, more=0, others=0):
        charged.append([*texts])

    monkeypatch.setattr("translume.serving.server.Server.accept", accept)
    live.post("/translate", q=SOURCES[0], source="de", target="fr")
    assert len(charged) == 2
    assert charged[0] == [SOURCES[0]]


def test_the_command_serves_packages_on_demand(packages, monkeypatch) -> None:
    """The command reads settings once; the test stops it there."""
    seen = []

    def stop(settings):
        seen.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr("translume.serving.settings.ServeSettings.must_have_models", stop)
    monkeypatch.setenv("TRANSLUME_CACHE", str(packages[0][1].parents[2]))
    CliRunner().invoke(main, ["serve", *(str(path) for path, _ in packages)])
    (settings,) = seen
    assert (settings.on_demand, settings.pivot) == (True, "en")
    assert [*settings.models] == ["de_en", "en_fr", "en_de"]
    assert all(is_cached_import(Path(folder)) for folder in settings.models.values())
