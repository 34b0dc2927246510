"""Errors of the HTTP API: one class, one shape, and how other errors become it."""

from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from translume.errors import DocumentError, TranslumeError

DEEPL: Final = "/v2/"
"""Prefix of the paths of DeepL, whose errors differ."""
CODES: Final = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_too_slow",
    409: "conflict",
    413: "request_too_large",
    415: "unsupported_media_type",
    421: "unknown_host",
    422: "invalid_value",
    429: "too_many_requests",
    499: "client_gone",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    504: "deadline_exceeded",
    507: "no_space",
}
"""The code of a status when no more specific code is given."""
EXPECTED_TYPES: Final = {
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "int_type": "a whole number",
}
"""What a value of the wrong type must be, by pydantic's type of error, for fields without `Expected`."""


class RequestError(TranslumeError):
    """A request that is refused or failed, with its HTTP status. The message is one line."""

    def __init__(
        self, status: int, reason: str, *, code: str = "", field: str = "", retry_after: int | None = None
    ) -> None:
        """code: a stable word for the kind of error; by default that of the status.

        field: the field of the request that is wrong; empty if the error is not about a field.
        retry_after: seconds after which the client may try again.
        """
        super().__init__(" ".join(reason.splitlines()))
        self.status = status
        self.code = code or CODES.get(status, "error")
        self.field = field
        self.retry_after = retry_after

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the response."""
        field = {"field": self.field} if self.field else {}
        return {"error": str(self), "code": self.code, **field}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the status."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        return headers if self.retry_after is None else {**headers, "Retry-After": str(self.retry_after)}


@dataclass(frozen=True, slots=True)
class Expected:
    """Metadata of a field of a request model: what the field must be, in the words of error messages."""

    words: str


def as_request_error(error: Exception) -> RequestError:
    """Return `error` as the client sees it: itself if it is a RequestError, otherwise status 422."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, DocumentError):
        return RequestError(422, f"file: {error}", code="invalid_file", field="file")
    return RequestError(422, str(error))


def validation_error(model: type[BaseModel], error: ValidationError) -> RequestError:
    """Convert the first fault that pydantic found in a request into a RequestError (422) of one line."""
    fault = error.errors(include_url=False)[0]
    name, *inside = fault["loc"]
    place = "".join([str(name), *(f"[{each}]" for each in inside if isinstance(each, int))])
    if fault["type"] == "string_too_long":
        found, expected = f"{len(fault['input']):,} characters", f"at most {fault['ctx']['max_length']:,}"
    else:
        found = "nothing" if fault["type"] == "missing" else shown(fault["input"])
        expected = EXPECTED_TYPES.get(fault["type"], fault["msg"].removeprefix("Input should be "))
        if not inside:
            metadata = model.model_fields[str(name)].metadata
            expected = next((each.words for each in metadata if isinstance(each, Expected)), expected)
    return RequestError(422, f"{place}: found {found}, expected {expected}", field=place)


def shown(value: Any) -> str:
    """Describe a JSON value of any size and depth for an error message. Texts are never quoted: they are private."""
    if isinstance(value, str):
        return "a text"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "an object"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:.6g}" if abs(value) < 10**308 else "a number that is too large"
