"""Language detection among the languages of a server."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from translume.serving.models import ServedModel
from translume.text import detection
from translume.text.detection import Lingua, installed_detector
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
    detection._lingua.cache_clear()
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


FRENCH, RUSSIAN = "Le village a une belle église.", "Сегодня хорошая погода в Москве."
ENGLISH, GERMAN = "The children are here.", "Die Kinder sind heute hier."


@pytest.fixture(scope="module")
def detecting(start: Callable[..., Any], translator: Translator) -> Any:
    return start(ServedModel.from_model("en-de", translator), detector=Lingua())


@pytest.mark.parametrize(("text", "code"), [(FRENCH, "fr"), (RUSSIAN, "ru"), ("今天天气很好。", "zh")])
def test_a_language_that_the_server_does_not_have_is_named(detecting: Any, text: str, code: str) -> None:
    found = detecting.post("/detect", q=text).json()
    assert found[0]["language"] == code
    assert 20 < found[0]["confidence"] <= 100
    name = {"fr": "French (fr)", "ru": "Russian (ru)", "zh": "Chinese (zh)"}.get(code)
    found = detecting.post("/translate", q=text, source="auto", target="de").json()
    assert found["detectedLanguage"]["language"] == code
    assert found["warnings"] == [f"found {name}, which this server does not have; translated from en"]
    assert "warnings" not in detecting.post("/translate", q=text, source="en", target="de").json()


def test_a_language_that_the_server_does_not_have_is_refused_where_asked(detecting: Any) -> None:
    reason = "found French (fr), which this server does not have; name the source language to translate it nevertheless"
    answer = detecting.post("/translate", q=FRENCH, source="auto", target="de", refuse_unknown=True)
    assert (answer.status, answer.json()["error"]) == (400, f"source: {reason}")
    answer = detecting.upload("/v1/files", FRENCH.encode(), "a.txt", source="auto", target="de")
    assert (answer.status, answer.json()["error"]) == (400, f"source: {reason}")
    assert detecting.upload("/v1/files", FRENCH.encode(), "a.txt", source="en", target="de").status == 202


def test_a_short_or_known_text_is_in_a_language_of_the_server(detecting: Any) -> None:
    for text in ("Hello", "a man", "Bonjour", "Kubernetes", "ok thanks", *(SENTENCES[code] for code in ("en", "de"))):
        assert {each["language"] for each in detecting.post("/detect", q=text).json()} <= {"en", "de"}


def test_each_text_of_a_list_has_its_own_language(detecting: Any, translator: Translator) -> None:
    texts = [GERMAN, ENGLISH, "42", ENGLISH]
    found = detecting.post("/translate", q=texts, source="auto", target="de").json()
    english = translator.translate(ENGLISH).text
    assert found["translatedText"] == [GERMAN, english, "42", english]
    assert [each["language"] for each in found["detectedLanguage"]][:2] == ["de", "en"]
    marked = detecting.post(
        "/translate", q=[f"<p>{text}</p>" for text in texts], source="auto", target="de", format="html"
    )
    assert [each["language"] for each in marked.json()["detectedLanguage"]][:2] == ["de", "en"]
    assert marked.json()["translatedText"][0] == f"<p>{texts[0]}</p>"


def test_each_text_of_deepls_request_has_its_own_language(
    start: Callable[..., Any], make: Callable[..., Translator], translator: Translator
) -> None:
    back = make("data.source_language=fr", "data.target_language=de", seed=5)
    server = start(
        ServedModel.from_model("en-de", translator), ServedModel.from_model("fr-de", back), detector=Lingua()
    )
    texts = [FRENCH, ENGLISH, "!!!"]
    found = server.post("/v2/translate", text=texts, target_lang="DE").json()["translations"]
    assert [each["detected_source_language"] for each in found][:2] == ["FR", "EN"]
    wanted = [back.translate(texts[0]).text, translator.translate(texts[1]).text, "!!!"]
    assert [each["text"] for each in found] == wanted
