"""Request models: pydantic validates and documents a body; every validation error becomes one line."""

import io
from typing import Any

import pytest
from starlette.datastructures import UploadFile

from translume.config import DecodingSettings
from translume.serving.api import requests
from translume.serving.api.errors import RequestError
from translume.serving.api.requests import DECODING_FIELDS, WITHHELD, FormBody, RequestBody, TranslateRequest

MODELS = [
    each
    for each in vars(requests).values()
    if isinstance(each, type) and issubclass(each, RequestBody) and each.__name__.endswith("Request") and each.example
]


FILE = UploadFile(io.BytesIO(b"a"), size=1, filename="a.txt")


@pytest.mark.parametrize("model", MODELS)
def test_examples_and_fields_of_the_openapi_document_are_valid_and_described(model: type[RequestBody]) -> None:
    assert model.model_validate({name: FILE if name == "file" else value for name, value in model.example.items()})
    properties = model.model_json_schema()["properties"]
    described = {name for name, each in properties.items() if each.get("description")}
    assert described >= set(model.model_fields) - {"format", "timestamp_granularities"}


def test_a_translate_request_has_the_decoding_settings_without_their_defaults() -> None:
    schema = TranslateRequest.model_json_schema()
    assert set(schema["properties"]) == {*TranslateRequest.model_fields, *DecodingSettings.model_fields} - WITHHELD
    assert not [name for name in DECODING_FIELDS if "default" in schema["properties"][name]]
    assert (schema["additionalProperties"], schema["required"]) == (False, ["text"])


def test_values_of_a_form_are_json_unless_the_field_is_a_string() -> None:
    class Form(FormBody):
        name: str = ""
        count: int = 0
        parts: tuple[str, ...] = ()

    form = Form.model_validate({"name": "5", "count": "5", "parts": '["a"]', "file": FILE})
    assert (form.name, form.count, form.parts) == ("5", 5, ("a",))
    with pytest.raises(RequestError, match=r"^Invalid request: missing file parameter$"):
        Form.model_validate({"file": "no file"})


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({}, "text", "text: found nothing, expected a value"),
        ({"text": None}, "text", "text: found null, expected a string or a list of strings"),
        ({"text": "a", "detail": "yes"}, "detail", "detail: found a string, expected a valid boolean"),
        (
            {"text": "a", "split": []},
            "split",
            "split: found an empty list, expected '', 'auto', 'always', 'never', 'sentences' or 'lines'",
        ),
        ({"text": "a", "source": 5}, "source", "source: found 5, expected a valid string"),
        ({"text": "a", "source": "a" * 201}, "source", "source: found 201 characters, expected at most 200"),
        ({"text": "a", "detial": True}, "detial", "detial: no such field; did you mean 'detail'?"),
    ],
)
def test_the_first_validation_error_is_one_line_with_its_field(
    values: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(RequestError) as raised:
        TranslateRequest.read(values)
    assert (raised.value.status, raised.value.field, str(raised.value)) == (422, field, message)
