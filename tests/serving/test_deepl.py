"""The DeepL API: forms and JSON, keys, and what is refused."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from tests.serving.conftest import until

from translume.serving.models import ServedModel
from translume.translator import Translator


def test_json_and_forms_with_one_or_several_texts(live: Any, translator: Translator) -> None:
    texts = [translator.translate(text).text for text in ("a man", "b")]
    lengths = zip(texts, (5, 1), strict=True)
    wanted = {
        "translations": [
            {"detected_source_language": "EN", "text": text, "billed_characters": length} for text, length in lengths
        ]
    }
    assert live.post("/v2/translate", text=["a man", "b"], target_lang="DE").json() == wanted
    form = urlencode([("text", "a man"), ("text", "b"), ("target_lang", "DE"), ("source_lang", "EN")]).encode()
    kind = "application/x-www-form-urlencoded"
    assert live.ask("POST", "/v2/translate", form, content_type=kind).json() == wanted
    one = {"translations": wanted["translations"][:1]}
    assert live.form("/v2/translate", text="a man", target_lang="de", source_lang="en-US").json() == one


def test_html_is_translated_and_the_same_language_returned_unchanged(live: Any, translator: Translator) -> None:
    found = live.post("/v2/translate", text=["<p title=x>a man</p>"], target_lang="DE", tag_handling="html").json()
    assert found["translations"][0]["text"].startswith("<p title=x>")
    found = live.post("/v2/translate", text=["a &amp; b"], target_lang="EN-GB", source_lang="EN").json()
    assert found == {"translations": [{"detected_source_language": "EN", "text": "a &amp; b", "billed_characters": 9}]}


@pytest.mark.parametrize(
    ("field", "value", "status", "reason"),
    [
        ("text", [], 400, "Invalid request: missing text parameter"),
        ("target_lang", "", 400, "Invalid request: missing target_lang parameter"),
        ("target_lang", "XX", 400, "XX is not supported; expected one of: en, de"),
        ("text", [5], 422, "text[0]: found 5, expected a string"),
        ("tag_handling", "md", 422, "tag_handling: found a string, expected '', 'html' or 'xml'"),
        ("glossary_id", "x", 422, "glossary_id: found a string, expected ''"),
        (
            "formality",
            "more",
            422,
            "formality: found a string, expected 'default', 'prefer_more' or 'prefer_less'",
        ),
    ],
)
def test_what_the_models_cannot_do_is_refused(live: Any, field: str, value: Any, status: int, reason: str) -> None:
    call = {"text": ["a"], "target_lang": "DE", "source_lang": "EN", field: value}
    answer = live.post("/v2/translate", call)
    assert (answer.status, answer.json()["error"]) == (status, reason)


def test_languages_are_listed_in_capitals(live: Any) -> None:
    assert live.get("/v2/languages").json() == [{"language": "EN", "name": "English"}]
    german = [{"language": "DE", "name": "German", "supports_formality": False}]
    assert live.get("/v2/languages?type=target").json() == german
    # DeepL's client for Python sends the parameter in the body of a GET.
    kind = "application/x-www-form-urlencoded"
    assert live.ask("GET", "/v2/languages", b"type=target", content_type=kind).json() == german


def test_targets_are_named_with_the_regions_that_clients_require(start: Any, make: Callable[..., Translator]) -> None:
    other = make("data.source_language=de", "data.target_language=en", seed=5)
    served = start(ServedModel.from_model("de-en", other))
    found = served.get("/v2/languages?type=target").json()
    assert [each["language"] for each in found] == ["EN-GB", "EN-US"]
    for code in ("EN-GB", "EN-US"):
        assert served.post("/v2/translate", text=["a"], target_lang=code).status == 200


def test_a_server_without_keys_has_no_limit(live: Any) -> None:
    assert live.get("/v2/usage").json() == {"character_count": 0, "character_limit": 10**12}


@pytest.mark.parametrize("more", [{}, {"tag_handling": "html"}])
def test_hints_name_only_what_the_client_can_set(live: Any, more: dict[str, str]) -> None:
    answer = live.post("/v2/translate", text=["a" * 60], target_lang="DE", split_sentences="0", **more)
    where = "text" if more else "text[0]"
    reason = f"{where}: a sentence has 60 tokens, expected at most 40"
    assert (answer.status, answer.json()["error"]) == (422, reason)
    assert answer.json()["message"] == reason


def test_the_client_library_works_unchanged(live: Any, translator: Translator) -> None:
    deepl = pytest.importorskip("deepl", reason="DeepL's client is not installed")
    client = deepl.Translator("a key", server_url=live.url)
    found = client.translate_text(["a man"], target_lang="DE")
    assert [each.text for each in found] == [translator.translate("a man").text]
    assert [each.code for each in client.get_source_languages()] == ["EN"]
    assert [each.code for each in client.get_target_languages()] == ["DE"]
    assert client.get_usage().character.limit == 10**12


def test_xml_keeps_its_markup(live: Any) -> None:
    text = '<doc id="1"><seg>a man</seg> <x/>\n<seg>b &amp; c</seg></doc>'
    found = live.post("/v2/translate", text=[text], target_lang="DE", tag_handling="xml").json()
    written = found["translations"][0]["text"]
    assert re.findall("<[^>]*>", written) == re.findall("<[^>]*>", text)
    ElementTree.fromstring(written)


def test_a_document_is_translated_as_deepls_client_asks(live: Any, translator: Translator) -> None:
    answer = live.upload("/v2/document", b"a man\n\n42\n", "notes.txt", target_lang="DE")
    handle = answer.json()
    assert (answer.status, set(handle)) == (200, {"document_id", "document_key"})
    path = f"/v2/document/{handle['document_id']}"
    until(lambda: live.post(path, document_key=handle["document_key"]).json()["status"] == "done")
    assert live.post(path, document_key=handle["document_key"]).json()["billed_characters"] == 5
    found = live.post(f"{path}/result", document_key=handle["document_key"])
    assert found.body.decode() == f"{translator.translate('a man').text}\n\n42\n"
    assert live.post("/v2/document/nothing", document_key="x").status == 404


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "Invalid request: missing target_lang parameter"),
        ({"target_lang": "XX", "source_lang": "EN"}, "XX is not supported; expected one of: en, de"),
        ({"target_lang": "DE", "glossary_id": "x"}, "glossary_id: found a string, expected ''"),
        ({"target_lang": "DE", "output_format": "pdf"}, "output_format: found a string, expected ''"),
    ],
)
def test_a_document_that_cannot_be_translated_is_refused(live: Any, fields: dict[str, str], reason: str) -> None:
    answer = live.upload("/v2/document", b"a man", "notes.txt", **fields)
    assert answer.status in (400, 422)
    assert (answer.json()["error"], answer.json()["message"]) == (reason, reason)
