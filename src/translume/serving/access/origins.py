"""Check the host that a request names and the site that sent it, against attacks from web pages.

With DNS rebinding, a page of evil.example reaches a server on localhost as http://evil.example; its requests then name
that host. Without it, a page can still send forms to other sites, though not read the responses.
"""

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.types import Scope

from translume.serving.api.errors import RequestError

HEALTH: Final = frozenset({"/health", "/health/live", "/health/ready"})
"""Paths for load balancers, which name a server in their own ways. Their responses contain no secrets."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods of requests that change nothing, and that pages of other sites may send."""


def header(scope: Scope, name: bytes) -> str:
    """Return a request header; empty if it is missing."""
    return next((value.decode("latin-1") for each, value in scope["headers"] if each == name), "")


def host_name(address: str) -> str:
    """Return the host in HOST or HOST:PORT, in lower case; empty if it is malformed."""
    try:
        return (urlsplit(f"//{address.strip()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def check_host(scope: Scope, names: Collection[str]) -> None:
    """Raise RequestError (421) unless the Host header has one of the names, a loopback name or an IP address.

    names: in lower case; "*" allows all.  A page of another site cannot have an IP address as its host.
    """
    given = header(scope, b"host")
    name = host_name(given)
    missing = not any(each == b"host" for each, _ in scope["headers"])  # in HTTP 1.0
    if missing or "*" in names or scope["path"] in HEALTH or name in names or _is_local(name):
        return
    raise RequestError(
        421,
        "host: found a name that this server does not have; its operator can add it: translume serve --host-name NAME",
        code="unknown_host",
        field="host",
    )


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_site(scope: Scope, cors_origins: Collection[str], public_address: str) -> None:
    """Raise RequestError (403) if a page of another site sent a request that is not only for reading.

    Browsers send Sec-Fetch-Site, but over plain HTTP only to localhost; without it, the host in Origin is compared.
    """
    origin = header(scope, b"origin")
    if scope["method"] in READING or (origin and ("*" in cors_origins or origin in cors_origins)):
        return
    site = header(scope, b"sec-fetch-site").lower()
    if site:
        foreign = site not in ("same-origin", "none")
    else:
        own = {host_name(header(scope, b"host")), host_name(public_address.partition("://")[2])}
        foreign = bool(origin) and host_name(origin.partition("://")[2]) not in own - {""}
    if foreign:
        raise RequestError(
            403,
            "a page of another site sent this request; the operator can allow it with the setting cors_origins",
            code="cross_site",
        )


def check_framing(scope: Scope) -> None:
    """Raise RequestError (400) for a body with two lengths: a proxy before this server may have used the other one.

    RFC 9112, section 6.3: request smuggling.
    """
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        raise RequestError(
            400, "found Content-Length and Transfer-Encoding, expected one of them", code="two_lengths", field="body"
        )
