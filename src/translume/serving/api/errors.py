"""Errors of the HTTP API: one class, one shape, and one handler that turns every other error into it."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from translume.errors import DocumentError, TranslumeError
from translume.json_values import to_bytes

DEEPL: Final = "/v2/"
"""Prefix of the paths of DeepL, whose errors differ."""
STATUSES: Final = {
    400: ("bad_request", "The body is not a JSON object or form with valid Unicode text, or a field is missing."),
    401: ("unauthorized", "The API key is missing or unknown, and the server requires one."),
    403: ("forbidden", "More characters than the key's daily quota, a page of another site, or not offered."),
    404: ("not_found", "No such model, language pair or file."),
    405: ("method_not_allowed", ""),
    408: ("request_too_slow", "The body arrived too slowly."),
    409: ("conflict", "The file is not translated yet."),
    413: ("request_too_large", "The body, a list or a text is too long, or an inspection would be too expensive."),
    415: ("unsupported_media_type", "The body or the file has an unsupported type."),
    421: ("unknown_host", "The Host header has a name that the server does not have."),
    422: ("invalid_value", "A field is unknown, missing or invalid, or a sentence is longer than the model's maximum."),
    429: ("too_many_requests", "The key's requests or characters are used up; Retry-After says when to try again."),
    456: ("over_quota", "The text has more characters than are left of the key's daily quota."),
    499: ("client_gone", ""),
    500: ("internal_error", "An internal error; the server's log has its traceback."),
    501: ("not_implemented", "The server cannot detect languages."),
    503: ("unavailable", "The server is overloaded or shutting down; Retry-After says when to try again."),
    504: ("deadline_exceeded", "The request did not finish before its deadline."),
    507: ("no_space", "There is no space for the translated file."),
}
"""The code of each status when no more specific code is given, and its description; empty if no route lists it."""
REQUEST: Final = ContextVar("request", default="")
"""The id of the request that is handled: lines of the log have it."""
MALFORMED: Final = {(422, "invalid_value"), (415, STATUSES[415][0]), (413, "too_many_texts"), (413, "text_too_long")}
"""Errors that LibreTranslate answers with status 400."""


class RequestError(TranslumeError):
    """A request that is rejected or failed, with its HTTP status. The message is one line."""

    def __init__(
        self, status: int, reason: str, *, code: str = "", field: str = "", retry_after: int | None = None
    ) -> None:
        """code: a stable word for the kind of error; by default that of the status.

        field: the field of the request that is wrong; empty if the error is not about a field.
        retry_after: seconds after which the client may try again.
        """
        super().__init__(" ".join(reason.splitlines()))
        self.status = status
        self.code = code or STATUSES.get(status, ("error",))[0]
        self.field = field
        self.retry_after = retry_after

    def renamed(self, names: Mapping[str, str]) -> "RequestError":
        """Return the error with the name that the client has for its field, with which the message begins."""
        name = names.get(self.field, self.field)
        reason = f"{name}{str(self).removeprefix(self.field)}"
        return RequestError(self.status, reason, code=self.code, field=name, retry_after=self.retry_after)

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the response."""
        field = {"field": self.field} if self.field else {}
        return {"error": str(self), "code": self.code, **field}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the status."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.code == "two_lengths":
            headers["Connection"] = "close"
        return headers if self.retry_after is None else {**headers, "Retry-After": str(self.retry_after)}


def field_error(field: str, reason: str, status: int = 422, code: str = "") -> RequestError:
    """Return the error about a field of a request, with whose name the message begins."""
    return RequestError(status, f"{field}: {reason}", code=code, field=field)


def refuse_more(field: str, count: float, unit: str, maximum: float, code: str = "", status: int = 413) -> None:
    """Raise RequestError if a field has more of a unit than the maximum.  unit: such as " texts"; may be empty."""
    if count > maximum:
        raise field_error(field, f"found {count:,}{unit}, expected at most {maximum:,}", status, code)


def stopped() -> RequestError:
    """Return the error of a server that takes no more requests."""
    return RequestError(503, "the server is shutting down; use another one", code="shutting_down", retry_after=10)


def was_cancelled() -> RequestError:
    """Return the error of work whose client has left."""
    return RequestError(499, "the request was cancelled")


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a value as JSON, with a newline at the end."""
    return Response(to_bytes(value) + b"\n", status_code=status, headers=headers, media_type="application/json")


def error_response(error: RequestError, scope: Scope) -> Response:
    """Return the response for an error, and record its code for the log."""
    note = scope.get("translume.note", {})
    note["code"] = error.code
    if error.status == 499:
        note["gone"] = 499
    message = {"message": str(error)} if scope["path"].startswith(DEEPL) else {}
    return json_response({**error.to_dict(), **message}, error.status, error.headers)


def noted_error(request: Request, error: Exception) -> RequestError:
    """Return an error after the start of a response, whose status is 200: the log and metrics have the real one."""
    known = as_request_error(error)
    request.scope.get("translume.note", {}).update(status=known.status, code=known.code)
    return known


def add_error_handler(app: FastAPI) -> None:
    """Let an application respond to every error in the one shape."""

    async def respond(request: Request, error: Exception) -> Response:
        known = _http_error(request, error) if isinstance(error, HTTPException) else as_request_error(error)
        tags = getattr(request.scope.get("route"), "tags", ())
        if "LibreTranslate" in tags and (known.status, known.code) in MALFORMED and known.field != "file":
            known.status = 400
        response = error_response(known, request.scope)
        if isinstance(error, HTTPException) and error.headers and "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response

    for kind in (HTTPException, TranslumeError, Exception):
        app.add_exception_handler(kind, respond)


def as_request_error(error: BaseException) -> RequestError:
    """Return `error` as the client sees it: itself if it is a RequestError, 422 for others of ours, else 500.

    Of an internal error it has only the type.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, DocumentError):
        return field_error("file", str(error), code="invalid_file")
    if isinstance(error, TranslumeError):
        return RequestError(422, str(error))
    return RequestError(500, f"the server failed ({type(error).__name__}); its log has the traceback")


def _http_error(request: Request, error: HTTPException) -> RequestError:
    """Return the error for an unknown path (404), a wrong method (405) or a body that cannot be parsed."""
    if error.status_code == 404:
        return RequestError(404, "no such path; /openapi.json lists all paths")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "").replace(", ", " or ")
        return RequestError(405, f"method: found {request.method}, expected {allowed}")
    return RequestError(error.status_code, f"the body cannot be read: {error.detail}")


def unsupported_type(kind: str, expected: str = "application/json") -> RequestError:
    """Return the error for a body of another media type."""
    return field_error("content-type", f"found '{kind}', expected {expected}", 415)


def shown(value: Any) -> str:
    """Describe a JSON value of any size and depth for an error message. Strings are never quoted: they are private."""
    if isinstance(value, str):
        return f"a string of {len(value):,} characters" if len(value) > 200 else "a string"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "an object"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:.6g}" if isinstance(value, int | float) and abs(value) < 10**308 else "another value"
