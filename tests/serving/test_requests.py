"""Request models: pydantic validates and documents a body; every validation error becomes one line."""

import weakref
from typing import Any

import pytest

from translume.config import DecodingSettings
from translume.serving.access.limits import Limits
from translume.serving.api import requests
from translume.serving.api.errors import RequestError
from translume.serving.api.openapi import body
from translume.serving.api.requests import WITHHELD, RequestBody, TranslateRequest
from translume.serving.api.version1 import _QuickRequests

LIMITS = Limits()
MODELS = [
    each
    for each in vars(requests).values()
    if isinstance(each, type) and issubclass(each, RequestBody) and each.__name__.endswith("Request") and each.example
]


def schema_of(model: type[RequestBody]) -> dict[str, Any]:
    schema: dict[str, Any] = body(model)["requestBody"]["content"]["application/json"]["schema"]
    return schema


@pytest.mark.parametrize("model", MODELS)
def test_examples_in_the_openapi_document_are_valid(model: type[RequestBody]) -> None:
    assert model.parse({name: value for name, value in model.example.items() if name != "file"}, LIMITS)


def test_a_translate_request_has_the_decoding_settings_without_their_defaults() -> None:
    properties = schema_of(TranslateRequest)["properties"]
    assert set(properties) == {*TranslateRequest.model_fields, *DecodingSettings.model_fields} - WITHHELD
    assert not [name for name, each in properties.items() if "default" in each]
    assert schema_of(TranslateRequest)["additionalProperties"] is False
    assert schema_of(TranslateRequest)["required"] == ["text"]


@pytest.mark.parametrize("model", MODELS)
def test_every_field_is_described(model: type[RequestBody]) -> None:
    described = {name for name, each in schema_of(model)["properties"].items() if each.get("description")}
    assert described >= set(model.model_fields) - {"format"}


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({}, "text", "text: found nothing, expected a text or a list of texts"),
        ({"text": None}, "text", "text: found null, expected a text or a list of texts"),
        ({"text": "a", "detail": "yes"}, "detail", "detail: found a text, expected true or false"),
        (
            {"text": "a", "split": []},
            "split",
            "split: found an empty list, expected one of: auto, always, never, sentences, lines",
        ),
        ({"text": "a", "source": 5}, "source", "source: found 5, expected a text"),
        ({"text": "a", "detial": True}, "detial", "detial: no such field; did you mean 'detail'?"),
    ],
)
def test_the_first_validation_error_is_one_line_with_its_field(
    values: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        TranslateRequest.parse(values, LIMITS)
    assert (caught.value.status, caught.value.field, str(caught.value)) == (422, field, message)


def test_short_requests_like_valid_ones_before_are_quick_until_a_reload() -> None:
    class Models:
        pass

    models, quick = Models(), _QuickRequests()
    long = {"text": "a", "ban": 201 * "x"}
    for values in ({"text": "a", "beam": 2, "timeout_seconds": 3}, long):
        assert not quick.holds(values, models)
        quick.add(values, models)
    assert quick.holds({"text": ["b", "c"], "beam": 2}, models)
    assert not quick.holds({"text": "a", "beam": 3}, models)
    assert not quick.holds({"text": 2001 * [""], "beam": 2}, models)
    assert not quick.holds({"text": "a", "beam": 2}, Models())
    assert not quick.holds(long, models)  # building the tables of a ban takes long
    replaced = weakref.ref(models)
    del models
    assert replaced() is None
