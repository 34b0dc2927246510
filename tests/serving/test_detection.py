"""Language detection among the languages of a server."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from translume.serving.api import languages
from translume.serving.api.languages import Lingua, installed_detector
from translume.serving.models import ServedModel
from translume.text.sentences import iso_code
from translume.translator import Translator

pytest.importorskip("lingua", reason="lingua is not installed: pip install 'translume[detect]'")

SENTENCES = {
    "en": "The two children are playing in the garden behind the house.",
    "de": "Die beiden Kinder spielen im Garten hinter dem Haus.",
    "fr": "Les deux enfants jouent dans le jardin derrière la maison.",
    "pt-BR": "As duas crianças estão brincando no jardim atrás da casa.",
    "zh-Hans": "两个孩子在房子后面的花园里玩耍。",
    "nb": "De to barna leker i hagen bak huset, og det er ikke kaldt.",
}


def test_a_sentence_is_detected_by_its_script_and_reported_with_the_servers_code() -> None:
    for code, sentence in SENTENCES.items():
        found = Lingua().languages(sentence, list(SENTENCES))
        assert found[0][0] == code
        assert found[0][1] > 0.6
        assert found == sorted(found, key=lambda each: -each[1])
        assert sum(value for _, value in found) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("text", ["", " ", "123 456", "\U0001f600", "今天", "\x00", "?!"])
def test_a_text_without_a_possible_language_has_no_result(text: str) -> None:
    assert Lingua().languages(text, ["en", "de"]) == []


def test_only_requested_languages_are_returned() -> None:
    text = SENTENCES["de"]
    assert [code for code, _ in Lingua().languages(text, ["fr", "xx"])] in ([], ["fr"])
    assert Lingua().languages(text, ["xx"]) == []
    assert [code for code, _ in Lingua().languages(text, ["de", "de-AT"])] == ["de"]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [("pb", "pt"), ("pt-BR", "pt"), ("zt", "zh"), ("zh_Hant", "zh"), ("no", "nb"), ("EN", "en"), ("", "")],
)
def test_codes_are_mapped_to_iso_639_1(code: str, wanted: str) -> None:
    assert iso_code(code) == wanted


def test_only_the_beginning_of_a_long_text_is_read() -> None:
    text = f"{SENTENCES['de']} " * 50
    ((first, _), (second, doubt)) = Lingua().languages(text + "the " * 10**6, ["en", "de"])
    assert (first, second) == ("de", "en")
    assert doubt < 1e-6


def test_detection_is_thread_safe() -> None:
    languages._lingua.cache_clear()
    wrong: list[str] = []

    def ask() -> None:
        for code, sentence in SENTENCES.items():
            if Lingua().languages(sentence, list(SENTENCES))[0][0] != code:
                wrong.append(code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_server_detects_languages_with_the_installed_library(
    start: Callable[..., Any], translator: Translator
) -> None:
    detector = installed_detector()
    assert detector is not None
    server = start(ServedModel.from_model("en-de", translator), detector=detector)
    found = server.post("/detect", q=SENTENCES["de"]).json()
    assert [each["language"] for each in found] == ["de", "en"]
    assert found[0]["confidence"] > 90
    answer = server.post("/translate", q="the children are here", source="auto", target="de").json()
    assert answer["detectedLanguage"]["language"] == "en"
    answer = server.post("/translate", q=SENTENCES["de"], source="auto", target="de")
    assert (answer.status, answer.json()["translatedText"]) == (200, SENTENCES["de"])
