"""Files are translated in the background: status, result, expiry and cleanup."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from translume.config import DataSettings
from translume.config.data import ContextSettings
from translume.serving.models import ServedModel
from translume.translator import Translator

HTML = "<p>a <b>man</b> runs</p><script>b</script>\n<p>two</p>"


def form(file: bytes, name: str = "a.txt", **fields: str) -> dict[str, Any]:
    """Return a multipart form with a file, for `live.ask`."""
    parts = [(f'name="{field}"', value.encode()) for field, value in fields.items()]
    parts.append((f'name="file"; filename="{name}"', file))
    body = b"".join(b"--xx\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (h.encode(), v) for h, v in parts)
    return {"body": body + b"--xx--\r\n", "content_type": "multipart/form-data; boundary=xx"}


def finished_status(live: Any, answer: Any) -> dict[str, Any]:
    """Wait until a file is finished and return its status."""
    assert answer.status == 202, answer.body
    place = answer.headers["Location"]
    for _ in range(6000):
        found = live.get(place).json()
        if found["status"] in ("done", "failed"):
            return found
        time.sleep(0.02)
    raise AssertionError(found)


@pytest.fixture(scope="module")
def live(start: Callable[..., Any], translator: Translator) -> Any:
    served = ServedModel.from_model("en-de", translator)
    return start(served, file_bytes=20_000, file_characters=3000, body_bytes=2000)


def test_a_file_is_uploaded_polled_fetched_and_deleted(live: Any, translator: Translator) -> None:
    answer = live.ask("POST", "/v1/files", **form(b" a man\n\ntwo .\n", "My notes.TXT", source="en", target="de"))
    found = finished_status(live, answer)
    place = answer.headers["Location"]
    assert found["kept_seconds"] in range(1790, 1801)
    assert {name: found[name] for name in ("name", "status", "sentences", "done", "result")} == {
        "name": "My notes_de.txt",
        "status": "done",
        "sentences": 2,
        "done": 2,
        "result": f"{place}/result",
    }
    fetched = live.get(f"{place}/result")
    assert fetched.body.decode() == f" {translator.translate('a man')}\n\n{translator.translate('two .')}\n"
    assert fetched.headers["Content-Disposition"] == "attachment; filename*=utf-8''My%20notes_de.txt"
    assert fetched.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert live.ask("DELETE", place).json() == {"id": found["id"], "status": "deleted"}
    for path in (place, f"{place}/result"):
        assert (live.get(path).status, live.get(path).json()["code"]) == (404, "unknown_file")


def test_libretranslate_clients_can_translate_files(live: Any, translator: Translator) -> None:
    answer = live.ask("POST", "/translate_file", **form(HTML.encode(), "a.html", source="en", target="de"))
    assert (answer.status, list(answer.json())) == (200, ["translatedFileUrl"])
    address = urlsplit(answer.json()["translatedFileUrl"])
    assert f"http://{address.netloc}" == live.url
    assert address.path.startswith("/download_file/")
    fetched = live.get(address.path)
    assert fetched.headers["Content-Disposition"].startswith("attachment; ")
    text = fetched.body.decode()
    assert text.endswith(f"<script>b</script>\n<p>{translator.translate('two')}</p>")
    inside = text[3 : text.index("</p>")]
    assert "".join(inside.replace("<b>", "").replace("</b>", "").split()) == "".join(
        translator.translate("a man runs").text.split()
    )
    assert [inside.count(tag) for tag in ("<b>", "</b>")] == [1, 1]


REFUSED: dict[str, tuple[dict[str, Any], int, int, str]] = {
    "no form": ({"body": b"{}", "content_type": "application/json"}, 400, 415, "unsupported_media_type"),
    "no file": ({"body": b"--xx--", "content_type": "multipart/form-data; boundary=xx"}, 400, 400, "missing_field"),
    "no name": (form(b"a", "", source="en", target="de"), 400, 400, "missing_field"),
    "another kind": (form(b"a", "a.exe", source="en", target="de"), 400, 415, "unsupported_format"),
    "no suffix": (form(b"a", "txt", source="en", target="de"), 400, 415, "unsupported_format"),
    "no text": (form(b"\xff\0", source="en", target="de"), 422, 422, "invalid_file"),
    "no document": (form(b"a", "a.docx", source="en", target="de"), 422, 422, "invalid_file"),
    "a large file": (form(b"a" * 20_001, source="en", target="de"), 413, 413, "file_too_large"),
    "a large body": (form(b"a" * 60_000, source="en", target="de"), 413, 413, "request_too_large"),
    "much text": (form(b"a" * 3001, source="en", target="de"), 413, 413, "text_too_long"),
    "an unknown language": (form(b"a", source="en", target="xx"), 400, 404, "unknown_"),
    "no detector": (form(b"a", source="auto", target="de"), 501, 501, "no_detection"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_translated_is_refused_immediately(live: Any, name: str) -> None:
    asked, first, second, code = REFUSED[name]
    for path, status in (("/translate_file", first), ("/v1/files", second)):
        answer = live.ask("POST", path, **asked)
        assert answer.status == status, answer.body
        assert answer.json()["code"].startswith(code)


def test_the_form_of_libretranslate_requires_both_languages(live: Any) -> None:
    answer = live.ask("POST", "/translate_file", **form(b"a", target="de"))
    assert (answer.status, answer.json()["error"]) == (400, "Invalid request: missing source parameter")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../etc/passwd.txt", "passwd_de.txt"),
        ("C:\\x\\b.txt", "b_de.txt"),
        ("\u00e9 \u6f22.txt", "\u00e9 \u6f22_de.txt"),
        (".txt", None),
        ("a\x00\x1b.txt", "a_de.txt"),
        (f"{'a' * 250}.txt", f"{'a' * 100}_de.txt"),
        ("a;b.txt", "ab_de.txt"),
        (f"{'漢' * 120}.txt", f"{'漢' * 66}_de.txt"),
        (f"{'漢' * 255}.txt", f"{'漢' * 66}_de.txt"),
    ],
)
def test_a_file_name_is_shown_without_directories(live: Any, given: str, shown: str | None) -> None:
    answer = live.ask("POST", "/v1/files", **form(b"a", given))
    if shown is None:
        assert (answer.status, answer.json()["code"]) == (415, "unsupported_format")
        return
    assert finished_status(live, answer)["name"] == shown
    assert live.get(f"{answer.headers['Location']}/result").status == 200


def test_a_file_name_beyond_all_file_systems_is_refused(live: Any) -> None:
    answer = live.ask("POST", "/v1/files", **form(b"a", f"{'a' * 9000}.txt"))
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")


def test_a_file_in_the_target_language_is_returned_unchanged(live: Any) -> None:
    answer = live.ask("POST", "/translate_file", **form(b"ein \xc3\xa9\n", source="de", target="de-AT"))
    address = urlsplit(answer.json()["translatedFileUrl"]).path
    assert live.get(address).body == b"ein \xc3\xa9\n"


@pytest.mark.parametrize("name", ["nope", "..%2f..%2fetc%2fpasswd", "%00", ".", "a.txt", "\u00e9".encode().hex()])
def test_an_unknown_id_is_404(live: Any, name: str) -> None:
    for path in (f"/download_file/{name}", f"/v1/files/{name}", f"/v1/files/{name}/result"):
        assert live.get(path).status == 404


def test_a_sentence_that_is_too_long_is_named_and_not_truncated(live: Any) -> None:
    found = finished_status(live, live.ask("POST", "/v1/files", **form(b"one .\ntwo\n" + b"a" * 60)))
    assert found["status"] == "failed"
    assert found["error"] == {
        "error": "file: sentence 3: a sentence has 60 tokens, expected at most 40",
        "code": "text_too_long",
        "field": "file",
    }
    answer = live.ask("POST", "/translate_file", **form(b"a" * 60, source="en", target="de"))
    assert (answer.status, answer.json()["code"]) == (422, "text_too_long")


def test_uploads_are_documented_as_multipart_form_data(live: Any) -> None:
    described = json.loads(live.get("/openapi.json").body)["paths"]
    for path, method in (("/v1/files", "post"), ("/translate_file", "post")):
        assert list(described[path][method]["requestBody"]["content"]) == ["multipart/form-data"]


def test_the_sentences_of_a_file_are_context_of_each_other(start: Callable[..., Any], translator: Translator) -> None:
    data = DataSettings(
        source_language="en", target_language="de", documents="file", context=ContextSettings(source=2, target=1)
    )
    checkpoint = translator.checkpoint
    config = checkpoint.config.model_copy(update={"data": data})
    reading = Translator(replace(checkpoint, config=config))
    served = start(ServedModel.from_model("en-de", reading))
    lines = ["a man runs", "two .", "a dog", "two men"]
    answer = served.ask("POST", "/v1/files", **form("\n\n".join(lines).encode(), source="en", target="de"))
    found = finished_status(served, answer)
    assert (found["status"], found["done"]) == ("done", 4)
    text = served.get(found["result"]).body.decode()
    wanted = [each.text for each in reading.translate_all(lines, split="never")]
    assert text.split("\n\n") == wanted
    assert wanted != [reading.translate(line).text for line in lines]
