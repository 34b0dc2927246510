"""What a request may cost is known before any work, counts against quotas and batches, and can be stopped."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from translume.config import DecodingSettings
from translume.serving.access.keys import add_key
from translume.serving.access.quotas import open_access, used_of
from translume.serving.api.decoding import characters_to_charge
from translume.serving.api.errors import RequestError
from translume.serving.api.language_codes import find_language
from translume.serving.models import ServedModel
from translume.serving.settings import KeySettings, Limits
from translume.serving.work import Part, Translating
from translume.translator import Translator
from translume.translator.planning import Line

SENTENCE = "ab cd"  # 5 tokens, which count as 16; the usual limit is 2 · 5 + 10
LONG = {"strategy": "beam", "beam": 4, "min_length": 30, "max_length_extra": 30}


def translating(translator: Translator, **options: Any) -> Translating:
    served: Any = translator
    return Translating(served, DecodingSettings(**{**translator.config.decoding.model_dump(), **options}))


@pytest.mark.parametrize(
    ("options", "tokens", "made"),
    [
        ({}, 16, 3 * 20),
        ({"beam": 6}, 16, 6 * 20),
        ({"beam": 6, "max_length_extra": 28}, 31, 6 * 38),  # 2 · 5 + 28; 16 · 38 / 20, rounded up
        ({"max_length": 8}, 16, 3 * 8),
        ({"strategy": "sampling", "samples": 5}, 16, 5 * 20),
        ({"max_length_extra": 1000, "min_length": 1000}, 33, 3 * 41),  # the model ends at 41 tokens
    ],
)
def test_a_line_costs_its_hypotheses_times_its_target_limit(
    translator: Translator, options: dict[str, Any], tokens: int, made: int
) -> None:
    found = translating(translator, **options).cost(Part(text=SENTENCE))
    assert (found.target_tokens, found.usual_target_tokens) == (made, 60)
    width = {"beam": 6, "samples": 5}.get("samples" if "samples" in options else "beam" if "beam" in options else "", 3)
    assert found.size == tokens * width // 2


def test_context_counts_as_source(translator: Translator) -> None:
    alone = translating(translator).cost(Part(text=SENTENCE))
    found = translating(translator).cost(Part(text=SENTENCE, before=(("ab", "abc"), ("a", "b"))))
    assert found.size == (5 + 1 + 3 + 4 + 2 + 2) * 3 // 2
    assert found.target_tokens == alone.target_tokens


def test_a_request_that_may_make_too_many_tokens_is_refused_with_the_field_to_lower(
    start: Callable[..., Any], translator: Translator
) -> None:
    live = start(ServedModel.from_model("en-de", translator), target_tokens=5000)
    before = live.server.scheduler.waiting
    refused = live.post("/v1/translate", text=[SENTENCE] * 32, **LONG)
    assert (refused.status, refused.json()) == (
        413,
        {
            "error": "max_length_extra: the search may make 5,120 target tokens (hypotheses per sentence × longest "
            "target, for all 32 sentences), expected at most 5,000; lower it",
            "code": "too_costly",
            "field": "max_length_extra",
        },
    )
    assert live.post("/v1/translate/stream", text=[SENTENCE] * 32, **LONG).status == 413
    assert live.post("/v1/translate", text=[SENTENCE] * 90, strategy="greedy", max_length=40).status == 200
    wide = live.post("/v1/translate", text=[SENTENCE] * 90, beam=16).json()
    assert (wide["code"], wide["field"]) == ("too_costly", "beam")
    many = live.post("/v1/translate", text=[SENTENCE] * 90).json()
    assert (many["code"], many["field"]) == ("too_costly", "text")
    held = live.post("/v1/translate", text=SENTENCE, constraints=["abcdefgh"] * 4).json()
    assert (held["code"], held["field"]) == ("too_costly", "constraints")
    assert live.server.scheduler.waiting == before


def test_other_interfaces_have_the_same_limit(start: Callable[..., Any], translator: Translator) -> None:
    live = start(ServedModel.from_model("en-de", translator), target_tokens=5000)
    for fields in ({}, {"format": "html"}):
        many = live.post("/translate", q=[SENTENCE] * 20, source="en", target="de", alternatives=15, **fields)
        assert (many.status, many.json()["field"]) == (413, "alternatives")
        assert live.post("/translate", q=[SENTENCE] * 20, source="en", target="de", **fields).status == 200
        assert live.post("/translate", q=[SENTENCE] * 90, source="en", target="de", **fields).json()["field"] == "q"
    deepl = live.post("/v2/translate", text=[SENTENCE] * 49, target_lang="DE")
    assert deepl.status == 200
    live = start(ServedModel.from_model("en-de", translator), target_tokens=500)
    deepl = live.post("/v2/translate", text=[SENTENCE] * 49, target_lang="DE")
    assert (deepl.status, deepl.json()["field"]) == (413, "text")


def test_long_codes_of_languages_cost_no_time(start: Callable[..., Any], translator: Translator) -> None:
    begin = time.perf_counter()
    assert find_language("x-" * 200_000, ["en", "de"]) is None
    live = start(ServedModel.from_model("en-de", translator))
    for path in ("/translate", "/v1/translate"):
        refused = live.post(path, q="ab", text="ab", source="x-" * 32_000, target="de")
        assert 400 <= refused.status < 500
    assert time.perf_counter() - begin < 5  # the square of the length would take minutes


def test_a_line_that_may_cost_twice_as_much_counts_twice(translator: Translator) -> None:
    parts, limits = [Part(text=SENTENCE)] * 3, Limits()
    for options, more in (({}, 0), ({"beam": 6}, 15), ({"beam": 1}, 0), ({"beam": 6, "max_length_extra": 30}, 45)):
        assert characters_to_charge(translating(translator, **options), parts, options, limits) == more


def test_the_cost_counts_against_the_quota_of_a_key(
    start: Callable[..., Any], translator: Translator, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.json", "small", {"characters_per_day": 25})
    access = open_access(KeySettings(file=str(tmp_path / "keys.json"), characters_per_day=0))
    assert access is not None
    live = start(ServedModel.from_model("en-de", translator), access=access)

    def ask(**options: Any) -> Any:
        return live.ask(
            "POST",
            "/v1/translate",
            json.dumps({"text": SENTENCE, **options}).encode(),
            content_type="application/json",
            authorization=f"Bearer {key}",
        )

    assert ask().status == 200
    assert ask(**LONG).status == 200  # 4 · 40 target tokens instead of 3 · 20
    assert used_of(access.counts, access.keys.all[0]) == (2, 5 + 5 + 8)
    assert ask(**LONG).json()["code"] == "quota_used_up"


def test_a_search_with_constraints_ends_between_two_steps(translator: Translator) -> None:
    asked: list[float] = []

    def check_cancelled() -> None:
        asked.append(time.monotonic())
        if len(asked) == 5:
            raise RequestError(499, "the request was cancelled")

    line = Line(number=1, text=SENTENCE, constraints=("xyz",))
    with pytest.raises(RequestError, match="the request was cancelled"):
        list(translator.translate_lines([line], translator.config.decoding, None, check_cancelled))
    assert len(asked) == 5
