"""The DeepL API: forms and JSON, keys, and what is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from tests.errors import raises
from tests.serving.conftest import until

from translume.serving.api.deepl import MAX_OF_CLIENT, Glossaries, Glossary, _read
from translume.serving.api.errors import RequestError
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
        ("glossary_id", "x", 404, "no such glossary, or it was deleted"),
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
    reason = "text[0]: a sentence has 60 tokens, expected at most 40"
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


def test_a_glossary_is_made_used_and_deleted(live: Any) -> None:
    call = {
        "name": "g",
        "source_lang": "EN",
        "target_lang": "DE",
        "entries": "man\tabc\nDog\tdef gh",
        "entries_format": "tsv",
    }
    made = live.post("/v2/glossaries", call)
    facts = made.json()
    assert (made.status, facts["name"], facts["ready"], facts["entry_count"]) == (201, "g", True, 2)
    path = f"/v2/glossaries/{facts['glossary_id']}"
    assert live.get(path).json() == facts
    assert facts in live.get("/v2/glossaries").json()["glossaries"]
    assert live.get(f"{path}/entries").body == b"man\tabc\nDog\tdef gh\n"
    assert live.get("/v2/glossary-language-pairs").json() == {
        "supported_languages": [{"source_lang": "en", "target_lang": "de"}]
    }
    asked = {"target_lang": "DE", "source_lang": "EN", "glossary_id": facts["glossary_id"]}
    for markup in ("", "html"):
        texts = ["a man. the dog", "a woman"]
        found = live.post("/v2/translate", text=texts, **asked, tag_handling=markup).json()["translations"]
        assert "abc" in found[0]["text"]
        assert "def gh" in found[0]["text"]
        assert "abc" not in found[1]["text"]
    assert live.ask("DELETE", path).status == 204
    assert live.post("/v2/translate", text=["a"], **asked).status == 404


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"entries": "man"}, 400, "entries: line 1 is not a source and a target term"),
        ({"entries": "a\tb\n\tc"}, 400, "entries: line 2 is not a source and a target term"),
        ({"entries": "\n"}, 400, "entries: found no term, expected at least one"),
        ({"source_lang": "XX"}, 400, "XX is not supported; expected one of: en, de"),
        ({"entries_format": "xls"}, 422, "entries_format: found a string, expected 'tsv' or 'csv'"),
    ],
)
def test_what_is_no_glossary_is_refused(live: Any, fields: dict[str, str], status: int, reason: str) -> None:
    call = {"name": "g", "source_lang": "EN", "target_lang": "DE", "entries": "a\tb", **fields}
    answer = live.post("/v2/glossaries", call)
    assert (answer.status, answer.json()["error"].lower()) == (status, reason.lower())


class Place:
    """A server, of which glossaries need its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def glossary(number: int, client: str) -> Glossary:
    facts = {"name": "g", "source_lang": "en", "target_lang": "de", "creation_time": ""}
    return Glossary(glossary_id=f"{number:032}", client=client, terms=[["a", "b"]], **facts)  # type: ignore[list-item]  # as JSON has them


def test_glossaries_may_have_commas_and_belong_to_a_folder(tmp_path: Path) -> None:
    assert _read('"a, b",c\nd,e,en,de', ",") == [("a, b", "c"), ("d", "e")]
    place: Any = Place(tmp_path)
    kept = glossary(5, "1")
    Glossaries(place).add(kept)
    found = Glossaries(place)
    assert found.owned_by("1") == [kept]
    assert found.owned_by("2") == []
    found.delete(kept)
    assert Glossaries(place).owned_by("1") == []


def test_a_client_has_a_share_of_the_glossaries(tmp_path: Path) -> None:
    place: Any = Place(tmp_path)
    glossaries = Glossaries(place)
    for number in range(MAX_OF_CLIENT):
        glossaries.add(glossary(number, "1"))
    reason = "found 25 glossaries, 25 of them yours; delete one"
    with raises(RequestError, reason):
        glossaries.add(glossary(99, "1"))
    glossaries.add(glossary(99, "2"))
    assert glossaries.find(f"{99:032}", "2").client == "2"
    for name, client in ((f"{99:032}", "1"), ("../../keys.json", "1"), (f"{98:032}", "2")):
        with raises(RequestError, "no such glossary, or it was deleted"):
            glossaries.find(name, client)
