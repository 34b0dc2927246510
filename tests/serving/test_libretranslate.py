"""The LibreTranslate API: every documented response, and its client library unchanged."""

import re
from collections.abc import Callable, Sequence
from html import escape as html_of_text
from typing import Any
from urllib.error import HTTPError

import pytest

from translume.documents import FORMATS
from translume.serving.models import ServedModel
from translume.translator import Translator

libretranslatepy = pytest.importorskip("libretranslatepy", reason="LibreTranslate's client is not installed")


class English:
    """A detector that takes every text for English with a confidence of 75 %, but finds no language in z only."""

    def languages(self, text: str, among: Sequence[str]) -> list[tuple[str, float]]:
        assert list(among) == ["en", "de", "pt-BR"]
        return [] if set(text) <= {"z", "\n"} else [("en", 0.75), ("de", 0.2), ("pt-BR", 0.04), ("fr", 0.01)]


@pytest.fixture(scope="module")
def multilingual(start: Callable[..., Any], make: Callable[..., Translator], translator: Translator) -> Any:
    """Return a server with a detector and two models, English to German and German to Brazilian Portuguese."""
    other = make("data.source_language=de", "data.target_language=pb", "decoding.beam=2", seed=5)
    served = [ServedModel.from_model("en-de", translator), ServedModel.from_model("de-pb", other)]
    return start(*served, texts=3, characters=50, detector=English())


def pair(**fields: Any) -> dict[str, Any]:
    return {"source": "en", "target": "de", **fields}


def test_a_form_with_a_text(live: Any, translator: Translator) -> None:
    answer = live.form("/translate", **pair(q="Hello"))
    assert (answer.status, answer.json()) == (200, {"translatedText": translator.translate("Hello").text})


def test_json_with_a_text_and_with_a_list(live: Any, translator: Translator) -> None:
    wanted = translator.translate("Hello").text
    assert live.post("/translate", pair(q="Hello")).json() == {"translatedText": wanted}
    assert live.post("/translate", pair(q=["Hello"])).json() == {"translatedText": [wanted]}


def test_a_multipart_form_and_a_query(live: Any, translator: Translator) -> None:
    parts = "".join(
        f'--xx\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in pair(q="hello é").items()
    )
    answer = live.ask(
        "POST", "/translate", f"{parts}--xx--\r\n".encode(), content_type="multipart/form-data; boundary=xx"
    )
    assert answer.json() == {"translatedText": translator.translate("hello é").text}
    many = "--xx\r\nContent-Disposition: form-data; name=a\r\n\r\nb\r\n" * 70
    answer = live.ask("POST", "/translate", many.encode(), content_type="multipart/form-data; boundary=xx")
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")
    assert live.ask("POST", "/translate", b"", content_type="multipart/form-data").status == 400
    answer = live.ask("POST", "/translate?q=hello&source=EN&target=DE")
    assert answer.json() == {"translatedText": translator.translate("hello").text}


@pytest.mark.parametrize("count", [2, "2"])
def test_alternatives_are_the_next_best_translations(live: Any, translator: Translator, count: Any) -> None:
    found = live.post("/translate", pair(q="hello", alternatives=count)).json()
    texts = [each.text for each in translator.translate("hello", nbest=3).hypotheses]
    assert [found["translatedText"], *found["alternatives"]] == [text for text in dict.fromkeys(texts) if text]
    listed = live.post("/translate", pair(q=["hello", "a"], alternatives=count)).json()
    assert [len(listed["translatedText"]), len(listed["alternatives"])] == [2, 2]
    assert listed["alternatives"][0] == found["alternatives"]
    assert all(isinstance(each, list) for each in listed["alternatives"])


def test_a_negative_number_of_alternatives_gives_none(live: Any) -> None:
    assert set(live.post("/translate", pair(q="hello", alternatives=-1)).json()) == {"translatedText"}


def test_source_auto_is_detected(multilingual: Any, translator: Translator) -> None:
    language = {"confidence": 75.0, "language": "en"}
    found = multilingual.post("/translate", q="hello", source="auto", target="de").json()
    assert found == {"detectedLanguage": language, "translatedText": translator.translate("hello").text}
    found = multilingual.post("/translate", q=["hello", "a"], source="auto", target="de").json()
    assert found["detectedLanguage"] == [language, language]


def test_the_confidence_is_zero_when_no_language_is_detected(
    live: Any, multilingual: Any, translator: Translator
) -> None:
    nothing = {"confidence": 0.0, "language": "en"}
    found = multilingual.post("/translate", q=["\U0001f600", " "], source="auto", target="xx").json()
    assert found == {"detectedLanguage": [nothing, nothing], "translatedText": ["\U0001f600", " "]}
    for server in (live, multilingual):
        found = server.post("/translate", q="12 3", source="auto", target="de").json()
        assert found == {"detectedLanguage": nothing, "translatedText": translator.translate("12 3").text}
    found = multilingual.post("/translate", q="zz", source="auto", target="pt-br").json()
    assert found["detectedLanguage"] == {"confidence": 0.0, "language": "de"}
    found = multilingual.post("/translate", q="zz", source="auto", target="en").json()
    assert found == {"detectedLanguage": nothing, "translatedText": "zz"}


def test_texts_without_words_are_returned_unchanged(live: Any, translator: Translator) -> None:
    found = live.post("/translate", pair(q=["", "Hello", " \t", "\U0001f600 \U0001f600"])).json()
    assert found == {"translatedText": ["", translator.translate("Hello").text, " \t", "\U0001f600 \U0001f600"]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (pair(q=""), "missing_field Invalid request: missing q parameter"),
    (pair(q=[]), "missing_field Invalid request: missing q parameter"),
    (pair(), "missing_field Invalid request: missing q parameter"),
    ({"q": "a", "target": "de"}, "missing_field Invalid request: missing source parameter"),
    ({"q": "a", "source": "en"}, "missing_field Invalid request: missing target parameter"),
    (pair(q="a", target="xx"), "unknown_language xx is not supported; expected one of: en, de"),
    (pair(q="a", source="xx"), "unknown_language xx is not supported; expected one of: en, de"),
    (
        pair(q="a", target="en", source="de"),
        "unknown_pair English (en) is not available as a target language from German (de)",
    ),
    (pair(q="a", format="xml"), "invalid_value format: found a string, expected 'text' or 'html'"),
    (pair(q=5), "invalid_value q: found 5, expected a string or a list of strings"),
    (pair(q={"a": 1}), "invalid_value q: found an object, expected a string or a list of strings"),
    (pair(q=["a", 5]), "invalid_value q[1]: found 5, expected a string"),
    (pair(q=[["a"]]), "invalid_value q[0]: found a list, expected a string"),
    (pair(q="a", source=["en"]), "invalid_value source: found a list, expected a valid string"),
    (
        pair(q="a", alternatives="x"),
        "invalid_value alternatives: found a string, expected a valid integer, unable to parse string as an integer",
    ),
    (pair(q="a", alternatives=None), "invalid_value alternatives: found null, expected a valid integer"),
    (pair(q="a", alternatives=6), "too_wide alternatives: found 6, expected at most 5"),
    (pair(q=["a"] * 6), "too_many_texts q: found 6 texts, expected at most 5"),
    (pair(q="a" * 301), "text_too_long q: found 301 characters, expected at most 300"),
]


@pytest.mark.parametrize(("fields", "said"), REFUSED)
def test_invalid_requests_get_400_with_libretranslates_message(live: Any, fields: dict[str, Any], said: str) -> None:
    answer = live.post("/translate", fields)
    assert (answer.status, f"{answer.json()['code']} {answer.json()['error']}") == (400, said)


def test_invalid_forms_are_refused_like_json(live: Any) -> None:
    assert live.form("/translate", **pair(q="a", alternatives="x")).status == 400
    assert live.form("/translate").json()["error"] == "Invalid request: missing q parameter"
    assert live.ask("POST", "/translate", b"q=%ff", content_type="application/x-www-form-urlencoded").status == 400
    assert live.ask("POST", "/translate", b"a text", content_type="text/plain").json()["code"] == "missing_field"


def test_json_other_than_an_object_is_refused(live: Any) -> None:
    answer = live.post("/translate", [1])
    assert (answer.status, answer.json()["error"]) == (400, "the body is a list, expected a JSON object")


@pytest.mark.parametrize("body", [b"", b"{", b'"a"', b"null", b'{"q": "\\ud800", "source": "en", "target": "de"}'])
def test_malformed_json_is_refused(live: Any, body: bytes) -> None:
    answer = live.ask("POST", "/translate", body, content_type="application/json")
    assert (answer.status, sorted(answer.json())) == (400, ["code", "error"])


def test_responses_do_not_depend_on_earlier_requests(live: Any, translator: Translator) -> None:
    one, both = (translator.translate(text).text for text in ("a", "a|b"))
    for _ in range(2):
        assert live.post("/translate", pair(q="a")).json() == {"translatedText": one}
        assert live.post("/translate", pair(q=["a"])).json() == {"translatedText": [one]}
        assert live.post("/translate", pair(q=["a|b"])).json() == {"translatedText": [both]}
        listed = live.post("/translate", pair(q=["a", "b"])).json()["translatedText"]
        assert listed == [one, translator.translate("b").text]


def test_entities_in_plain_text_are_not_decoded(live: Any, translator: Translator) -> None:
    found = live.post("/translate", pair(q="a &amp; b")).json()
    assert found == {"translatedText": translator.translate("a &amp; b").text}


def test_html_is_translated_and_its_markup_is_kept(live: Any, translator: Translator) -> None:
    one, two = (translator.translate(text).text for text in ("a man", "b."))
    html = "<p class='a man'>a man</p><script>a man</script> <h1>b.</h1>"
    wanted = f"<p class='a man'>{escape(one)}</p><script>a man</script> <h1>{escape(two)}</h1>"
    found = live.post("/translate", pair(q=html, format="html")).json()
    assert found == {"translatedText": wanted}
    found = live.post("/translate", pair(q=[html, "", "<br>", "12"], format="html")).json()
    assert found == {"translatedText": [wanted, "", "<br>", "12"]}
    found = live.post("/translate", pair(q="a <b>man</b> and <i>a dog</i>", format="html")).json()["translatedText"]
    assert re.findall("<.*?>", found) == ["<b>", "</b>", "<i>", "</i>"]
    wanted = escape(translator.translate("a man and a dog").text)
    assert "".join(re.sub("<.*?>", "", found).split()) == "".join(wanted.split())


def test_alternatives_of_html_combine_the_next_best_translations_of_its_sentences(
    live: Any, translator: Translator
) -> None:
    one, two = (translator.translate(text, nbest=3).hypotheses for text in ("a man", "b."))
    both = sorted(((a.score + b.score, a.text, b.text) for a in one for b in two), reverse=True)
    wanted = [f"<p title=x>{escape(a)}</p><h1>{escape(b)}</h1>" for _, a, b in both]
    html = "<p title=x>a man</p><h1>b.</h1>"
    found = live.post("/translate", pair(q=html, format="html", alternatives=2)).json()
    assert [found["translatedText"], *found["alternatives"]] == wanted[:3]
    listed = live.form("/translate", **pair(q="<b>a man</b>", format="html", alternatives="1")).json()
    assert [re.findall("<.*?>", text) for text in listed["alternatives"]] == [["<b>", "</b>"]]
    assert live.post("/translate", pair(q="<br>", format="html", alternatives=1)).json() == {
        "translatedText": "<br>",
        "alternatives": [],
    }


def test_the_language_of_html_is_detected_from_its_text(multilingual: Any) -> None:
    found = multilingual.post("/translate", q="<p title=hello>zz</p>", format="html", source="auto", target="de").json()
    assert found["detectedLanguage"] == {"confidence": 0.0, "language": "en"}
    found = multilingual.post("/translate", q=["<p>a", "<p>zz"], format="html", source="auto", target="de").json()
    assert found["detectedLanguage"] == [{"confidence": 75.0, "language": "en"}] * 2


def test_limits_apply_to_html(live: Any) -> None:
    answer = live.post("/translate", pair(q="<p>a" * 51, format="html"))
    assert (answer.status, answer.json()) == (
        413,
        {"error": "q: found 51 sentences, expected at most 50", "code": "too_many_lines", "field": "q"},
    )
    answer = live.post("/translate", pair(q=f"<p>{'a' * 60}", format="html"))
    assert (answer.status, answer.json()["code"]) == (422, "text_too_long")
    assert live.post("/translate", pair(q="a", format=["html"])).status == 400


def test_a_sentence_that_is_too_long_is_refused_without_a_hint_that_clients_cannot_follow(live: Any) -> None:
    assert live.post("/translate", pair(q="a" * 60)).json() == {
        "error": "q: a sentence has 60 tokens, expected at most 40",
        "code": "text_too_long",
        "field": "q",
    }
    assert "max_length_action" in live.post("/v1/translate", text="a" * 60).json()["error"]


def escape(text: str) -> str:
    return html_of_text(text, quote=False)


def test_get_translate_is_405_and_languages_accepts_post(live: Any) -> None:
    assert (live.get("/translate").status, live.get("/translate").json()["code"]) == (405, "method_not_allowed")
    assert live.post("/languages", {}).json() == live.get("/languages").json()


def test_languages_list_their_targets(live: Any, multilingual: Any) -> None:
    assert live.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert multilingual.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": ["pt-BR"]},
        {"code": "pt-BR", "name": "Portuguese (Brazil)", "targets": []},
    ]
    for code in ("pb", "pt-BR", "PT-br"):
        assert multilingual.post("/translate", q="a", source="de", target=code).status == 200


@pytest.mark.parametrize("same", [("en", "en"), ("de", "de-AT"), ("en_GB", "EN-us")])
def test_a_text_in_the_target_language_is_returned_unchanged(live: Any, same: tuple[str, str]) -> None:
    source, target = same
    found = live.post("/translate", q=["Hello", " a "], source=source, target=target, alternatives=1)
    assert (found.status, found.json()) == (200, {"translatedText": ["Hello", " a "], "alternatives": [[], []]})
    found = live.form("/translate", q="<b>a</b> &amp; b", source=source, target=target, format="html").json()
    assert found == {"translatedText": "<b>a</b> &amp; b"}
    assert live.post("/translate", q="a", source="xx", target="xx").status == 400


@pytest.fixture(scope="module")
def chinese(start: Callable[..., Any], make: Callable[..., Translator]) -> Any:
    """Return a server from English to Chinese."""
    return start(ServedModel.from_model("en-zh", make("data.target_language=zh", "decoding.strategy=greedy")))


def test_language_codes_are_understood_in_every_usual_spelling(chinese: Any) -> None:
    targets = ("zh", "zh-CN", "zh_Hans", "zh-Hans", "ZH-hans-cn", "zh-SG")
    for source, target in (*(("en", target) for target in targets), ("en-US", "zh"), ("EN_gb", "zh")):
        answer = chinese.post("/translate", q="a man", source=source, target=target)
        assert answer.status == 200, answer.body
    odd = {"source": "EN_gb", "target": "ZH-hans-cn"}
    assert chinese.post("/v1/translate", text="a man", **odd).status == 200
    assert chinese.upload("/translate_file", b"a", "a.txt", **odd).status == 200
    for target in ("zh-TW", "zt", "zh_Hant"):
        answer = chinese.post("/translate", q="a", source="en", target=target)
        assert (answer.status, answer.json()["error"]) == (
            400,
            f"{target.lower()} is not supported; expected one of: en, zh-Hans",
        )


def test_models_and_languages_have_the_same_codes(chinese: Any) -> None:
    (model,) = chinese.get("/v1/models").json()["models"]
    assert [each["code"] for each in chinese.get("/languages").json()] == [model["source"], model["target"]]
    assert (model["source"], model["target"]) == ("en", "zh-Hans")


@pytest.mark.parametrize("path", ["/translate/", "//translate", "//translate/"])
def test_extra_slashes_of_a_path_are_ignored(live: Any, path: str) -> None:
    assert live.form(path, **pair(q="Hello")).json() == live.form("/translate", **pair(q="Hello")).json()
    assert live.get("/languages/").json() == live.get("/languages").json()
    assert live.get("/page//").status == 404


def test_detect_returns_languages_by_confidence(live: Any, multilingual: Any) -> None:
    nothing = [{"confidence": 0.0, "language": "en"}]
    assert multilingual.post("/detect", q="hello").json() == [
        {"confidence": 75.0, "language": "en"},
        {"confidence": 20.0, "language": "de"},
        {"confidence": 4.0, "language": "pt-BR"},
    ]
    assert multilingual.post("/detect", q=["hello", "b"]).json()[0]["language"] == "en"
    assert multilingual.post("/detect", q="zzz").json() == nothing
    for server in (live, multilingual):
        assert (server.post("/detect", {}).status, server.post("/detect", q="").status) == (400, 400)
        assert server.post("/detect", q=5).status == 400
    assert multilingual.form("/detect", q="a" * 51).json()["code"] == "text_too_long"


def test_detection_without_a_detector_is_refused(live: Any) -> None:
    for answer in (live.post("/detect", q="hello"), live.post("/translate", q="a", source="auto", target="de")):
        assert (answer.status, answer.json()) == (
            501,
            {
                "error": "this server cannot detect languages; name the source language, "
                "or have its operator run pip install 'translume[detect]'",
                "code": "no_detection",
                "field": "source",
            },
        )


def test_unsupported_and_unknown_paths(live: Any) -> None:
    assert (live.get("/download_file/nope").status, live.get("/download_file/nope").json()["code"]) == (
        404,
        "unknown_file",
    )
    assert live.form("/suggest", q="a", s="b").status == 403


def test_settings_and_health(live: Any) -> None:
    assert live.get("/health").json() == {"status": "ok"}
    assert live.get("/frontend/settings").json() == {
        "apiKeys": False,
        "charLimit": 300,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": {"source": {"code": "en", "name": "English"}, "target": {"code": "de", "name": "German"}},
        "suggestions": False,
        "supportedFilesFormat": [*FORMATS],
    }


def test_the_client_library_works_unchanged(multilingual: Any, translator: Translator) -> None:
    for key in (None, "a key"):
        client = libretranslatepy.LibreTranslateAPI(f"{multilingual.url}/", api_key=key)
        assert client.translate("hello", "en", "de") == translator.translate("hello").text
        assert client.detect("hello")[0] == {"confidence": 75.0, "language": "en"}
        assert [each["code"] for each in client.languages()] == ["en", "de", "pt-BR"]
        with pytest.raises(HTTPError) as caught:
            client.translate("hello", "en", "xx")
        assert caught.value.code == 400
        caught.value.close()


def test_a_server_of_models_without_languages_says_so(start: Any, make: Callable[..., Translator]) -> None:
    """Such as a model that answers questions."""
    translator = make("data.source_language=''", "data.target_language=''")
    answer = start(ServedModel.from_model("answers", translator)).post("/translate", pair(q="a"))
    assert (answer.status, answer.json()["error"]) == (
        400,
        "en is not supported; the models of this server have no languages",
    )
