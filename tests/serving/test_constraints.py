"""Constraints of a request: each translation contains its required phrases, or a warning says why it does not."""

from typing import Any

import pytest
from tests.serving.conftest import refused

from translume.translator import Translator

KNOBS: dict[str, Any] = {"max_length_extra": 20, "beam": 4}


def test_constrained_translations_equal_those_of_the_translator(live: Any, translator: Translator) -> None:
    settings = translator.config.decoding.model_copy(update=KNOBS)
    wanted = translator.translate("ab cd", settings=settings, constraints=["xy z"])
    assert "xy z" in wanted.text
    for phrases in ("xy z", ["xy z"]):
        (found,) = live.post("/v1/translate", text="ab cd", constraints=phrases, **KNOBS).json()["translations"]
        assert (found["text"], found["warnings"]) == (wanted.text, wanted.to_dict()["warnings"])
    started = live.post("/v1/translate/stream", text="ab cd", constraints=["xy z"], **KNOBS).body.decode()
    assert found["text"] in started


def test_each_text_of_a_list_has_its_own_constraints(live: Any) -> None:
    one, two = live.post("/v1/translate", text=["ab", "ab"], constraints=[["xy"], "zw"], **KNOBS).json()["translations"]
    assert ("xy" in one["text"], "zw" in one["text"]) == (True, False)
    assert ("xy" in two["text"], "zw" in two["text"]) == (False, True)


def test_a_phrase_applies_to_the_line_that_contains_it_or_else_to_the_first(live: Any) -> None:
    fields = {"text": "ab\ncd xyq", "constraints": ["xyq", "zzw"], "split": "lines"}
    (found,) = live.post("/v1/translate", **fields, **KNOBS).json()["translations"]
    first, second = found["text"].split("\n")
    assert "zzw" in first
    assert "xyq" in second


def test_a_constraint_that_cannot_be_met_is_a_warning(live: Any) -> None:
    (found,) = live.post("/v1/translate", text="ab", constraints=["Ω"], **KNOBS).json()["translations"]
    assert {"kind": "constraint_unmet", "detail": "'Ω': the target's vocabulary cannot write it"} in found["warnings"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"constraints": 5}, "constraints: found 5 for text 0, expected a string or a list of strings"),
        ({"constraints": [5]}, "constraints: found a list for text 0, expected a string or a list of strings"),
        ({"constraints": [" "]}, "constraints: found a blank one for text 0, expected a word or a phrase"),
        ({"constraints": ["a"] * 17}, "constraints: found 17 for text 0, expected at most 16"),
        ({"constraints": ["a" * 201]}, "constraints: found 201 characters in one, expected at most 200"),
        (
            {"text": ["a", "b"], "constraints": [["x"]]},
            "constraints: found 1 for 2 texts, expected a string or a list of strings for each",
        ),
        (
            {"text": ["a", "b"], "constraints": "x"},
            "constraints: found a string, expected a string or a list of strings for each",
        ),
        (
            {"constraints": ["x"], "strategy": "sampling"},
            "constraints: strategy: found 'sampling' with constraints, expected 'beam' or 'greedy'",
        ),
    ],
)
def test_invalid_constraints_are_refused(live: Any, fields: dict[str, Any], message: str) -> None:
    assert refused(live.post("/v1/translate", {"text": "a", **fields})) == f"422 invalid_value {message}"
