"""Why a request is not answered: one shape for every error that a client can meet."""

from typing import Any, Final

from translume.errors import DocumentError, TranslumeError

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
    422: "invalid_value",
    429: "too_many_requests",
    499: "client_gone",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    504: "deadline_exceeded",
    507: "no_space",
}
"""The code of each status where nothing more is known."""


class RequestError(TranslumeError):
    """A request that is not answered, as HTTP tells it; its text is one line."""

    def __init__(
        self, status: int, reason: str, *, code: str = "", field: str = "", retry_after: int | None = None
    ) -> None:
        """code: a stable word; empty is that of the status.  field: of the request, where it is about one.

        retry_after: seconds after which the same request may be answered.
        """
        super().__init__(" ".join(reason.splitlines()))
        self.status = status
        self.code = code or CODES.get(status, "error")
        self.field = field
        self.retry_after = retry_after

    def to_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        about = {"field": self.field} if self.field else {}
        return {"error": str(self), "code": self.code, **about}

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's head says of it."""
        asks = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        return asks if self.retry_after is None else {**asks, "Retry-After": str(self.retry_after)}


def as_request_error(error: Exception) -> RequestError:
    """Return `error` as the client sees it: itself if it is a RequestError, otherwise status 422."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, DocumentError):
        return RequestError(422, f"file: {error}", code="invalid_file", field="file")
    return RequestError(422, str(error))
