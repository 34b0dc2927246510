"""Identify the clients of requests, to limit the share of each."""

import ipaddress
from collections.abc import Iterable, Sequence

from starlette.types import Scope

from translume.serving.access.admission import ADMITTED
from translume.serving.api.errors import RequestError


def address_block(address: str) -> str:
    """Return the addresses that count as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


def client_address(scope: Scope) -> str:
    """Return the address of a request's client, as a trusted proxy names it; empty if it is unknown."""
    return address_block((scope.get("client") or [""])[0])


def client_of(scope: Scope) -> str:
    """Return the client of a request: its key, or else its address."""
    key = scope.get(ADMITTED)
    return f"key {key.id}" if key is not None else client_address(scope)


class Networks:
    """A set of IP addresses and networks."""

    def __init__(self, names: Iterable[str]) -> None:
        """names: such as "127.0.0.1" or "10.0.0.0/8"; ValueError if one is malformed."""
        self._networks = [ipaddress.ip_network(name) for name in names]

    def __contains__(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in network for network in self._networks)


def check_share(waiting: Sequence[str], client: str, capacity: int, what: str, retry_after: int) -> None:
    """Raise RequestError (503) if all places of a queue are taken, or three quarters of them by this client.

    waiting: the clients of the items in the queue.  client: empty for one that is unknown.  what: the items.
    """
    share = capacity - capacity // 4 if client else capacity
    if (found := len(waiting)) >= capacity:
        reason = f"{found:,} {what} are waiting, expected at most {capacity:,}; try later"
    elif (found := waiting.count(client)) >= share:
        reason = f"{found:,} of your {what} are waiting, expected at most {share:,}; try later"
    else:
        return
    raise RequestError(503, reason, code="queue_full", retry_after=retry_after)
