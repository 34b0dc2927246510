"""/v1/classify returns the classifier's own results; a server may have classifiers, translators, or both."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.serving.conftest import refused

from translume.serving.models import ServedModel, ServedModels
from translume.translator import Classifier, Translator

NAMES = ("animal", "colour", "fruit")


@pytest.fixture(scope="module")
def topics(start: Callable[..., Any], make_classifier: Callable[..., Classifier], translator: Translator) -> Any:
    served = (ServedModel.from_model("en-de", translator), ServedModel.from_model("topics", make_classifier()))
    return start(*served, texts=5, characters=300)


def test_labels_of_texts_equal_those_of_the_classifier(topics: Any, make_classifier: Callable[..., Classifier]) -> None:
    texts = ["a cab", "", "b"]
    found = topics.post("/v1/classify", text=texts, model="topics").json()
    assert found["model"] == "topics"
    for text, one in zip(texts, found["classifications"], strict=True):
        wanted = make_classifier().classify(text)
        assert (one["label"], one["labels"], one["warnings"]) == (wanted.label, [wanted.label], [])
        assert list(one["probabilities"]) == [name for name, _ in wanted.probabilities]
        values = list(one["probabilities"].values())
        assert values == pytest.approx([value for _, value in wanted.probabilities], abs=1e-5)
        assert sum(values) == pytest.approx(1.0, abs=1e-5)
        assert one["margin"] == pytest.approx(values[0] - values[1], abs=1e-6)


def test_a_single_classifier_needs_no_name_and_nbest_limits_the_labels(topics: Any) -> None:
    (one,) = topics.post("/v1/classify", text="a cab", nbest=2).json()["classifications"]
    (whole,) = topics.post("/v1/classify", text="a cab").json()["classifications"]
    assert list(one["probabilities"].items()) == list(whole["probabilities"].items())[:2]
    assert one["margin"] == whole["margin"]


def test_the_margin_of_a_multi_label_text_is_the_smallest_distance_to_the_threshold(
    start: Callable[..., Any], make_classifier: Callable[..., Classifier]
) -> None:
    own = start(ServedModel.from_model("topics", make_classifier("+")))
    (one,) = own.post("/v1/classify", text="a cab").json()["classifications"]
    assert one["labels"] == [name for name, value in one["probabilities"].items() if value > 0.5]
    assert one["margin"] == min(abs(value - 0.5) for value in one["probabilities"].values())
    (model,) = own.get("/v1/models").json()["models"]
    assert (model["labels"], model["several_labels"], model["offers"]) == (list(NAMES), True, ["classify"])
    assert refused(own.post("/v1/translate", text="a")) == "404 no_translator model: this server has no translator"
    assert own.get("/health/ready").status == 200


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text": 5}, "422 invalid_value text: found 5, expected a string or a list of strings"),
        ({"nbest": 0}, "422 invalid_value nbest: found 0, expected greater than or equal to 1"),
        ({"model": "topic"}, "404 unknown_model model: no such classifier; did you mean 'topics'?"),
        ({"text": ["a", "b" * 13]}, "422 text_too_long text[1]: the text has 13 tokens, expected at most 12"),
        ({"beam": 3}, "422 unknown_field beam: no such field; known: model, timeout_seconds, text, nbest"),
    ],
)
def test_invalid_requests_get_a_one_line_error(topics: Any, fields: dict[str, Any], said: str) -> None:
    assert refused(topics.post("/v1/classify", {"text": "a", **fields})) == said


def test_a_model_of_another_task_is_named(topics: Any, live: Any) -> None:
    assert refused(live.post("/v1/classify", text="a")) == "404 no_classifier model: this server has no classifier"
    assert refused(topics.post("/v1/translate", text="a", model="topics")) == (
        "422 invalid_value model: 'topics' is a classifier, expected a translator; use /v1/classify"
    )


def test_all_lists_every_model_and_each_kind_its_own(
    translator: Translator, make_classifier: Callable[..., Classifier]
) -> None:
    found = ServedModels([ServedModel.from_model("x", translator), ServedModel.from_model("y", make_classifier())])
    assert [each.name for each in found.all] == ["x", "y"]
    assert [*found.of_kind("translate")] == ["x"]
