"""/v1/inspect returns the library's trace of a translation, a given target or a forced prefix, within limits."""

import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.conftest import refused

from translume.inspection import BeamRecord, Trace, force_token, record_beam, trace
from translume.serving.api.errors import RequestError
from translume.serving.api.requests import InspectRequest
from translume.serving.files.inspection import Inspection, inspection_settings
from translume.serving.models import ServedModel
from translume.serving.settings import Limits
from translume.translator import Translator

Start = Callable[..., Any]


def test_the_trace_equals_that_of_the_library(live: Any, translator: Translator) -> None:
    answer = live.post("/v1/inspect", text="a man")
    found = answer.json()
    assert (answer.status, found["model"], found["part"], found["parts"]) == (200, "en-de", 0, 1)
    assert Trace.from_dict(found["trace"]) == trace(translator, "a man")
    assert set(found) == {"model", "part", "parts", "trace"}


def test_a_request_sets_decoding_options_k_and_the_parts_shown(live: Any, translator: Translator) -> None:
    settings = translator.config.decoding.model_copy(update={"max_length": 4, "beam": 2})
    found = live.post("/v1/inspect", text="a man", k=3, show=["prior"], max_length=4, beam=2).json()
    wanted = trace(translator, "a man", k=3, settings=settings, show=["prior"])
    assert Trace.from_dict(found["trace"]) == wanted


def test_tokens_returned_by_translate_can_be_inspected_as_the_target(live: Any, translator: Translator) -> None:
    (best,) = live.post("/v1/translate", text="a man", detail=True).json()["translations"][0]["hypotheses"]
    found = live.post("/v1/inspect", text="a man", target_tokens=best["tokens"], show=[]).json()["trace"]
    assert found["origin"] == "given"
    assert [each["text"] for each in found["target_tokens"]] == best["tokens"]
    assert [each["log_p_model"] for each in found["steps"]] == pytest.approx(best["token_log_probs"], abs=1e-4)


def test_a_token_prefix_is_continued_as_if_its_last_token_were_forced(live: Any, translator: Translator) -> None:
    before = trace(translator, "a man", show=())
    other = next(each for each in before.steps[1].top_used.candidates if each.id != before.target_tokens[1].id)
    wanted = force_token(translator, "a man", 1, other.id).after
    prefix = [before.target_tokens[0].text, other.text]
    found = live.post("/v1/inspect", text="a man", prefix_tokens=prefix, show=[]).json()["trace"]
    assert found["origin"] == "search"
    assert [each["text"] for each in found["target_tokens"]] == list(wanted.tokens)
    assert found["log_p"] == pytest.approx(wanted.log_prob, abs=1e-4)


def test_a_given_translation_and_a_recorded_search_are_returned_together(live: Any, translator: Translator) -> None:
    fields = {"text": "a man", "translation": "ab", "search": True, "reference": "ba", "show": []}
    found = live.post("/v1/inspect", fields).json()
    assert Trace.from_dict(found["trace"]) == trace(translator, "a man", "ab", show=())
    assert BeamRecord.from_dict(found["search"]) == record_beam(translator, "a man", reference="ba")


def test_lines_of_a_text_are_inspected_one_at_a_time(live: Any) -> None:
    found = [live.post("/v1/inspect", text="a b\n\nc d", part=part, show=[]).json() for part in (0, 1)]
    assert [each["trace"]["given"] for each in found] == ["a b", "c d"]
    assert [each["parts"] for each in found] == [2, 2]


def test_parts_are_the_sentences_that_translate_joins(live: Any) -> None:
    text = "A man. A dog!\nyou"
    for split, wanted in (("sentences", ["A man.", "A dog!", "you"]), ("lines", ["A man. A dog!", "you"])):
        (whole,) = live.post("/v1/translate", text=text, split=split, detail=True).json()["translations"]
        (best,) = whole["hypotheses"]
        found = [
            live.post("/v1/inspect", text=text, split=split, part=part, show=[]).json()["trace"]
            for part in range(len(wanted))
        ]
        assert [each["given"] for each in found] == wanted
        assert [token["text"] for each in found for token in each["target_tokens"]] == best["tokens"]


def test_the_html_page_equals_that_of_the_library(live: Any, translator: Translator) -> None:
    answer = live.post("/v1/inspect/page", text="a <b>", search=True)
    assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (200, "text/html")
    assert answer.body.decode() == trace(translator, "a <b>").to_page(beam=record_beam(translator, "a <b>"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "422 invalid_value text: found nothing, expected a value"),
    ({"text": ["a"]}, "422 invalid_value text: found a list, expected a valid string"),
    ({"text": " \n"}, "422 invalid_value text: found a blank text, expected one to translate"),
    ({"text": "a" * 301}, "413 text_too_long text: found 301 characters, expected at most 300"),
    ({"text": "a" * 41}, "422 text_too_long text: a sentence has 41 tokens, expected at most 40"),
    ({"text": "a b\nc", "part": 2}, "422 invalid_value part: found 2, expected 0 to 1, a part of the text"),
    ({"text": "a", "k": 51}, "422 invalid_value k: found 51, expected at most 50"),
    ({"text": "a", "show": ["attension"]}, "422 invalid_value show[0]: no such part; did you mean 'attention'?"),
    (
        {"text": "a", "show": ["lens", 3]},
        "422 invalid_value show[1]: no such part, expected one of: attention, lens, prior, terms, occlusion, "
        "occlusion-mask, occlusion-unknown, input-gradient",
    ),
    (
        {"text": "a", "translation": "b", "prefix_tokens": ["a"]},
        "422 invalid_value prefix_tokens cannot be combined with translation",
    ),
    ({"text": "a", "target_tokens": []}, "422 invalid_value target_tokens: found nothing, expected a value"),
    (
        {"text": "a", "prefix_tokens": ["a", "zebra"]},
        "422 unknown_token prefix_tokens[1]: no such token, expected tokens as /v1/translate returns them",
    ),
    (
        {"text": "a", "target_tokens": ["a", "</s>", "a"]},
        "422 cannot_inspect [translation] target: the hypothesis was joined from several parts; expected "
        "one of a single sentence; "
        'split = "never" translates a text as one',
    ),
    ({"text": "a", "reference": "b"}, '422 invalid_value reference: expected "search": true with it'),
    (
        {"text": "a", "search": True, "strategy": "sampling"},
        "422 invalid_value search: found strategy 'sampling', expected 'beam' or 'greedy' to record",
    ),
    ({"text": "a", "shwo": []}, "422 unknown_field shwo: no such field; did you mean 'show'?"),
]


@pytest.mark.parametrize(("fields", "said"), WRONG)
def test_invalid_requests_get_a_one_line_error(live: Any, fields: dict[str, Any], said: str) -> None:
    for path in ("/v1/inspect", "/v1/inspect/page"):
        assert refused(live.post(path, fields)) == said


def test_too_expensive_requests_are_refused_before_any_work(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limits, "inspected_tokens", 100)
    monkeypatch.setattr(Limits, "inspected_numbers", 2000)

    def inspected(**values: Any) -> str:
        served, call = ServedModel.from_model("en-de", translator), InspectRequest.model_validate(values)
        settings = inspection_settings(served, call, Limits())
        inspection = Inspection(served=served, settings=settings, call=call, source=call.text, limits=Limits())
        return inspection.result("json", lambda: None)

    settings: dict[str, Any] = {"text": "a b c", "translation": "d", "show": ["occlusion"]}
    # Source: 6 tokens with end of sentence; target: 2. One pass of 8 tokens, and one more for each source token.
    assert len(trace(translator, "a b c", "d", show=()).source_tokens) == 6
    assert inspected(**settings)
    with pytest.raises(RequestError, match=r"^show: its passes read 112 tokens"):
        inspected(**{**settings, "translation": "d" * 9})
    reason = "show: attention has [0-9,]+ numbers, expected at most 2,000; show all parts but attention"
    with pytest.raises(RequestError, match=f"^{reason}$"):
        inspected(text="a" * 30, show=["attention"])
    assert inspected(text="a" * 30, show=[])


class Held:
    """An inspection that waits before it begins."""

    def __init__(self) -> None:
        self.open, self.begun, self.count = threading.Event(), threading.Event(), 0
        self.inspect = Inspection.result

    def method(self) -> Callable[..., str]:
        """Return what replaces `Inspection.result`."""

        def wait_and_inspect(*arguments: Any) -> str:
            self.count += 1
            self.begun.set()
            assert self.open.wait(120)
            return self.inspect(*arguments)

        return wait_and_inspect


def test_inspections_are_limited_do_not_delay_translations_and_are_cancelled_on_disconnect(
    start: Start, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr(Inspection, "result", held.method())
    monkeypatch.setattr(Limits, "inspections", 2)
    own = start(ServedModel.from_model("en-de", translator), timeout_seconds=20.0)
    gone = [http.client.HTTPConnection("127.0.0.1", own.port, timeout=120) for _ in range(2)]
    for connection in gone:
        connection.request("POST", "/v1/inspect", '{"text": "a"}', {"Content-Type": "application/json"})
        assert held.begun.wait(120)
    while len(own.server.inspecting) < 2:
        time.sleep(0.005)
    full = own.post("/v1/inspect", text="a")
    assert (full.status, full.headers["Retry-After"]) == (503, "1")
    assert full.json() == {"error": "2 inspections are waiting, expected at most 2; try later", "code": "queue_full"}
    assert own.post("/v1/translate", text="a").status == 200
    for connection in gone:
        connection.close()
    while own.server.inspecting:
        time.sleep(0.005)
    held.open.set()
    assert own.post("/v1/inspect", text="a").status == 200
    # The first had begun, the second was cancelled in the queue, the third is the one just answered.
    assert held.count == 2


def test_inspections_have_a_deadline(start: Start, translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    monkeypatch.setattr(Inspection, "result", held.method())
    own = start(ServedModel.from_model("en-de", translator))
    late = own.post("/v1/inspect", text="a", timeout_seconds=0.2)
    held.open.set()
    assert refused(late) == "504 deadline_exceeded [] not done after 0.2 s, the request's deadline"


def test_models_list_the_operations_they_offer(live: Any) -> None:
    offers = {each["name"]: each["offers"] for each in live.get("/v1/models").json()["models"]}
    assert offers == {"en-de": ["translate", "score", "inspect"]}
    assert live.get("/v1/info").json()["offers"] == offers


numbers = st.integers(-2, 99) | st.floats(allow_nan=False, allow_infinity=False)  # what JSON can write
odd = st.none() | st.booleans() | numbers | st.text(max_size=8) | st.just("a" * 301)
values = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner), max_leaves=4
)
fields = st.sampled_from([*InspectRequest.model_fields, "beam", "strategy", "prefix", "nbest"])


@given(request=st.dictionaries(fields, values, max_size=4), text=st.text("ab \n\u3042", max_size=6))
def test_arbitrary_values_cause_no_server_error(live: Any, request: dict[str, Any], text: str) -> None:
    answer = live.post("/v1/inspect", {"text": text, "show": [], **request})
    in_no_time = answer.status == 504 and "timeout_seconds" in request  # a drawn timeout may be a millionth of a second
    assert answer.status in (200, 404, 413, 422) or in_no_time, answer.body
    if answer.status != 200:
        assert {"error", "code"} <= set(answer.json()) <= {"error", "code", "field"}


@pytest.mark.parametrize(
    "body", [b"", b"[", b"[]", b"\xff", b'{"text": Infinity}', json.dumps({"text": "\ud800"}).encode()]
)
def test_arbitrary_bytes_are_refused(live: Any, body: bytes) -> None:
    assert live.ask("POST", "/v1/inspect", body, content_type="application/json").status == 400
