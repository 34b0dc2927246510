"""API v1: results equal those of the translator; every error has the same JSON form."""

import json
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.conftest import nearly_equal, refused

from translume.config import DecodingSettings
from translume.serving.api.errors import json_response
from translume.serving.api.requests import WITHHELD
from translume.translator import Translator


def test_texts_and_lists_of_texts_are_translated_as_by_the_translator(live: Any, translator: Translator) -> None:
    texts = ["a man", "", "b c\nd", "xyz."]
    one = live.post("/v1/translate", text="a man")
    assert (one.status, one.headers["Content-Type"]) == (200, "application/json")
    alone = translator.translate("a man")
    wanted = {name: alone.to_dict()[name] for name in ("text", "warnings")}
    assert one.json() == {"model": "en-de", "translations": [wanted]}
    many = live.post("/v1/translate", text=texts, source="en", target="de").json()["translations"]
    assert [many[place]["text"] for place in (0, 1, 3)] == [str(translator.translate(texts[i])) for i in (0, 1, 3)]
    assert many[2]["text"] == "\n".join(translator.translate(text).text for text in ("b c", "d"))
    assert live.post("/v1/translate", text=[]).json()["translations"] == []


def test_a_text_of_several_lines_keeps_its_white_space(live: Any, translator: Translator) -> None:
    source = "  a b\r\n\n\tc\n e\n"
    knobs = {"nbest": 2, "max_length": 5}
    (found,) = live.post("/v1/translate", text=source, detail=True, **knobs).json()["translations"]
    settings = translator.config.decoding.model_copy(update=knobs)
    alone = [translator.translate(text, settings=settings) for text in ("a b", "c", "e")]
    assert found["text"] == "  {}\r\n\n\t{}\n {}\n".format(*map(str, alone))
    best, second = found["hypotheses"]
    assert best["text"] == found["text"]
    assert best["score"] == pytest.approx(sum(each.hypotheses[0].score for each in alone), abs=1e-4)
    assert best["score"] >= second["score"]


@pytest.mark.parametrize(
    "knobs",
    [
        {"strategy": "greedy"},
        {"beam": 4, "nbest": 3},
        {"strategy": "sampling", "samples": 3, "nbest": 2, "seed": 5, "temperature": 0.7},
        {"prefix": "ab", "length_penalty": 0},
        {"max_length": 4, "min_length": 2},
        {"placeholders": ["number"], "nbest": 2},
        {"utility": "chrf", "beam": 3, "nbest": 2},
        {"coverage_penalty": 0.2, "repetition_penalty": 1.3},
    ],
)
def test_decoding_options_of_a_request_apply(live: Any, translator: Translator, knobs: dict[str, Any]) -> None:
    settings = translator.config.decoding.model_copy(update={**knobs, "alignment": True})
    wanted = translator.translate("a man 7", settings=settings).to_dict()
    (found,) = live.post("/v1/translate", text="a man 7", detail=True, **knobs).json()["translations"]
    assert nearly_equal(found, {name: wanted[name] for name in ("text", "warnings", "hypotheses")})
    assert {"tokens", "token_log_probs", "alignment"} <= set(found["hypotheses"][0])
    assert ("terms" in found["hypotheses"][0]) == ("utility" not in knobs)


def test_a_request_cannot_start_a_learned_metric(live: Any) -> None:
    assert refused(live.post("/v1/translate", text="a man", utility="comet")) == (
        "422 invalid_value utility: found a string, expected none, chrf or bleu"
    )
    assert refused(live.post("/v1/translate", text="a man", utility="chrf", utility_model="model.ckpt")) == (
        "422 invalid_value utility_model: a request cannot set it; the model's own setting holds"
    )


def test_responses_without_detail_are_brief(live: Any) -> None:
    def fields(**knobs: Any) -> set[str]:
        (found,) = live.post("/v1/translate", text="a man", **knobs).json()["translations"]
        return {name for each in found.get("hypotheses", ()) for name in each}

    assert fields() == set()
    assert fields(nbest=2) == {"text", "log_prob", "score"}
    assert fields(alignment=True) == {"text", "log_prob", "score", "alignment"}
    assert "alignment" not in fields(detail=True, alignment=False)


def test_warnings_of_each_line_are_returned(live: Any) -> None:
    kinds = [
        each["kind"]
        for each in live.post("/v1/translate", text="a\nb", max_length=2).json()["translations"][0]["warnings"]
    ]
    assert kinds == ["truncated", "truncated"]


def test_scores_equal_those_of_forced_decoding(live: Any, translator: Translator) -> None:
    found = live.post("/v1/score", sources=["a b", "c"], targets=["d", ""]).json()
    assert found["model"] == "en-de"
    for one, other in zip(found["scores"], translator.score_all([("a b", "d"), ("c", "")]), strict=True):
        assert one["tokens"] == list(other.tokens)
        assert one["token_log_probs"] == pytest.approx(other.token_log_probs, abs=1e-4)


def test_models_and_info_describe_the_server(live: Any, translator: Translator) -> None:
    (model,) = live.get("/v1/models").json()["models"]
    assert (model["name"], model["source"], model["target"], model["max_positions"]) == ("en-de", "en", "de", 41)
    assert model["decoding"] == translator.config.decoding.model_dump(mode="json")
    info = live.get("/v1/info").json()
    assert info["limits"]["texts"] == 5
    assert info["licences"] in ({}, {"en-de": "unknown"})
    assert info["engines"] == {"en-de": {"kind": "plain", "dtype": "float32", "own_kernels": False}}
    assert info["versions"] == {
        "translume": info["version"],
        "torch": installed("torch"),
        "python": ".".join(map(str, sys.version_info[:3])),
    }


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "422 invalid_value text: found nothing, expected a value"),
    ({"text": 5}, "422 invalid_value text: found 5, expected a string or a list of strings"),
    ({"text": ["a", None]}, "422 invalid_value text[1]: found null, expected a string"),
    ({"text": ["a"] * 6}, "413 too_many_texts text: found 6 texts, expected at most 5"),
    ({"text": ["b", "a" * 301]}, "413 text_too_long text[1]: found 301 characters, expected at most 300"),
    (
        {"text": ["b", "a" * 50]},
        "422 text_too_long text[1]: a sentence has 50 tokens, expected at most 40; "
        '"max_length_action": "truncate" cuts it',
    ),
    (
        {"text": "b\n\n" + "a" * 50},
        "422 text_too_long text: line 2: a sentence has 50 tokens, expected at most 40; "
        '"max_length_action": "truncate" cuts it',
    ),
    ({"text": ["a\n" * 30] * 2}, "413 too_many_lines text: found 60 sentences, expected at most 50"),
    ({"text": "a", "beem": 3}, "422 unknown_field beem: no such field; did you mean 'beam'?"),
    (
        {"text": "a", "max_tokens": 3},
        "422 invalid_value max_tokens: a request cannot set it; the model's own setting holds",
    ),
    (
        {"text": "a", "terminology": "/etc/passwd"},
        "422 invalid_value terminology: a request cannot set it; the model's own setting holds",
    ),
    ({"text": "a", "ban": 5}, "422 invalid_value ban: found 5, expected a string or a list of strings"),
    ({"text": "a", "beam": 2.5}, "422 invalid_value beam: found 2.5, expected a valid integer"),
    ({"text": "a", "beam": 0}, "422 invalid_value beam: found 0, expected greater than or equal to 1"),
    ({"text": "a", "beam": 7}, "422 too_wide [] found 7 hypotheses per sentence, expected at most 6"),
    (
        {"text": "a", "temperature": 0.5},
        "422 invalid_value temperature: strategy 'beam' does not read it, expected 'sampling' or 'stochastic'",
    ),
    (
        {"text": "a", "max_length_ratio": 1e300},
        "422 invalid_value max_length_ratio: found 1e+300, expected at most 100",
    ),
    ({"text": "a", "strategy": "beem"}, "422 invalid_value strategy: found 'beem'; did you mean 'beam'?"),
    ({"text": "a", "model": "en-fr"}, "404 unknown_model model: found 'en-fr'; did you mean 'en-de'?"),
    ({"text": "a", "model": "b" * 999}, "422 invalid_value model: found 999 characters, expected at most 200"),
    (
        {"text": "a", "source": "en", "target": "fr"},
        "404 unknown_pair [target] source, target: found 'en-fr', expected one of: en-de",
    ),
    ({"text": "a", "source": "en"}, "422 invalid_value target: found nothing, expected both source and target"),
    ({"text": "a", "timeout_seconds": 0}, "422 invalid_value timeout_seconds: found 0, expected greater than 0"),
    ({"text": "a", "detail": 1}, "422 invalid_value detail: found 1, expected a valid boolean"),
    (
        {"text": "a", "calibrated": True},
        "422 invalid_value calibrated: no temperature was fitted to the model's weights; "
        "translume evaluate MODEL SOURCE REFERENCE --fit-temperature fits one",
    ),
]


@pytest.mark.parametrize(("fields", "said"), WRONG)
def test_invalid_requests_get_an_error_that_names_the_field(live: Any, fields: dict[str, Any], said: str) -> None:
    assert refused(live.post("/v1/translate", fields)) == said


def test_a_request_cannot_read_files_of_the_server(live: Any, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("a\n", encoding="utf-8")
    plain, banned = (live.post("/v1/translate", text="a b", **knobs) for knobs in ({}, {"ban": f"@{words}"}))
    assert banned.json() == plain.json()
    assert live.post("/v1/translate", text="a", ban=["@/nowhere", "@@x"]).status == 200


def test_every_decoding_setting_with_text_is_classified_as_safe_or_withheld() -> None:
    """Add a new setting that names a file, or that costs without bound, to `WITHHELD`; otherwise extend this list."""
    texts = {name for name, field in DecodingSettings.model_fields.items() if "str" in str(field.annotation)}
    assert texts - WITHHELD == {"strategy", "prefix", "ban", "placeholders", "stop_strings", "to", "from_", "utility"}


def test_invalid_pairs_are_refused(live: Any) -> None:
    assert refused(live.post("/v1/score", sources=["a"], targets=["b", "c"])) == (
        "422 invalid_value targets: found 2 for 1 sources, expected as many"
    )
    assert refused(live.post("/v1/score", sources=["a", "b"], targets=["b", "c" * 45])) == (
        "422 text_too_long pairs[1]: the target has 46 tokens with EOS, expected at most 41"
    )


BROKEN = [
    (b"", "400 invalid_json [] the body is empty, expected a JSON object"),
    (b"{]", "400 invalid_json [] the body is not JSON"),
    (b"[1]", "400 invalid_json [] the body is a list, expected a JSON object"),
    (b'{"text": NaN}', "400 invalid_json [] the body contains NaN, which is not JSON"),
    ('{"text": "é"}'.encode("latin-1"), "400 invalid_utf8 [] the body is not UTF-8 text at byte 10"),
    (
        b'{"text": "\\ud800"}',
        "400 invalid_unicode [] the body contains \\ud800, half of a surrogate pair; expected whole characters",
    ),
    (b"[" * 4900, "400 invalid_json [] the body's JSON is nested too deeply"),
    (b'{"text": ' + b"1" * 4500 + b"}", "400 invalid_json [] the body contains a number with too many digits"),
]


@pytest.mark.parametrize("path", ["/v1/translate", "/v1/translate/stream"])
def test_malformed_json_is_refused(live: Any, path: str) -> None:
    found = [refused(live.ask("POST", path, body, content_type="application/json")) for body, _ in BROKEN]
    # Versions of Python expect other characters.
    assert [each.partition(": Expecting")[0] for each in found] == [said for _, said in BROKEN]


def test_unknown_paths_methods_and_types_get_an_error_of_the_same_form(live: Any) -> None:
    assert refused(live.get("/nope")).startswith("404 not_found [] ")
    assert refused(live.get("/v1/translate")) == "405 method_not_allowed [] method: found GET, expected POST"
    assert live.get("/v1/translate").headers["Allow"] == "POST"
    assert refused(live.ask("POST", "/v1/translate", b"a=b", content_type="text/plain")) == (
        "415 unsupported_media_type content-type: found 'text/plain', expected application/json"
    )


def test_characters_outside_the_basic_multilingual_plane_may_be_escaped(live: Any) -> None:
    body = json.dumps({"text": "a \U0001f600"}).encode()
    assert b"\\ud83d\\ude00" in body
    assert live.ask("POST", "/v1/translate", body, content_type="application/json").status == 200


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=9,
    )
)
def test_the_json_response_has_the_value_in_one_line(value: Any) -> None:
    text = bytes(json_response(value).body).decode()
    assert json.loads(text) == value
    assert text.endswith("\n")
    assert text.count("\n") == 1


@pytest.mark.parametrize("text", ["42", "12:30", "!!!", "→", "\U0001f600", " \n ", "5.\n!!!"])
def test_what_has_no_letters_is_kept_on_every_route(live: Any, text: str) -> None:
    assert live.post("/v1/translate", text=text).json()["translations"] == [{"text": text, "warnings": []}]
    assert live.post("/v1/translate", text=[text, "a"], detail=True).json()["translations"][0]["text"] == text
    assert live.post("/translate", q=text, source="en", target="de").json() == {"translatedText": text}
    assert live.post("/translate", q=text, source="en", target="de", format="html").json() == {"translatedText": text}
    assert live.post("/v2/translate", text=[text], target_lang="DE").json()["translations"][0]["text"] == text
    events = live.post("/v1/translate/stream", text=text).body.decode()
    assert json.loads(events.rpartition("data: ")[2])["translations"][0]["text"] == text


def test_a_setting_sends_what_has_no_letters_through_the_model(live: Any, translator: Translator) -> None:
    found = live.post("/v1/translate", text="!!!", letterless="translate").json()["translations"][0]["text"]
    assert found == translator.translate("!!!", letterless="translate").text != "!!!"
