"""Which pages of other origins may read answers: those that are listed, and none unless any is."""

from collections.abc import Sequence
from typing import Final

from starlette.types import Scope

METHODS: Final = "GET, POST, DELETE"
TAKEN: Final = "Authorization, Content-Type, X-Request-Id"
"""Fields of a request that a page may set."""
TOLD: Final = "Retry-After, X-Request-Id"
"""Fields of an answer that a page may read, besides those that each may."""
REMEMBERED_SECONDS: Final = 600


def field(scope: Scope, name: bytes) -> str:
    """A field of a request's head; empty for none."""
    return next((value.decode("latin-1") for each, value in scope["headers"] if each == name), "")


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks beforehand, for a page of another origin, what it may send."""
    return scope["method"] == "OPTIONS" and bool(field(scope, b"access-control-request-method"))


def cors_headers(scope: Scope, origins: Sequence[str]) -> dict[str, str]:
    """What an answer's head says to the page that asked; credentials that the browser keeps are never taken."""
    if not origins:
        return {}
    varied = {} if "*" in origins else {"Vary": "Origin"}
    origin = field(scope, b"origin")
    if not origin or not ("*" in origins or origin in origins):
        return varied
    said = {
        **varied,
        "Access-Control-Allow-Origin": "*" if "*" in origins else origin,
        "Access-Control-Expose-Headers": TOLD,
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    if is_preflight(scope):
        said |= {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": TAKEN,
            "Access-Control-Max-Age": str(REMEMBERED_SECONDS),
        }
    return said
